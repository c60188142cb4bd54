"""Build the ONNX files of both networks and check them against the original runtime.

The check runs the original TFLite file under LiteRT on random pixels and on the sample photo, and refuses to write a
model that differs by more than rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import openvino
from ai_edge_litert.interpreter import Interpreter
from numpy.typing import NDArray

from facegraph_server import weights
from facegraph_server.atomic_file import write_atomically
from facegraph_server.contract import KEYPOINTS, MESH_SIZE_PX, VERTICES
from facegraph_server.errors import ModelBuildError
from facegraph_server.image_decode import decode_image
from facegraph_server.networks import DETECTOR_NATIVE_SIZE_PX, build_detector, build_mesh, detector_anchors
from facegraph_server.paths import MODEL_REPOSITORY, SAMPLE_PHOTO, WEIGHTS, onnx_path

COORDINATE_TOLERANCE_PX = 2e-3
SCORE_TOLERANCE = 1e-5
_RANDOM_IMAGES = 3


@dataclass(frozen=True)
class _Network:
    """How one network is made from its weights, and how the original answers."""

    source: weights.Weights
    build: Callable[[bytes], onnx.ModelProto]
    build_native: Callable[[bytes], onnx.ModelProto]
    reference: Callable[[bytes, NDArray[np.uint8]], dict[str, NDArray[np.float32]]]
    native_size_px: int


def build_models(
    report: Callable[[str], None],
    *,
    model_repository: Path = MODEL_REPOSITORY,
    weights_folder: Path = WEIGHTS,
    force: bool = False,
) -> list[Path]:
    """Write ``model.onnx`` of both networks into the model repository; keep those that are up to date.

    Args:
        report: called with a line of text for each step.
        model_repository: Triton's model repository.
        weights_folder: where the networks' original files are kept.
        force: build also what is up to date.

    Returns:
        The ONNX files.

    Raises:
        WeightsError: the original files cannot be had.
        ModelBuildError: a network does not translate, or does not agree with the original.

    """
    paths = []
    for name, network in _NETWORKS.items():
        path = onnx_path(name, model_repository)
        data = weights.fetch_weights(weights_folder, network.source, report)
        report(f"translating {network.source.name} to ONNX")
        serialized = network.build(data).SerializeToString(deterministic=True)
        if path.is_file() and path.read_bytes() == serialized and not force:
            report(f"{path} is up to date")
        else:
            report(f"checking {name} against the original runtime")
            difference = check_network(name, data)
            write_atomically(path, serialized)
            report(f"wrote {path} ({len(serialized) / 1e6:.1f} MB); largest difference: {difference}")
        paths.append(path)
    return paths


def check_network(name: str, tflite_data: bytes) -> str:
    """Compare the translation with the original on random and real pixels, at the original's input size.

    Returns:
        The largest difference of each output, as text.

    Raises:
        ModelBuildError: an output differs by more than rounding.

    """
    network = _NETWORKS[name]
    real = _around_sample_face(network.native_size_px)
    noise = np.random.default_rng(0).integers(0, 256, (_RANDOM_IMAGES, *real.shape[1:]), np.uint8)
    images = np.concatenate([real, noise])
    core = openvino.Core()
    model = core.read_model(network.build_native(tflite_data).SerializeToString())
    compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    result = compiled(images)
    expected = [network.reference(tflite_data, image) for image in images]
    differences = {}
    for output in compiled.outputs:
        key = output.any_name
        differences[key] = float(np.abs(result[output] - np.stack([e[key] for e in expected])).max())
        tolerance = SCORE_TOLERANCE if key in ("SCORES", "PRESENCE") else COORDINATE_TOLERANCE_PX
        if not differences[key] <= tolerance:  # also true for NaN
            raise ModelBuildError(
                f"{name}: the output {key} of the ONNX model differs from the original by {differences[key]:.2g}, "
                f"more than {tolerance:g}; the translation in tflite_onnx.py is at fault, nothing was written"
            )
    return ", ".join(f"{key} {value:.1g}" for key, value in differences.items())


def _run_tflite(data: bytes, pixels: NDArray[np.float32]) -> dict[int, NDArray[np.float32]]:
    """Run one image through LiteRT; the outputs by the length of their last dimension."""
    interpreter = Interpreter(model_content=data, num_threads=1)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], pixels[None])
    interpreter.invoke()
    outputs = (interpreter.get_tensor(d["index"])[0] for d in interpreter.get_output_details())
    return {output.shape[-1]: output for output in outputs}


def _detector_reference(data: bytes, image: NDArray[np.uint8]) -> dict[str, NDArray[np.float32]]:
    outputs = _run_tflite(data, image.astype(np.float32) / 127.5 - 1)
    points = outputs[4 + 2 * KEYPOINTS].reshape(-1, 2 + KEYPOINTS, 2)
    anchors = detector_anchors(DETECTOR_NATIVE_SIZE_PX)
    centre, half = points[:, 0] + anchors, points[:, 1] / 2
    return {
        "BOXES": np.concatenate([centre - half, centre + half], axis=1),
        "KEYPOINTS": points[:, 2:] + anchors[:, None],
        "SCORES": _sigmoid(outputs[1].reshape(-1)),
    }


def _mesh_reference(data: bytes, image: NDArray[np.uint8]) -> dict[str, NDArray[np.float32]]:
    outputs = _run_tflite(data, image.astype(np.float32) / 255)
    landmarks = outputs[3 * VERTICES].reshape(VERTICES, 3)
    return {"CROP_LANDMARKS": landmarks, "PRESENCE": _sigmoid(outputs[1].reshape(1))}


def _sigmoid(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray(1 / (1 + np.exp(-np.clip(logits, -100, 100).astype(np.float64))), np.float32)


def _around_sample_face(size_px: int) -> NDArray[np.uint8]:
    """Cut a window of a network's input size, UINT8 [1,size_px,size_px,3], around the sample photo's face."""
    left, top = 130, 20
    photo = decode_image(SAMPLE_PHOTO.read_bytes())
    return photo[None, top : top + size_px, left : left + size_px].copy()


_NETWORKS = {
    "face_detector": _Network(
        weights.DETECTOR,
        build_detector,
        partial(build_detector, size_px=DETECTOR_NATIVE_SIZE_PX),
        _detector_reference,
        DETECTOR_NATIVE_SIZE_PX,
    ),
    "face_mesh": _Network(weights.MESH, build_mesh, build_mesh, _mesh_reference, MESH_SIZE_PX),
}
