"""Say of an ONNX file whether the TensorRT engine made of it can be captured as a CUDA graph.

A CUDA graph replays fixed launches on fixed addresses. What needs the host in between (a shape that depends on a value,
a branch, a loop) cannot be inside it. Triton only logs a failed capture and runs on without the graph, so this is
better known before.

The rules follow TensorRT's developer guide ("CUDA Graphs": loops, conditionals and data-dependent shapes), Triton's
TensorRT backend (shape tensors switch capture off) and TensorRT's own parser (operators and types).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, ValueInfoProto, inliner

from facegraph_server.errors import ModelBuildError
from facegraph_server.tensorrt_operators import TENSORRT_OPERATORS


class Severity(Enum):
    """What a finding means for capture."""

    BLOCKS = "blocks"
    CAUTION = "caution"


@dataclass(frozen=True)
class Finding:
    """One reason why capture fails, or may fail.

    Attributes:
        severity: whether it rules capture out.
        rule: short name of the rule.
        where: the node or tensor, as ``Operator name``; nodes inside a subgraph name the way to it.
        reason: why.
        advice: what to do instead.

    """

    severity: Severity
    rule: str
    where: str
    reason: str
    advice: str


@dataclass(frozen=True)
class GraphSafetyReport:
    """What the check found in a model of ``nodes`` nodes, subgraphs included."""

    name: str
    nodes: int
    findings: tuple[Finding, ...]

    @property
    def safe(self) -> bool:
        """Whether nothing rules capture out."""
        return all(f.severity is not Severity.BLOCKS for f in self.findings)


def check_onnx(source: Path | onnx.ModelProto) -> GraphSafetyReport:
    """Check a model; its external data is not read.

    Args:
        source: the ONNX file or the model.

    Raises:
        ModelBuildError: the file cannot be read or is no ONNX model.

    """
    model, name = (source, source.graph.name or "model") if isinstance(source, onnx.ModelProto) else _load(source)
    if model.functions:
        model = inliner.inline_local_functions(model)
    walk = _Walk()
    walk.tensors(model.graph)
    walk.graph(model.graph, _Values(), path="")
    return GraphSafetyReport(name, walk.nodes, tuple(walk.findings))


def _load(path: Path) -> tuple[onnx.ModelProto, str]:
    try:
        model = onnx.load(path, load_external_data=False)
    except OSError as error:
        raise ModelBuildError(f"{path} cannot be read: {error.strerror}") from error
    except DecodeError as error:
        raise ModelBuildError(f"{path} is no ONNX model: {error}") from error
    if not model.graph.node or not model.graph.output:
        raise ModelBuildError(f"{path} is no ONNX model: it holds no graph")
    return model, path.name


class _Origin(Enum):
    """Where a tensor's values come from."""

    CONSTANT = 0
    SHAPES = 1  # from the shapes of other tensors: known on the host before the launch
    DATA = 2


@dataclass(frozen=True)
class _Value:
    origin: _Origin
    inputs: frozenset[str] = frozenset()  # the model's inputs that it is computed from


_CONSTANT = _Value(_Origin.CONSTANT)


class _Values:
    """What is known of the tensors in a scope; an inner scope sees the outer one."""

    def __init__(self, outer: _Values | None = None) -> None:
        self._outer = outer
        self._known: dict[str, _Value] = {}

    def __setitem__(self, name: str, value: _Value) -> None:
        self._known[name] = value

    def __getitem__(self, name: str) -> _Value:
        if name in self._known:
            return self._known[name]
        return self._outer[name] if self._outer is not None else _Value(_Origin.DATA)


_CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})
_RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
_VALUE_SIZED = {
    "NonZero": "keep a mask of fixed size, multiply by it",
    "NonMaxSuppression": "run it outside the engine, or write it with a fixed number of boxes (TopK and a mask)",
    "Unique": "run it outside the engine",
    "Compress": "keep all rows and a mask of fixed size",
}
# Inputs whose values set the output's shape, by position (ONNX operator set).
_SHAPE_OPERANDS: dict[str, tuple[int, ...]] = {
    "AffineGrid": (1,), "BlackmanWindow": (0,), "CenterCropPad": (1,), "Col2Im": (1, 2), "ConstantOfShape": (0,),
    "Expand": (1,), "HammingWindow": (0,), "HannWindow": (0,), "MaxUnpool": (2,), "OneHot": (1,), "Pad": (1, 3),
    "Range": (0, 1, 2), "Reshape": (1,), "Resize": (2, 3), "STFT": (1, 3), "Slice": (1, 2, 3, 4), "Split": (1,),
    "Squeeze": (1,), "Tile": (1,), "TopK": (1,), "Unsqueeze": (1,), "Upsample": (1,),
}  # fmt: skip
# Types of TensorRT's ITensor that its parser takes at a network's door; a test asks the parser again.
_TYPES = frozenset(
    {"FLOAT", "FLOAT16", "BFLOAT16", "INT8", "UINT8", "INT32", "INT64", "BOOL", "FLOAT8E4M3FN", "INT4", "FLOAT4E2M1"}
)
_STANDARD_DOMAINS = frozenset({"", "ai.onnx"})


@dataclass
class _Walk:
    """One pass over a model: collects findings while it follows where values come from."""

    nodes: int = 0
    findings: list[Finding] = field(default_factory=list)
    _integer_inputs: frozenset[str] = frozenset()

    def tensors(self, graph: GraphProto) -> None:
        """Check types and shapes at the model's door."""
        constants = {i.name for i in graph.initializer}
        inputs = [i for i in graph.input if i.name not in constants]
        integers = (TensorProto.INT32, TensorProto.INT64)
        self._integer_inputs = frozenset(
            i.name
            for i in inputs
            if i.type.tensor_type.elem_type in integers and len(i.type.tensor_type.shape.dim) <= 1
        )
        for value, kind in [*((i, "input") for i in inputs), *((o, "output") for o in graph.output)]:
            self._type(value, f"{kind} {value.name}")
        for value in inputs:
            self._input_shape(value)

    def graph(self, graph: GraphProto, values: _Values, path: str) -> None:
        """Check the nodes of a graph and of the graphs inside it."""
        constants = {i.name for i in graph.initializer} | {i.values.name for i in graph.sparse_initializer}
        for name in constants:
            values[name] = _CONSTANT
        for value in graph.input:
            if value.name not in constants:
                values[value.name] = _Value(_Origin.DATA, frozenset({value.name}))
        for node in graph.node:
            self.nodes += 1
            inputs = [values[name] if name else _CONSTANT for name in node.input]
            self._node(node, inputs, f"{path}{node.op_type} {node.name or '/'.join(node.output)}")
            result = _result(node, inputs)
            for name in node.output:
                values[name] = result
            for inner in _subgraphs(node):
                self.graph(inner, _Values(values), f"{path}{node.op_type} {node.name} > ")
        if not path:
            for output in graph.output:
                if values[output.name].origin is _Origin.SHAPES:
                    self._add(
                        Severity.BLOCKS,
                        "shape-tensor",
                        f"output {output.name}",
                        "it is computed from shapes alone, so it is a shape tensor, which Triton refuses to capture",
                        "drop the output: the client knows the shapes",
                    )

    def _add(self, severity: Severity, rule: str, where: str, reason: str, advice: str) -> None:
        self.findings.append(Finding(severity, rule, where, reason, advice))

    def _type(self, value: ValueInfoProto, where: str) -> None:
        if not value.type.HasField("tensor_type"):
            kind = value.type.WhichOneof("value") or "nothing"
            self._add(
                Severity.BLOCKS, "type", where, f"it is of {kind}, not a tensor", "split it into tensors of fixed shape"
            )
            return
        name = TensorProto.DataType.Name(value.type.tensor_type.elem_type)
        if name == "DOUBLE":
            self._add(
                Severity.CAUTION,
                "type",
                where,
                "TensorRT makes it FP32, so the engine's type is not the model's",
                "export it as FP32 and write TYPE_FP32 in config.pbtxt",
            )
        elif name == "INT64":
            self._add(
                Severity.CAUTION,
                "type",
                where,
                "TensorRT before version 10 makes it INT32, so the engine's type depends on the version",
                "export it as INT32",
            )
        elif name not in _TYPES:
            advice = "do the work on text outside the engine" if name == "STRING" else "cast it outside the engine"
            self._add(Severity.BLOCKS, "type", where, f"TensorRT has no tensors of type {name}", advice)

    def _input_shape(self, value: ValueInfoProto) -> None:
        where = f"input {value.name}"
        if not value.type.HasField("tensor_type"):
            return
        if not value.type.tensor_type.HasField("shape"):
            self._add(
                Severity.BLOCKS,
                "dynamic-shape",
                where,
                "its rank is unknown, so no optimization profile and no graph_spec can name its shape",
                "export it with a shape; leave only the batch dimension free",
            )
            return
        free = [
            dim.dim_param or f"axis {axis}"
            for axis, dim in enumerate(value.type.tensor_type.shape.dim)
            if axis > 0 and not dim.HasField("dim_value")
        ]
        if free:
            self._add(
                Severity.CAUTION,
                "dynamic-shape",
                where,
                f"besides the batch, {', '.join(free)} is free: each size needs its own graph, all others run without",
                "fix the size at export, or write one graph_spec for each size that is used",
            )

    def _node(self, node: NodeProto, inputs: Sequence[_Value], where: str) -> None:
        if node.domain not in _STANDARD_DOMAINS:
            self._custom(node, where)
        elif node.op_type in _CONTROL_FLOW:
            self._control_flow(node, inputs, where)
        elif node.op_type in _VALUE_SIZED:
            constant = all(i.origin is _Origin.CONSTANT for i in inputs)
            self._add(
                Severity.CAUTION if constant else Severity.BLOCKS,
                "data-dependent-shape",
                where,
                "the size of its output depends on values, here of constants"
                if constant
                else "the size of its output depends on the values, so the host must wait for it",
                "fold constants before building" if constant else _VALUE_SIZED[node.op_type],
            )
        elif node.op_type not in TENSORRT_OPERATORS:
            self._add(
                Severity.BLOCKS,
                "unsupported-operator",
                where,
                "TensorRT's ONNX parser does not import it",
                "write it with supported operators, or move it to a step outside the engine",
            )
        else:
            self._supported(node, inputs, where)

    def _custom(self, node: NodeProto, where: str) -> None:
        if node.op_type in TENSORRT_OPERATORS:
            self._add(
                Severity.CAUTION,
                "custom-operator",
                where,
                f"TensorRT ignores the domain {node.domain} and imports it as ONNX's own {node.op_type}",
                "make sure that both mean the same, or rename it",
            )
            return
        self._add(
            Severity.BLOCKS,
            "custom-operator",
            where,
            f"{node.domain}:{node.op_type} is not an ONNX operator; it needs a TensorRT plugin",
            "write it with ONNX operators, or register a plugin that only launches kernels on the stream it is given: "
            "no allocation, no synchronisation, no host code",
        )

    def _supported(self, node: NodeProto, inputs: Sequence[_Value], where: str) -> None:
        if node.op_type in _RECURRENT:
            self._add(
                Severity.CAUTION,
                "recurrence",
                where,
                "TensorRT imports it as a loop, which some versions do not capture",
                "unroll it, or look for 'captured CUDA graph' in Triton's verbose log",
            )
        for position in _SHAPE_OPERANDS.get(node.op_type, ()):
            if position >= len(inputs) or inputs[position].origin is not _Origin.DATA:
                continue
            sources = inputs[position].inputs
            name = node.input[position]
            if sources and sources <= self._integer_inputs:
                self._add(
                    Severity.BLOCKS,
                    "shape-tensor",
                    where,
                    f"its operand {name} sets a shape and comes from the input {', '.join(sorted(sources))}, "
                    "so that is a shape tensor, which Triton refuses to capture",
                    "make the size a constant at export",
                )
            else:
                self._add(
                    Severity.BLOCKS,
                    "data-dependent-shape",
                    where,
                    f"its operand {name} sets the output's shape and depends on values",
                    "make the size a constant; keep a fixed maximum and a mask",
                )
            return

    def _control_flow(self, node: NodeProto, inputs: Sequence[_Value], where: str) -> None:
        if node.op_type == "If" and inputs[0].origin is _Origin.CONSTANT:
            self._add(
                Severity.CAUTION,
                "control-flow",
                where,
                "its condition is a constant",
                "fold constants before building, so that one branch remains",
            )
            return
        self._add(
            Severity.BLOCKS,
            "control-flow",
            where,
            "it chooses at run time what is launched",
            "compute both branches and select with Where"
            if node.op_type == "If"
            else "unroll it to a fixed number of steps, or move it to a step outside the engine",
        )


def _result(node: NodeProto, inputs: Sequence[_Value]) -> _Value:
    if node.op_type in ("Shape", "Size") and node.domain in _STANDARD_DOMAINS:
        origin = _Origin.CONSTANT if inputs[0].origin is _Origin.CONSTANT else _Origin.SHAPES
        return _Value(origin)
    origin = max((i.origin for i in inputs), key=lambda o: o.value, default=_Origin.CONSTANT)
    if any(True for _ in _subgraphs(node)):
        origin = _Origin.DATA  # the subgraphs see values that are not among the inputs
    return _Value(origin, frozenset().union(*(i.inputs for i in inputs)))


def _subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            yield from attribute.graphs
