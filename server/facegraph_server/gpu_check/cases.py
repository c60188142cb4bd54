"""What the GPU check runs: networks at each batch size, and whole frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from facegraph_server.contract import VERTICES
from facegraph_server.frame_graph import FrameGraph, Function, Spec
from facegraph_server.gpu_check.bare_machine import is_stand_in
from facegraph_server.paths import NETWORKS, SAMPLE_PHOTO, onnx_path
from facegraph_server.torch_frame import FrameBucket, FrameFunction, TextureFunction, frame_inputs, frame_views
from facegraph_server.torch_networks import TorchNetwork
from facegraph_server.verification.networks import pixels

Network = Callable[[Tensor], Mapping[str, Tensor]]

_BACKGROUND = 96
_SEED = 5
_MAX_FACES = 4  # the smaller of the graphs that the fused models have for each bucket


class Case(NamedTuple):
    """One thing to measure, with a graph and without.

    Attributes:
        name: what it is.
        frames: how many frames, or rows of a batch, one call handles.
        make: returns what to capture; a new one for each runner, as a TensorRT context serves one graph only.
        specs: its inputs' shapes and types.
        partial: its inputs that may be smaller than their buffer.
        inputs: arrays to run it on.

    """

    name: str
    frames: int
    make: Callable[[], Function]
    specs: Mapping[str, Spec]
    partial: tuple[str, ...]
    inputs: dict[str, NDArray[Any]]

    def runner(self, device: str, *, graphs: bool) -> FrameGraph:
        """Return a runner with buffers of its own, not yet set up."""
        return FrameGraph(self.make(), self.specs, device=device, graphs=graphs, partial=self.partial)

    def shows_something(self, found: Mapping[str, NDArray[Any]]) -> bool:
        """Tell whether results can differ: a frame without a face is zero whatever the networks say."""
        counts = [value for name, value in found.items() if name.startswith("COUNT")]
        return not counts or any(count.any() for count in counts)


def load_networks(device: str) -> dict[str, TorchNetwork]:
    """Return both networks as the fused profile runs them."""
    return {name: TorchNetwork(onnx_path(name), channels_last=True).eval().to(device) for name in NETWORKS}


def network_case(name: str, batch: int, make: Callable[[], Network], kind: str = "torch") -> Case:
    """Return a network at a batch size; ``make`` returns what maps UINT8 [batch,S,S,3] to its outputs."""
    data = pixels(name, batch)
    specs: dict[str, Spec] = {"PIXELS": (data.shape, torch.uint8)}

    def make_function() -> Function:
        network = make()
        return lambda inputs: network(inputs["PIXELS"])

    return Case(network_name(name, batch, kind), batch, make_function, specs, (), {"PIXELS": data})


def network_name(name: str, batch: int, kind: str = "torch") -> str:
    """Return the name of a :func:`network_case`."""
    return f"{kind} {name}, batch {batch}"


def frame_case(
    networks: Mapping[str, TorchNetwork],
    width_px: int,
    height_px: int,
    *,
    tracking: bool,
    frames: int,
    unwrap: TextureFunction | None = None,
) -> Case:
    """Return whole frames with one face: video frames with the landmarks of the frame before, or single photos.

    More than one frame means that many in one function, one after the other: one graph then replays all of them.

    Args:
        networks: see :func:`load_networks`.
        width_px: width of a frame.
        height_px: height of a frame.
        tracking: whether there is a frame before.
        frames: how many.
        unwrap: makes the texture of the face as well.

    """
    device = next(networks["face_mesh"].buffers()).device
    frame = sample_frame(width_px, height_px)
    views = frame_views(width_px, height_px, tracking=tracking)
    bucket = FrameBucket(width_px, -(-height_px // 16) * 16, len(views))
    function = FrameFunction(
        networks["face_detector"],
        networks["face_mesh"],
        bucket,
        max_faces=_MAX_FACES,
        tracking=tracking,
        unwrap=unwrap,
    ).to(device)
    prior = np.zeros((1, VERTICES, 3), np.float32) if tracking else None
    one = frame_inputs(frame, views, bucket, prior)
    if tracking:
        with FrameGraph(function, function.input_specs(), device=device, graphs=False, partial=("FRAME",)) as first:
            found = first.run(one)
        one = frame_inputs(frame, views, bucket, found["LANDMARKS"][: int(found["COUNT"][0])])
    specs = {f"{name}_{i}": spec for i in range(frames) for name, spec in function.input_specs().items()}
    return Case(
        frame_name(width_px, height_px, tracking=tracking, frames=frames, textured=unwrap is not None),
        frames,
        lambda: _in_turn(function, frames),
        specs,
        tuple(f"FRAME_{i}" for i in range(frames)),
        {f"{name}_{i}": value for i in range(frames) for name, value in one.items()},
    )


def frame_name(width_px: int, height_px: int, *, tracking: bool, frames: int, textured: bool = False) -> str:
    """Return the name of a :func:`frame_case`."""
    kind = "video frame" if tracking else "photo with texture" if textured else "photo"
    return f"{kind} {width_px}x{height_px}, {frames} at once"


def sample_frame(width_px: int, height_px: int) -> NDArray[np.uint8]:
    """Return the sample photo, scaled down if need be, in the middle of a grey frame UINT8 [height_px,width_px,3].

    Without Pillow it is noise: the same work for the GPU, but no face to compare.
    """
    if is_stand_in("PIL"):
        return np.random.default_rng(_SEED).integers(0, 256, (height_px, width_px, 3), np.uint8)
    from PIL import Image  # noqa: PLC0415

    photo = Image.open(SAMPLE_PHOTO).convert("RGB")
    photo.thumbnail((width_px, height_px))
    frame = Image.new("RGB", (width_px, height_px), (_BACKGROUND,) * 3)
    frame.paste(photo, ((width_px - photo.width) // 2, (height_px - photo.height) // 2))
    return np.asarray(frame, np.uint8)


def _in_turn(function: FrameFunction, frames: int) -> Function:
    def run(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        results = {}
        for i in range(frames):
            one = {name: inputs[f"{name}_{i}"] for name in function.input_specs()}
            results.update({f"{name}_{i}": value for name, value in function(one).items()})
        return results

    return run
