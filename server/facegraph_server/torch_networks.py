"""The two networks as torch modules, built from the same ONNX files that the engines are built from.

Inside the CUDA graph. The ONNX file is the one source of the weights and of the arithmetic: this module holds a
translation of each operator that our two files use and refuses every other one. Nothing in a forward pass depends on
the values of a tensor, and every shape follows from the input's shape.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import torch
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from onnx import numpy_helper
from torch import Tensor, nn
from torch.nn import functional

from facegraph_server.errors import ModelBuildError

Run = Callable[..., Any]

_IMAGE_RANK = 4


class _Node(NamedTuple):
    """One ONNX node: its name, attributes and constant inputs (by position; None where an input is a tensor)."""

    name: str
    attributes: dict[str, Any]
    constants: list[NDArray[Any] | None]

    def constant(self, position: int) -> NDArray[Any]:
        """Return the constant at an input position."""
        value = self.constants[position] if position < len(self.constants) else None
        if value is None:
            raise ModelBuildError(f"node {self.name}: input {position} must be a constant")
        return value


class _Step(NamedTuple):
    run: Run
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    dead: tuple[str, ...]


class TorchNetwork(nn.Module):
    """An ONNX network as a torch module: UINT8 [B,S,S,3] in, the ONNX file's outputs by name out.

    Weights are FP32 buffers; convolutions are computed in FP32, never TF32. The module has no state besides.

    Args:
        path: the ONNX file.
        channels_last: lay activations out as NHWC; faster where the convolution library prefers it.

    Raises:
        ModelBuildError: the file cannot be read or holds an operator, or a use of one, that is not translated.

    """

    def __init__(self, path: Path, *, channels_last: bool = False) -> None:
        super().__init__()
        try:
            graph = onnx.load(str(path)).graph
        except (OSError, DecodeError) as error:
            raise ModelBuildError(
                f"cannot read {path} ({error}); build the models first: python scripts/build_models.py"
            ) from error
        self.layout = torch.channels_last if channels_last else torch.contiguous_format
        self._constants = {i.name: np.array(numpy_helper.to_array(i)) for i in graph.initializer}
        inputs = [i.name for i in graph.input if i.name not in self._constants]
        if len(inputs) != 1:
            raise ModelBuildError(f"{path.name} has the inputs {inputs}; a network here has exactly one")
        self._input = inputs[0]
        self._outputs = tuple(o.name for o in graph.output)
        self._held: list[str] = []
        self._steps = self._translate(graph)

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:
        """Run the network on UINT8 [B,S,S,3]; return its outputs by their ONNX names."""
        values: dict[str, Any] = {self._input: pixels, **self._buffers}
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            for step in self._steps:
                result = step.run(*(values[name] for name in step.inputs))
                values.update(zip(step.outputs, result if len(step.outputs) > 1 else (result,), strict=True))
                for name in step.dead:
                    del values[name]
        return {name: values[name] for name in self._outputs}

    def _translate(self, graph: Any) -> list[_Step]:
        nodes = list(graph.node)
        last_use = {name: i for i, node in enumerate(nodes) for name in node.input if name not in self._constants}
        steps = []
        for i, node in enumerate(nodes):
            if (translate := _OPERATORS.get(node.op_type)) is None:
                raise ModelBuildError(
                    f"the operator {node.op_type} of node {node.name or node.output[0]} is not translated to torch; "
                    f"known: {', '.join(sorted(_OPERATORS))}"
                )
            attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            described = _Node(
                node.name or node.output[0], attributes, [self._constants.get(name) for name in node.input]
            )
            dynamic = tuple(name for name in node.input if name and name not in self._constants)
            dead = tuple({name for name in dynamic if last_use[name] == i and name not in self._outputs})
            self._held.clear()
            run = translate(self, described)
            steps.append(_Step(run, (*dynamic, *self._held), tuple(node.output), dead))
        return steps

    def hold(self, value: NDArray[Any]) -> None:
        """Keep a constant of the node at hand as a buffer, which moves with the module: the node's next tensor."""
        tensor = torch.from_numpy(np.array(value))
        if tensor.dim() == _IMAGE_RANK:
            tensor = tensor.contiguous(memory_format=self.layout)
        self._held.append(f"constant_{len(self._buffers)}")
        self.register_buffer(self._held[-1], tensor)


def _convolution(network: TorchNetwork, node: _Node) -> Run:
    attributes = node.attributes
    if attributes.get("auto_pad", b"NOTSET") != b"NOTSET":
        raise ModelBuildError(f"node {node.name}: auto_pad is not translated; write the pads out")
    network.hold(node.constant(1))
    network.hold(node.constant(2))
    stride, dilation = tuple(attributes.get("strides", (1, 1))), tuple(attributes.get("dilations", (1, 1)))
    group = int(attributes.get("group", 1))
    top, left, bottom, right = attributes.get("pads", (0, 0, 0, 0))
    symmetric = (top, left) == (bottom, right)
    padding = (top, left) if symmetric else (0, 0)

    def run(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if not symmetric:
            x = functional.pad(x, (left, right, top, bottom))
        return functional.conv2d(x, weight, bias, stride, padding, dilation, group)

    return run


def _max_pool(_network: TorchNetwork, node: _Node) -> Run:
    kernel, stride = tuple(node.attributes["kernel_shape"]), tuple(node.attributes.get("strides", (1, 1)))
    if any(node.attributes.get("pads", ())) or node.attributes.get("ceil_mode", 0):
        raise ModelBuildError(f"node {node.name}: MaxPool with pads or ceil_mode is not translated")
    return lambda x: functional.max_pool2d(x, kernel, stride)


def _pad(_network: TorchNetwork, node: _Node) -> Run:
    if node.attributes.get("mode", b"constant") != b"constant":
        raise ModelBuildError(f"node {node.name}: only zero padding is translated")
    if len(node.constants) > 2 and float(node.constant(2)):  # noqa: PLR2004  the third input is the padding's value
        raise ModelBuildError(f"node {node.name}: only zero padding is translated")
    begins, ends = node.constant(1).reshape(2, -1).tolist()
    widths = [width for pair in zip(reversed(begins), reversed(ends), strict=True) for width in pair]
    return lambda x: functional.pad(x, widths)


def _prelu(network: TorchNetwork, node: _Node) -> Run:
    network.hold(node.constant(1).reshape(-1))
    return functional.prelu


def _binary(operation: Callable[[Tensor, Tensor], Tensor]) -> Callable[[TorchNetwork, _Node], Run]:
    def translate(network: TorchNetwork, node: _Node) -> Run:
        left, right = node.constants
        if left is not None:
            raise ModelBuildError(f"node {node.name}: a constant is expected on the right")
        if right is None:
            return operation
        # A number in the kernel's arguments costs no memory access.
        if right.size == 1:
            number = float(right.reshape(()))
            return lambda x: operation(x, number)  # type: ignore[arg-type]
        network.hold(right)
        return operation

    return translate


def _cast(_network: TorchNetwork, node: _Node) -> Run:
    if node.attributes["to"] != onnx.TensorProto.FLOAT:
        raise ModelBuildError(f"node {node.name}: only Cast to FP32 is translated")
    return lambda x: x.float()


def _transpose(network: TorchNetwork, node: _Node) -> Run:
    order = tuple(node.attributes["perm"])
    if order == (0, 3, 1, 2):
        layout = network.layout  # from pixels to planes: everything after it keeps the layout
        return lambda x: x.permute(order).contiguous(memory_format=layout)
    return lambda x: x.permute(order)


def _reshape(_network: TorchNetwork, node: _Node) -> Run:
    shape = node.constant(1).tolist()

    def run(x: Tensor) -> Tensor:
        return x.reshape([x.shape[i] if length == 0 else length for i, length in enumerate(shape)])

    return run


def _concat(_network: TorchNetwork, node: _Node) -> Run:
    axis = node.attributes["axis"]
    return lambda *parts: torch.cat(parts, axis)


def _split(_network: TorchNetwork, node: _Node) -> Run:
    sizes, axis = node.constant(1).tolist(), node.attributes.get("axis", 0)
    return lambda x: torch.split(x, sizes, axis)


def _clip(_network: TorchNetwork, node: _Node) -> Run:
    low, high = (float(node.constant(i).reshape(())) for i in (1, 2))
    return lambda x: x.clamp(low, high)


def _flatten(_network: TorchNetwork, node: _Node) -> Run:
    axis = node.attributes.get("axis", 1)
    if axis != 1:
        raise ModelBuildError(f"node {node.name}: only Flatten with axis 1 is translated")
    return lambda x: x.flatten(1)


def _function(operation: Callable[[Tensor], Tensor]) -> Callable[[TorchNetwork, _Node], Run]:
    return lambda _network, _node: operation


_OPERATORS: dict[str, Callable[[TorchNetwork, _Node], Run]] = {
    "Add": _binary(torch.add),
    "Cast": _cast,
    "Clip": _clip,
    "Concat": _concat,
    "Conv": _convolution,
    "Flatten": _flatten,
    "MaxPool": _max_pool,
    "Mul": _binary(torch.mul),
    "PRelu": _prelu,
    "Pad": _pad,
    "Relu": _function(torch.relu),
    "Reshape": _reshape,
    "Sigmoid": _function(torch.sigmoid),
    "Split": _split,
    "Sub": _binary(torch.sub),
    "Transpose": _transpose,
}
