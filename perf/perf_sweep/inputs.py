"""What the requests carry: real faces, as perf_analyzer reads them.

Noise would measure nothing: the detector finds no face in it, so most of the steps would have no work. The networks get
the views and crops that the steps before them make of the same photos.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from facegraph_server.atomic_file import write_atomically
from facegraph_server.contract import DEFAULT_TEXTURE_SIZE_PX, VERTICES
from facegraph_server.cpu_runtime import CpuNetwork
from facegraph_server.detection import merge_candidates
from facegraph_server.detector_views import choose_views, render_views
from facegraph_server.face_crop import crop_faces
from facegraph_server.faces import collect_faces
from facegraph_server.image_decode import decode_image
from facegraph_server.paths import onnx_path
from numpy.typing import NDArray

from perf_sweep.errors import SweepError

LENGTH_BYTES = 4
"""What perf_analyzer reads before the bytes of an element of a BYTES tensor: their number, little-endian."""

_TEXTURE_CHANNELS = 4  # RGB, and the coverage
_HEADROOM_BYTES = 1 << 16

Step = Mapping[str, Mapping[str, Any]]
"""One request: the tensors by their names, as perf_analyzer's JSON writes them."""


@dataclass(frozen=True)
class ModelInput:
    """What one model is sent.

    Attributes:
        steps: requests, sent in turn.
        largest_output_bytes: of one row: perf_analyzer's shared memory has to hold it.

    """

    steps: tuple[Step, ...]
    largest_output_bytes: int

    def write(self, path: Path) -> None:
        """Write the file for ``--input-data``."""
        write_atomically(path, json.dumps({"data": self.steps}).encode())


def make_inputs(photos: Mapping[str, bytes]) -> dict[str, ModelInput]:
    """Return what each model is sent.

    Args:
        photos: encoded photos by name; each must show a face.

    Raises:
        SweepError: no face was found in a photo.
        ImageError: a photo cannot be read.
        ModelBuildError: the networks have not been built.

    """
    detector, mesh = CpuNetwork(onnx_path("face_detector")), CpuNetwork(onnx_path("face_mesh"))
    steps: dict[str, list[Step]] = {}
    most_faces = 0
    no_tiles = tensor(np.array([0], np.uint8))  # perf_analyzer uses shared memory only where no input is left out
    for name, photo in photos.items():
        image = decode_image(photo)
        size_wh = (image.shape[1], image.shape[0])
        views = choose_views(*size_wh, fine=False)
        rendered = render_views(image, views)
        found = detector.run(rendered)
        candidates = (found["BOXES"], found["KEYPOINTS"], found["SCORES"], np.array(views, np.float32))
        crops = crop_faces(image, merge_candidates(*candidates, image_wh=size_wh))
        answer = mesh.run(crops.crops)
        faces = collect_faces(answer["CROP_LANDMARKS"], answer["PRESENCE"][:, 0], *crops[1:])
        if not len(faces.landmarks_px):
            raise SweepError(f"no face was found in {name}: most steps would have nothing to do; name another photo")
        most_faces = max(most_faces, len(faces.landmarks_px))
        encoded = {"IMAGE": text_tensor(photo), "SEARCH_TILES": no_tiles}
        size = {"TEXTURE_SIZE": tensor(np.array([DEFAULT_TEXTURE_SIZE_PX], np.int32))}
        steps.setdefault("face_landmarks", []).append(encoded)
        steps.setdefault("face_reconstruction", []).append(encoded | size)
        steps.setdefault("face_tracking", []).append({"FRAME": tensor(image), "PRIOR": tensor(faces.landmarks_px)})
        steps.setdefault("face_detector", []).extend({"DETECTOR_INPUT": tensor(view)} for view in rendered)
        steps.setdefault("face_mesh", []).extend({"CROPS": tensor(crop)} for crop in crops.crops)
    texture_bytes = most_faces * _TEXTURE_CHANNELS * DEFAULT_TEXTURE_SIZE_PX**2
    landmark_bytes = most_faces * VERTICES * 3 * 4
    network_bytes = max(output.nbytes for output in (*found.values(), *answer.values()))
    largest = {"face_reconstruction": texture_bytes, "face_detector": network_bytes, "face_mesh": network_bytes}
    return {
        model: ModelInput(tuple(model_steps), largest.get(model, landmark_bytes) + _HEADROOM_BYTES)
        for model, model_steps in steps.items()
    }


def tensor(array: NDArray[np.generic]) -> dict[str, Any]:
    """Return a tensor of numbers: row-major, little-endian."""
    return {"b64": base64.b64encode(np.ascontiguousarray(array).tobytes()).decode(), "shape": list(array.shape)}


def text_tensor(text: bytes) -> dict[str, Any]:
    """Return a BYTES tensor of one element. perf_analyzer takes the four bytes of its length from the file too."""
    content = len(text).to_bytes(LENGTH_BYTES, "little") + text
    return {"b64": base64.b64encode(content).decode(), "shape": [1]}


def read_photos(paths: Sequence[Path]) -> dict[str, bytes]:
    """Return the bytes of photos by their names.

    Raises:
        SweepError: a file cannot be read.

    """
    try:
        return {str(path): path.read_bytes() for path in paths}
    except OSError as error:
        raise SweepError(f"cannot read {error.filename}: {error.strerror}") from error
