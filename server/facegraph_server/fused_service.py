"""What the models of the fused profile call: choose a bucket, run its graph, cut the answer to what is there.

Results come back as NumPy arrays out of page-locked memory after the stream has been waited for. No tensor is handed
to Triton on the GPU (DLPack): a raw capsule is not synchronised with our stream, and a Python step's GPU outputs
arrive empty or damaged when Triton's CUDA memory pool is full. The results are small, so their copy costs little.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from facegraph_client import InputError
from numpy.typing import NDArray
from torch import Tensor

from facegraph_server.contract import DEFAULT_TEXTURE_SIZE_PX, MAX_BATCH, VERTICES
from facegraph_server.errors import ModelBuildError
from facegraph_server.faces import Faces
from facegraph_server.frame_graph import FrameGraph, GraphCounters
from facegraph_server.paths import onnx_path
from facegraph_server.reconstruction import check_texture_size
from facegraph_server.torch_frame import FrameBucket, FrameFunction, TextureFunction, frame_inputs, frame_views
from facegraph_server.torch_networks import TorchNetwork

_BUCKET = re.compile(r"(\d+)x(\d+)x(\d+)")


@dataclass(frozen=True)
class FusedSettings:
    """How a fused model runs.

    Attributes:
        buckets: the frame sizes and view counts that have graphs, smallest first.
        face_counts: how many regions the graphs of a bucket look at, smallest first. A frame with more regions than
            the first has room for runs once more with the next: most frames have few faces, and a graph does the
            work for all its regions whether they are there or not.
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:N"``.
        graphs: whether to capture and replay.

    """

    buckets: tuple[FrameBucket, ...]
    face_counts: tuple[int, ...] = (4, MAX_BATCH)
    device: str = "cpu"
    graphs: bool = True

    @classmethod
    def from_parameters(
        cls, parameters: Mapping[str, str], instance_kind: str = "", device_id: str = "0"
    ) -> FusedSettings:
        """Read the parameters of a ``fused.pbtxt``.

        Args:
            parameters: ``BUCKETS`` "WIDTHxHEIGHTxVIEWS ...", ``FACES`` "4 16", ``GRAPHS`` on or off, ``DEVICE`` auto,
                cpu, cuda or cuda:N. ``auto`` takes the instance's GPU if there is one.
            instance_kind: Triton's kind of the instance, GPU or CPU.
            device_id: Triton's number of the instance's GPU.

        Raises:
            ModelBuildError: a parameter cannot be read, or the device is not there.

        """
        buckets = sorted(map(_bucket, parameters["BUCKETS"].split()), key=lambda b: (b.width_px * b.height_px, b.views))
        faces = sorted({int(count) for count in parameters.get("FACES", f"4 {MAX_BATCH}").split() if count.isdecimal()})
        if not faces or not 1 <= faces[0] <= faces[-1] <= MAX_BATCH:
            raise ModelBuildError(f"FACES = {parameters['FACES']!r}; write numbers from 1 to {MAX_BATCH}, such as 4 16")
        if (graphs := parameters.get("GRAPHS", "on")) not in ("on", "off"):
            raise ModelBuildError(f"GRAPHS = {graphs!r}; write on or off")
        device = parameters.get("DEVICE", "auto")
        if device == "auto":
            number = device_id if instance_kind == "GPU" else "0"
            device = f"cuda:{number}" if torch.cuda.is_available() else "cpu"
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise ModelBuildError(
                f"DEVICE = {device}, but torch sees no GPU; write auto or cpu, or install torch for CUDA"
            )
        return cls(tuple(buckets), tuple(faces), device, graphs == "on")


def _bucket(text: str) -> FrameBucket:
    match = _BUCKET.fullmatch(text)
    if match is None or not 1 <= int(match[3]) <= MAX_BATCH:
        raise ModelBuildError(f"BUCKETS holds {text!r}; write WIDTHxHEIGHTxVIEWS with 1 to {MAX_BATCH} views")
    return FrameBucket(*map(int, match.groups()))


class FusedFrames:
    """All graphs of one model, and the choice between them.

    Args:
        settings: see :class:`FusedSettings`.
        tracking: whether frames come with the landmarks of the frame before.
        unwrap: makes textures, for :meth:`find_textured`.
        model_repository: where the networks' ONNX files lie; None is this checkout's.

    """

    def __init__(
        self,
        settings: FusedSettings,
        *,
        tracking: bool = False,
        unwrap: TextureFunction | None = None,
        model_repository: Path | None = None,
    ) -> None:
        self.settings = settings
        self.counters = GraphCounters()
        self._tracking, self._unwrap = tracking, unwrap
        where = () if model_repository is None else (model_repository,)
        detector, mesh = (
            TorchNetwork(onnx_path(name, *where), channels_last=True).eval().to(settings.device)
            for name in ("face_detector", "face_mesh")
        )
        self._graphs: dict[tuple[FrameBucket, int], FrameGraph] = {}
        for bucket, faces in itertools.product(settings.buckets, settings.face_counts):
            function = FrameFunction(detector, mesh, bucket, max_faces=faces, tracking=tracking, unwrap=unwrap)
            function.to(settings.device)  # the constants of unwrap too
            self._graphs[bucket, faces] = FrameGraph(
                function,
                function.input_specs(),
                device=settings.device,
                graphs=settings.graphs,
                partial=("FRAME",),
                count_output="COUNT",
                row_outputs=() if unwrap is None else ("TEXTURE", "COVERAGE"),
                counters=self.counters,
                share_with=next(iter(self._graphs.values()), None),
            )
        self._texture_graphs = {} if unwrap is None else {b: self._texture_graph(b, unwrap) for b in settings.buckets}

    def __enter__(self) -> FusedFrames:
        """Set up."""
        self.setup()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def setup(self) -> None:
        """Capture all graphs, the largest first: the others then fit into its memory."""
        for graph in reversed((*self._texture_graphs.values(), *self._graphs.values())):
            graph.setup()

    def close(self) -> None:
        """Free all graphs and buffers."""
        for graph in (*self._graphs.values(), *self._texture_graphs.values()):
            graph.close()

    def find(
        self, frame_rgb: NDArray[np.uint8], *, fine: bool = False, prior_px: NDArray[np.float32] | None = None
    ) -> Faces:
        """Find the faces of a frame.

        Args:
            frame_rgb: UINT8 [H,W,3].
            fine: search in tiles for small faces.
            prior_px: FP32 [n,468,3] landmarks of the frame before; needed if and only if these graphs track.

        Raises:
            InputError: no bucket holds the frame.

        """
        return _faces(self._run(frame_rgb, fine, prior_px)[1])

    def find_textured(
        self, frame_rgb: NDArray[np.uint8], *, fine: bool = False, texture_size_px: int = DEFAULT_TEXTURE_SIZE_PX
    ) -> tuple[Faces, NDArray[np.uint8], NDArray[np.uint8]]:
        """Find the faces of a photo, and their textures UINT8 [F,T,T,3] and coverage UINT8 [F,T,T].

        With T = 1024 the first face's texture is part of the frame's graph, and each further one a replay of its own.
        Another T runs the same function eagerly, after the frame's graph, and counts as a fallback where graphs are
        on: a graph for each of the 4033 sizes would take all memory.

        Raises:
            InputError: no bucket holds the frame, or the texture size is out of range.
            ModelBuildError: these graphs were given no function that unwraps.

        """
        check_texture_size(texture_size_px, 0)
        if self._unwrap is None:
            raise ModelBuildError("these graphs make no textures; give FusedFrames a function that unwraps them")
        bucket, found = self._run(frame_rgb, fine, None)
        faces = _faces(found)
        check_texture_size(texture_size_px, len(faces.score))
        texture = np.empty((len(faces.score), texture_size_px, texture_size_px, 3), np.uint8)
        coverage = np.empty(texture.shape[:3], np.uint8)
        size = np.array([frame_rgb.shape[1], frame_rgb.shape[0]], np.int32)
        if texture_size_px != DEFAULT_TEXTURE_SIZE_PX:
            self._unwrap_eagerly(self._unwrap, frame_rgb, size, faces.landmarks_px, texture, coverage)
            return faces, texture, coverage
        for i, landmarks in enumerate(faces.landmarks_px):
            if i > 0:
                inputs = {"SIZE": size, "LANDMARKS": landmarks[None], "FRAME": frame_rgb}
                found = self._texture_graphs[bucket].run(inputs)
            texture[i], coverage[i] = found["TEXTURE"][0], found["COVERAGE"][0]
        return faces, texture, coverage

    def _texture_graph(self, bucket: FrameBucket, unwrap: TextureFunction) -> FrameGraph:
        def texture_of_one(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
            made = unwrap(inputs["FRAME"], inputs["SIZE"], inputs["LANDMARKS"], DEFAULT_TEXTURE_SIZE_PX)
            return dict(zip(("TEXTURE", "COVERAGE"), made, strict=True))

        return FrameGraph(
            texture_of_one,
            {
                "SIZE": ((2,), torch.int32),
                "LANDMARKS": ((1, VERTICES, 3), torch.float32),
                "FRAME": ((bucket.height_px, bucket.width_px, 3), torch.uint8),
            },
            device=self.settings.device,
            graphs=self.settings.graphs,
            partial=("FRAME",),
            counters=self.counters,
            share_with=next(iter(self._graphs.values())),
        )

    def _unwrap_eagerly(
        self,
        unwrap: TextureFunction,
        frame_rgb: NDArray[np.uint8],
        size: NDArray[np.int32],
        landmarks_px: NDArray[np.float32],
        texture: NDArray[np.uint8],
        coverage: NDArray[np.uint8],
    ) -> None:
        """Unwrap one face after the other into the last two arrays: a large texture takes much memory on the way."""
        self.counters.eager_runs += len(landmarks_px)
        self.counters.fallbacks += len(landmarks_px) * (self.settings.graphs and self.settings.device != "cpu")
        with torch.inference_mode():
            frame, size_wh, landmarks = (
                torch.tensor(value, device=self.settings.device) for value in (frame_rgb, size, landmarks_px)
            )
            for i in range(len(landmarks_px)):
                made = unwrap(frame, size_wh, landmarks[i : i + 1], texture.shape[1])
                texture[i], coverage[i] = (value[0].cpu().numpy() for value in made)

    def _run(
        self, frame_rgb: NDArray[np.uint8], fine: bool, prior_px: NDArray[np.float32] | None
    ) -> tuple[FrameBucket, dict[str, NDArray[Any]]]:
        """Run the smallest graph that holds the frame and its regions; return its bucket and its outputs."""
        height, width = frame_rgb.shape[:2]
        views = frame_views(width, height, fine=fine, tracking=self._tracking)
        bucket = self._choose(width, height, len(views))
        inputs = frame_inputs(frame_rgb, views, bucket, prior_px)
        found: dict[str, NDArray[Any]] = {}
        for faces in self.settings.face_counts:
            found = self._graphs[bucket, faces].run(inputs)
            if found["REGIONS"][0] <= faces:
                break
        return bucket, found

    def _choose(self, width_px: int, height_px: int, views: int) -> FrameBucket:
        for bucket in self.settings.buckets:
            if bucket.holds(width_px, height_px, views):
                return bucket
        buckets = ", ".join(map(str, self.settings.buckets))
        raise InputError(
            f"no graph takes a picture of {width_px}x{height_px} px with {views} detector views; the server's "
            f"buckets (width x height x views) are {buckets}: scale the picture down, or add a bucket"
        )


def _faces(found: Mapping[str, NDArray[Any]]) -> Faces:
    count = int(found["COUNT"][0])
    return Faces(*(found[name][:count] for name in ("LANDMARKS", "BOX", "SCORE")))
