"""Translate a TensorFlow Lite face network into an ONNX graph.

Only the operators that the face networks use are known; an unknown one is an error that names it. The
translation is one to one, so the ONNX graph stays comparable with the original runtime node by node:
NHWC tensors become NCHW, TFLite's ``SAME`` padding becomes explicit pads, half-precision constants
become FP32 initialisers.

Operator semantics: TensorFlow Lite schema (``schema.fbs``) and the ONNX operator set 17.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import tflite
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from facegraph_server.errors import ModelBuildError

OPSET = 17
IR_VERSION = 8

_DTYPES = {
    tflite.TensorType.FLOAT32: np.float32,
    tflite.TensorType.FLOAT16: np.float16,
    tflite.TensorType.INT32: np.int32,
}
_OPERATOR_NAMES = {v: k for k, v in vars(tflite.BuiltinOperator).items() if isinstance(v, int)}
_NHWC_TO_NCHW = (0, 3, 1, 2)
_NCHW_TO_NHWC = (0, 2, 3, 1)


@dataclass
class OnnxGraph:
    """A growing ONNX graph: nodes, initialisers, and names that are unique by construction."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)

    def constant(self, name: str, value: NDArray[Any]) -> str:
        """Add an initialiser and return its name."""
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def node(self, op_type: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Add a node with one output and return the output's name."""
        self.nodes.append(helper.make_node(op_type, inputs, [output], name=output, **attributes))
        return output


class TfliteTranslator:
    """Append the nodes of one TFLite network to an :class:`OnnxGraph`.

    Args:
        data: the ``.tflite`` file's bytes.
        graph: where the nodes go.
        prefix: put before every tensor name.

    """

    def __init__(self, data: bytes, graph: OnnxGraph, prefix: str) -> None:
        self._model = tflite.Model.GetRootAsModel(data, 0)
        self._subgraph = self._model.Subgraphs(0)
        self._graph = graph
        self._prefix = prefix
        self._constants: dict[int, NDArray[Any]] = {}
        self._names: dict[int, str] = {}
        self._handlers: dict[str, Callable[[Any], None]] = {
            "CONV_2D": self._conv,
            "DEPTHWISE_CONV_2D": self._depthwise_conv,
            "PRELU": self._prelu,
            "RELU": self._relu,
            "ADD": self._add,
            "MAX_POOL_2D": self._max_pool,
            "PAD": self._pad,
            "RESHAPE": self._reshape,
            "CONCATENATION": self._concatenation,
            "DEQUANTIZE": self._dequantize,
        }

    @property
    def input_shape(self) -> tuple[int, ...]:
        """NHWC shape of the network's one input."""
        return self._shape(self._subgraph.Inputs(0))

    def translate(self, input_name: str) -> list[tuple[str, tuple[int, ...]]]:
        """Append the network, fed by the NCHW FP32 tensor ``input_name``.

        Returns:
            For each output its ONNX name (rank-4 outputs are NCHW) and its shape in the TFLite file (NHWC).

        Raises:
            ModelBuildError: the file uses an operator or a tensor type that this translation does not know.

        """
        self._names[self._subgraph.Inputs(0)] = input_name
        for i in range(self._subgraph.OperatorsLength()):
            operator = self._subgraph.Operators(i)
            code = self._model.OperatorCodes(operator.OpcodeIndex()).BuiltinCode()
            name = _OPERATOR_NAMES.get(code, str(code))
            if name not in self._handlers:
                raise ModelBuildError(
                    f"the TFLite operator {name} has no ONNX translation here; known: {sorted(self._handlers)}"
                )
            self._handlers[name](operator)
        outputs = [self._subgraph.Outputs(i) for i in range(self._subgraph.OutputsLength())]
        return [(self._names[o], self._shape(o)) for o in outputs]

    def _shape(self, index: int) -> tuple[int, ...]:
        return tuple(int(d) for d in self._subgraph.Tensors(index).ShapeAsNumpy())

    def _value(self, index: int) -> NDArray[Any]:
        """Return the constant behind a tensor, in TFLite's layout."""
        if index not in self._constants:
            tensor = self._subgraph.Tensors(index)
            dtype = _DTYPES.get(tensor.Type())
            raw = self._model.Buffers(tensor.Buffer()).DataAsNumpy()
            if dtype is None or isinstance(raw, int):
                raise ModelBuildError(f"the TFLite tensor {self._onnx_name(index)} is not a constant of a known type")
            self._constants[index] = np.frombuffer(raw.tobytes(), dtype).reshape(self._shape(index))
        return self._constants[index]

    def _onnx_name(self, index: int) -> str:
        return f"{self._prefix}/{self._subgraph.Tensors(index).Name().decode()}:{index}"

    def _weight(self, index: int, value: NDArray[Any]) -> str:
        return self._graph.constant(f"{self._onnx_name(index)}", value.astype(np.float32))

    def _emit(self, operator: Any, op_type: str, inputs: list[str], activation: int = 0, **attributes: Any) -> None:
        """Append a node for ``operator``, followed by its fused activation."""
        output = operator.Outputs(0)
        name = self._onnx_name(output)
        if activation == tflite.ActivationFunctionType.NONE:
            self._names[output] = self._graph.node(op_type, inputs, name, **attributes)
        elif activation == tflite.ActivationFunctionType.RELU:
            linear = self._graph.node(op_type, inputs, f"{name}/linear", **attributes)
            self._names[output] = self._graph.node("Relu", [linear], name)
        else:
            raise ModelBuildError(f"the fused activation {activation} of {name} has no ONNX translation here")

    def _window(self, operator: Any, options: Any, kernel_hw: tuple[int, int]) -> dict[str, Any]:
        """Return strides and explicit pads; TFLite puts the odd padding pixel at the end."""
        strides = (options.StrideH(), options.StrideW())
        pads = [0, 0, 0, 0]
        if options.Padding() == tflite.Padding.SAME:
            in_hw = self._shape(operator.Inputs(0))[1:3]
            for axis in range(2):
                out = -(-in_hw[axis] // strides[axis])
                total = max((out - 1) * strides[axis] + kernel_hw[axis] - in_hw[axis], 0)
                pads[axis], pads[axis + 2] = total // 2, total - total // 2
        return {"kernel_shape": kernel_hw, "strides": strides, "pads": pads}

    @staticmethod
    def _options(operator: Any, kind: type[Any]) -> Any:
        options = kind()
        table = operator.BuiltinOptions()
        options.Init(table.Bytes, table.Pos)
        return options

    def _conv(self, operator: Any) -> None:
        options = self._options(operator, tflite.Conv2DOptions)
        weight = self._value(operator.Inputs(1)).transpose(0, 3, 1, 2)  # OHWI -> OIHW
        self._emit_conv(operator, options, weight, group=1)

    def _depthwise_conv(self, operator: Any) -> None:
        options = self._options(operator, tflite.DepthwiseConv2DOptions)
        weight = self._value(operator.Inputs(1)).transpose(3, 0, 1, 2)  # 1HWC -> C1HW
        self._emit_conv(operator, options, weight, group=weight.shape[0])

    def _emit_conv(self, operator: Any, options: Any, weight: NDArray[Any], group: int) -> None:
        window = self._window(operator, options, (weight.shape[2], weight.shape[3]))
        inputs = [
            self._names[operator.Inputs(0)],
            self._weight(operator.Inputs(1), weight),
            self._weight(operator.Inputs(2), self._value(operator.Inputs(2))),
        ]
        self._emit(operator, "Conv", inputs, options.FusedActivationFunction(), group=group, **window)

    def _prelu(self, operator: Any) -> None:
        slope = self._value(operator.Inputs(1)).transpose(2, 0, 1)  # HWC -> CHW
        self._emit(operator, "PRelu", [self._names[operator.Inputs(0)], self._weight(operator.Inputs(1), slope)])

    def _relu(self, operator: Any) -> None:
        self._emit(operator, "Relu", [self._names[operator.Inputs(0)]])

    def _add(self, operator: Any) -> None:
        options = self._options(operator, tflite.AddOptions)
        inputs = [self._names[operator.Inputs(i)] for i in range(2)]
        self._emit(operator, "Add", inputs, options.FusedActivationFunction())

    def _max_pool(self, operator: Any) -> None:
        options = self._options(operator, tflite.Pool2DOptions)
        window = self._window(operator, options, (options.FilterHeight(), options.FilterWidth()))
        self._emit(operator, "MaxPool", [self._names[operator.Inputs(0)]], options.FusedActivationFunction(), **window)

    def _pad(self, operator: Any) -> None:
        amounts = self._value(operator.Inputs(1))[list(_NHWC_TO_NCHW)]  # [4,2]
        pads = self._graph.constant(
            f"{self._onnx_name(operator.Outputs(0))}/pads", amounts.T.reshape(-1).astype(np.int64)
        )
        self._emit(operator, "Pad", [self._names[operator.Inputs(0)], pads])

    def _reshape(self, operator: Any) -> None:
        source, output = operator.Inputs(0), operator.Outputs(0)
        name = self._names[source]
        if len(self._shape(source)) == len(_NCHW_TO_NHWC):
            name = self._graph.node("Transpose", [name], f"{self._onnx_name(output)}/nhwc", perm=_NCHW_TO_NHWC)
        # The batch stays as it is; dimension 1 counts positions, so it follows the input's size.
        shape = np.array((0, -1, *self._shape(output)[2:]), np.int64)
        self._emit(operator, "Reshape", [name, self._graph.constant(f"{self._onnx_name(output)}/shape", shape)])

    def _concatenation(self, operator: Any) -> None:
        options = self._options(operator, tflite.ConcatenationOptions)
        axis = options.Axis()
        if len(self._shape(operator.Outputs(0))) == len(_NCHW_TO_NHWC):
            axis = _NHWC_TO_NCHW.index(axis)
        inputs = [self._names[operator.Inputs(i)] for i in range(operator.InputsLength())]
        self._emit(operator, "Concat", inputs, options.FusedActivationFunction(), axis=axis)

    def _dequantize(self, operator: Any) -> None:
        self._constants[operator.Outputs(0)] = self._value(operator.Inputs(0)).astype(np.float32)
