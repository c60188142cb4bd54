"""The networks in torch answer as the same ONNX files do in OpenVINO."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from facegraph_server.errors import ModelBuildError
from facegraph_server.paths import NETWORKS, onnx_path
from facegraph_server.torch_networks import TorchNetwork
from onnx import TensorProto, helper, numpy_helper

from tests.server.pipeline import network


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_agree_with_openvino(name: str, batch: int, channels_last: bool) -> None:
    pixels = np.random.default_rng(batch).integers(0, 256, (batch, 192, 192, 3), np.uint8)
    expected = network(name).run(pixels)
    with torch.inference_mode():
        found = TorchNetwork(onnx_path(name), channels_last=channels_last)(torch.from_numpy(pixels))
    assert found.keys() == expected.keys()
    for output, value in expected.items():
        assert found[output].dtype == torch.float32
        assert found[output].shape == value.shape
        value_range = 1.0 if output in ("SCORES", "PRESENCE") else np.ptp(value)
        assert np.abs(found[output].numpy() - value).max() <= 1e-4 * value_range


@pytest.mark.parametrize("name", NETWORKS)
def test_a_row_of_a_batch_is_what_it_is_alone(name: str) -> None:
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 192, 192, 3), np.uint8))
    net = TorchNetwork(onnx_path(name))
    with torch.inference_mode():
        together, alone = net(pixels), net(pixels[1:2])
    for output, value in alone.items():
        torch.testing.assert_close(together[output][1:2], value, rtol=1e-5, atol=1e-4)


def test_every_weight_is_a_buffer_that_moves_with_the_module() -> None:
    net = TorchNetwork(onnx_path("face_mesh"))
    graph = onnx.load(onnx_path("face_mesh")).graph
    stored = {i.name: numpy_helper.to_array(i).size for i in graph.initializer}
    weights = sum(stored[name] for node in graph.node if node.op_type in ("Conv", "PRelu") for name in node.input[1:])
    assert sum(buffer.numel() for buffer in net.buffers()) == weights
    assert list(net.parameters()) == []
    found = copy.deepcopy(net).to("meta")(torch.empty((2, 192, 192, 3), dtype=torch.uint8, device="meta"))
    assert {(value.device.type, len(value)) for value in found.values()} == {("meta", 2)}


def save(tmp_path: Path, nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray] | None = None) -> Path:
    tensor = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", 3, 4, 4]) for name in ("x", "y")]
    stored = [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()]
    graph = helper.make_graph(nodes, "toy", tensor[:1], tensor[1:], stored)
    path = tmp_path / "toy.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), str(path))
    return path


@pytest.mark.parametrize(
    ("node", "constants", "message"),
    [
        pytest.param(helper.make_node("Gelu", ["x"], ["y"], name="g"), {}, "Gelu of node g", id="operator"),
        pytest.param(helper.make_node("Reshape", ["x", "s"], ["y"]), {}, "must be a constant", id="dynamic-shape"),
        pytest.param(
            helper.make_node("Sub", ["c", "x"], ["y"]), {"c": np.float32([1])}, "on the right", id="constant-first"
        ),
        pytest.param(helper.make_node("Cast", ["x"], ["y"], to=TensorProto.INT32), {}, "to FP32", id="cast"),
        pytest.param(
            helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], ceil_mode=1), {}, "ceil_mode", id="max-pool"
        ),
        pytest.param(
            helper.make_node("Conv", ["x", "w", "b"], ["y"], auto_pad="SAME_UPPER"),
            {"w": np.zeros((3, 3, 1, 1), np.float32), "b": np.zeros(3, np.float32)},
            "auto_pad",
            id="auto-pad",
        ),
    ],
)
def test_what_is_not_translated_is_named(
    tmp_path: Path, node: onnx.NodeProto, constants: dict[str, np.ndarray], message: str
) -> None:
    with pytest.raises(ModelBuildError, match=message):
        TorchNetwork(save(tmp_path, [node], constants))


@pytest.mark.parametrize("content", [None, b"not a model"], ids=["missing", "damaged"])
def test_an_unreadable_file_says_how_to_build_it(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "model.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelBuildError, match=r"scripts/build_models\.py"):
        TorchNetwork(path)
