"""Put the inside of a convolutional network into FP16, as ONNX that is typed through and through.

TensorRT 11 and TensorRT for RTX have no FP16 builder flag any more: an engine computes in the types that the network
names. So the types are set here, once, for every TensorRT.

The first layers' pixel arithmetic and the last layer of each output with all that follows it (anchor decoding, sigmoid)
stay FP32: a coordinate of 128..256 px has a step of 0.125 px in FP16, and these layers are a small part of the work.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from facegraph_server.errors import ModelBuildError

_HEAVY = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_TYPE_PRESERVING = _HEAVY | {
    "Add", "AveragePool", "BatchNormalization", "Clip", "Concat", "DepthToSpace", "Div", "Flatten", "GlobalAveragePool",
    "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "MaxPool", "Mul", "PRelu", "Pad", "Relu", "Reshape", "Resize",
    "Sigmoid", "Slice", "SpaceToDepth", "Split", "Squeeze", "Sub", "Tanh", "Transpose", "Unsqueeze",
}  # fmt: skip
_ALWAYS_FP32_INPUTS = {"Resize": {1, 2}}  # roi and scales
_FP16_MAX = float(np.finfo(np.float16).max)


def to_half(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy that computes in FP16 from its first convolution up to, not including, the last of each branch.

    Args:
        model: FP32 network without control flow, nodes in topological order. Its inputs and outputs keep their types.

    Raises:
        ModelBuildError: a weight does not fit FP16.

    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    halves = _half_nodes(graph)
    floats = _float_tensors(model)
    caster = _Caster({i.name: i for i in graph.initializer})

    nodes: list[NodeProto] = []
    half_tensors: set[str] = set()
    for index, node in enumerate(graph.node):
        keep = _ALWAYS_FP32_INPUTS.get(node.op_type, set())
        for position, name in enumerate(node.input):
            is_half = name in half_tensors
            wants_half = index in halves and position not in keep
            if name in floats and is_half != wants_half:
                node.input[position] = caster.cast(name, to_half=wants_half, nodes=nodes)
        if index in halves:
            half_tensors.update(name for name in node.output if name in floats)
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(caster.new_initializers)
    del graph.value_info[:]
    used = {name for node in nodes for name in node.input}
    kept = [i for i in graph.initializer if i.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    onnx.checker.check_model(result, full_check=True)
    return result


def _half_nodes(graph: onnx.GraphProto) -> set[int]:
    """Return the indices of the nodes at or after a heavy one and before another."""
    consumers: dict[str, list[int]] = defaultdict(list)
    for index, node in enumerate(graph.node):
        for name in node.input:
            consumers[name].append(index)
    after: set[int] = set()
    for index, node in enumerate(graph.node):
        if node.op_type in _HEAVY or index in after:
            after.add(index)
            after.update(i for name in node.output for i in consumers[name])
    before: set[int] = set()
    for index in reversed(range(len(graph.node))):
        followers = [i for name in graph.node[index].output for i in consumers[name]]
        if any(i in before or graph.node[i].op_type in _HEAVY for i in followers):
            before.add(index)
    return {i for i in after & before if graph.node[i].op_type in _TYPE_PRESERVING}


def _float_tensors(model: onnx.ModelProto) -> set[str]:
    graph = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    values = [*graph.value_info, *graph.input, *graph.output]
    names = {v.name for v in values if v.type.tensor_type.elem_type == TensorProto.FLOAT}
    return names | {i.name for i in graph.initializer if i.data_type == TensorProto.FLOAT}


class _Caster:
    """Makes one FP16 (or FP32) twin of a tensor and remembers it."""

    def __init__(self, initializers: dict[str, TensorProto]) -> None:
        self._initializers = initializers
        self._twins: dict[str, str] = {}
        self.new_initializers: list[TensorProto] = []

    def cast(self, name: str, *, to_half: bool, nodes: list[NodeProto]) -> str:
        if name in self._twins:
            return self._twins[name]
        twin = f"{name}_{'fp16' if to_half else 'fp32'}"
        if name in self._initializers:
            values = numpy_helper.to_array(self._initializers[name])
            if np.abs(values).max(initial=0) > _FP16_MAX:
                raise ModelBuildError(
                    f"the constant {name!r} has values beyond {_FP16_MAX:g}, the largest of FP16; "
                    "build the engine with precision fp32 or tf32"
                )
            self.new_initializers.append(numpy_helper.from_array(values.astype(np.float16), twin))
        else:
            to = TensorProto.FLOAT16 if to_half else TensorProto.FLOAT
            nodes.append(helper.make_node("Cast", [name], [twin], name=f"{twin}_cast", to=to))
        self._twins[name] = twin
        return twin
