"""The two networks as ONNX models with everything of fixed shape inside.

Inside (so that a TensorRT engine, and its CUDA graph, holds it): pixel normalisation, the network, anchor
decoding, the sigmoid. Outside: letterboxing, non-maximum suppression and cropping, which depend on the picture.

Both take UINT8 NHWC with a free batch dimension: a quarter of the bytes of FP32 at the engine's door.
"""

from __future__ import annotations

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from facegraph_server.contract import DETECTOR_SIZE_PX, KEYPOINTS, MESH_SIZE_PX, VERTICES
from facegraph_server.tflite_onnx import IR_VERSION, OPSET, OnnxGraph, TfliteTranslator

# MediaPipe's back-camera BlazeFace: (feature-map stride in px, anchors per cell), from its SSD anchor options.
_ANCHOR_LAYERS = ((16, 2), (32, 6))


DETECTOR_NATIVE_SIZE_PX = 256
"""The input size of the original detector."""


def detector_anchors(size_px: int = DETECTOR_SIZE_PX) -> NDArray[np.float32]:
    """Return the anchor centres, FP32 [A,2], x and y in px of an input of ``size_px``; A is 504 for 192."""
    centres = []
    for stride_px, per_cell in _ANCHOR_LAYERS:
        cells = size_px // stride_px
        y, x = np.mgrid[:cells, :cells]
        grid = (np.stack([x, y], -1).reshape(-1, 2) + 0.5) * stride_px
        centres.append(np.repeat(grid, per_cell, axis=0))
    return np.asarray(np.concatenate(centres), np.float32)


def build_detector(tflite_data: bytes, size_px: int = DETECTOR_SIZE_PX) -> onnx.ModelProto:
    """Build the face detector.

    The network is convolutional throughout: it runs at ``size_px`` below its native 256 with the same weights, and
    finds faces by their size in px all the same (measured, see docs/detector.md).

    Input ``DETECTOR_INPUT`` UINT8 [B,size_px,size_px,3] RGB. Outputs, in px of the input: ``BOXES`` FP32 [B,A,4] xyxy,
    ``KEYPOINTS`` FP32 [B,A,6,2] (see :data:`facegraph_server.contract.KEYPOINTS`), ``SCORES`` FP32 [B,A] in 0..1.
    Decoding after MediaPipe's TensorsToDetectionsCalculator.

    Args:
        tflite_data: the original network.
        size_px: side of the input, a multiple of 32.
    """
    graph = OnnxGraph()
    pixels = _normalise(graph, "DETECTOR_INPUT", scale=1 / 127.5, offset=-1.0)
    outputs = {shape[-1]: name for name, shape in TfliteTranslator(tflite_data, graph, "detector").translate(pixels)}
    anchors = detector_anchors(size_px)

    raw = graph.node(
        "Reshape",
        [outputs[4 + 2 * KEYPOINTS], graph.constant("points_shape", np.array([0, -1, 2 + KEYPOINTS, 2]))],
        "points",
    )
    split = helper.make_node(
        "Split",
        [raw, graph.constant("split_sizes", np.array([1, 1, KEYPOINTS]))],
        ["offset", "size", "offsets"],
        axis=2,
    )
    graph.nodes.append(split)
    anchor = graph.constant("anchors", anchors.reshape(1, -1, 1, 2))
    centre = graph.node("Add", ["offset", anchor], "centre")
    half = graph.node("Mul", ["size", graph.constant("half", np.array(0.5, np.float32))], "half_size")
    corners = [graph.node("Sub", [centre, half], "top_left"), graph.node("Add", [centre, half], "bottom_right")]
    stacked = graph.node("Concat", corners, "corners", axis=2)
    graph.node("Reshape", [stacked, graph.constant("boxes_shape", np.array([0, -1, 4]))], "BOXES")
    graph.node("Add", ["offsets", anchor], "KEYPOINTS")

    limits = [
        graph.constant("logit_min", np.array(-100, np.float32)),
        graph.constant("logit_max", np.array(100, np.float32)),
    ]
    logits = graph.node("Clip", [outputs[1], *limits], "logits")
    probability = graph.node("Sigmoid", [logits], "probability")
    graph.node("Reshape", [probability, graph.constant("scores_shape", np.array([0, -1]))], "SCORES")

    n = len(anchors)
    return _model(
        graph,
        "face_detector",
        ("DETECTOR_INPUT", size_px),
        {"BOXES": (n, 4), "KEYPOINTS": (n, KEYPOINTS, 2), "SCORES": (n,)},
    )


def build_mesh(tflite_data: bytes) -> onnx.ModelProto:
    """Build the landmark network.

    Input ``CROPS`` UINT8 [B,192,192,3] RGB. Outputs: ``CROP_LANDMARKS`` FP32 [B,468,3], x, y and z in px of the
    crop, and ``PRESENCE`` FP32 [B,1], the probability that the crop holds a face.
    """
    graph = OnnxGraph()
    pixels = _normalise(graph, "CROPS", scale=1 / 255.0, offset=0.0)
    outputs = {shape[-1]: name for name, shape in TfliteTranslator(tflite_data, graph, "mesh").translate(pixels)}
    graph.node(
        "Reshape",
        [outputs[3 * VERTICES], graph.constant("landmarks_shape", np.array([0, VERTICES, 3]))],
        "CROP_LANDMARKS",
    )
    logits = graph.node("Flatten", [outputs[1]], "presence_logits", axis=1)
    graph.node("Sigmoid", [logits], "PRESENCE")
    return _model(graph, "face_mesh", ("CROPS", MESH_SIZE_PX), {"CROP_LANDMARKS": (VERTICES, 3), "PRESENCE": (1,)})


def _normalise(graph: OnnxGraph, input_name: str, *, scale: float, offset: float) -> str:
    """Append UINT8 NHWC -> FP32 NCHW and ``x * scale + offset``."""
    real = graph.node("Cast", [input_name], "pixels_fp32", to=TensorProto.FLOAT)
    planes = graph.node("Transpose", [real], "pixels_nchw", perm=(0, 3, 1, 2))
    scaled = graph.node("Mul", [planes, graph.constant("pixel_scale", np.array(scale, np.float32))], "pixels_scaled")
    if offset == 0.0:
        return scaled
    return graph.node("Add", [scaled, graph.constant("pixel_offset", np.array(offset, np.float32))], "pixels")


def _model(
    graph: OnnxGraph, name: str, source: tuple[str, int], outputs: dict[str, tuple[int, ...]]
) -> onnx.ModelProto:
    input_name, size_px = source
    proto = helper.make_graph(
        graph.nodes,
        name,
        [helper.make_tensor_value_info(input_name, TensorProto.UINT8, ["B", size_px, size_px, 3])],
        [helper.make_tensor_value_info(o, TensorProto.FLOAT, ["B", *shape]) for o, shape in outputs.items()],
        graph.initializers,
    )
    model = helper.make_model(
        proto, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="facegraph"
    )
    onnx.checker.check_model(model, full_check=True)
    return model
