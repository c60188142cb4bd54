"""The FP16 form of the networks: what is FP16, and how far its answers are from FP32."""

from __future__ import annotations

import numpy as np
import onnx
import openvino
import pytest
from facegraph_server.errors import ModelBuildError
from facegraph_server.half_precision import to_half
from facegraph_server.paths import SAMPLE_PHOTO, onnx_path
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from PIL import Image

# Half a pixel of the crop would be visible; these are the steps of FP16 inside, measured 0.02, 0.1 and 0.004.
TOLERANCES = {"CROP_LANDMARKS": 0.05, "PRESENCE": 1e-3, "BOXES": 0.2, "KEYPOINTS": 0.2, "SCORES": 0.01}


def load(name: str) -> onnx.ModelProto:
    path = onnx_path(name)
    if not path.is_file():
        pytest.fail(f"{path} is missing: run `make models` before the tests")
    return onnx.load(path)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")  # the reference's sigmoid
@pytest.mark.parametrize("name", ["face_detector", "face_mesh"])
def test_answers_agree_with_fp32(name: str) -> None:
    model = load(name)
    half = to_half(model)
    image = np.asarray(Image.open(SAMPLE_PHOTO).convert("RGB"))[None, 20:212, 130:322].copy()
    compiled = openvino.Core().compile_model(
        openvino.Core().read_model(model.SerializeToString()), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    expected = {output.any_name: value for output, value in compiled(image).items()}
    answers = ReferenceEvaluator(half).run(None, {model.graph.input[0].name: image})
    for output, answer in zip(model.graph.output, answers, strict=True):
        assert answer.dtype == np.float32
        assert np.abs(answer - expected[output.name]).max() <= TOLERANCES[output.name], output.name
    assert np.abs(answers[0] - expected[half.graph.output[0].name]).max() > 1e-3  # it did compute in FP16


@pytest.mark.parametrize(("name", "heads"), [("face_detector", 4), ("face_mesh", 2)])
def test_all_but_the_last_convolutions_are_fp16(name: str, heads: int) -> None:
    model = load(name)
    half = to_half(model)
    constants = {i.name: i.data_type for i in half.graph.initializer}
    types = [constants[n.input[1]] for n in half.graph.node if n.op_type == "Conv"]
    assert types.count(TensorProto.FLOAT) == heads
    assert types.count(TensorProto.FLOAT16) == len(types) - heads > 40
    assert (list(half.graph.input), list(half.graph.output)) == (list(model.graph.input), list(model.graph.output))
    assert len(half.graph.node) - len(model.graph.node) <= 1 + heads  # casts: in once, out before each head


def test_weight_beyond_fp16_is_refused() -> None:
    weight = np.ones((4, 4), np.float32)
    big = numpy_helper.from_array(weight * 1e5, "w0")
    small = numpy_helper.from_array(weight, "w1")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w0"], ["h"]), helper.make_node("MatMul", ["h", "w1"], ["y"])],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["B", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["B", 4])],
        [big, small],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(ModelBuildError, match=r"constant 'w0' has values beyond 65504.*precision fp32 or tf32"):
        to_half(model)
