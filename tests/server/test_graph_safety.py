"""The capture check: our networks pass, and every rule is seen to speak on the smallest model that breaks it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click import Command
from click.testing import CliRunner
from facegraph_server import graph_safety
from facegraph_server.engine import _process_logger, find_tensorrt
from facegraph_server.errors import ModelBuildError
from facegraph_server.graph_safety import Severity, check_onnx
from facegraph_server.paths import NETWORKS, REPOSITORY, onnx_path
from facegraph_server.tensorrt_operators import TENSORRT_OPERATORS
from onnx import NodeProto, TensorProto, helper, numpy_helper

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
X = ("x", FLOAT, ["B", 4])


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> NodeProto:
    """A node named like its first output; names are separated by spaces, ``-`` stands for a missing input."""
    names = ["" if n == "-" else n for n in inputs.split()]
    return helper.make_node(op, names, outputs.split(), name=outputs.split()[0], **attributes)


def value(name: str, dtype: int, shape: Any) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def model(
    *nodes: NodeProto,
    inputs: tuple[Any, ...] = (X,),
    output: tuple[str, int, Any] = ("y", FLOAT, None),
    constants: dict[str, Any] | None = None,
    functions: tuple[onnx.FunctionProto, ...] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "tiny",
        [i if isinstance(i, onnx.ValueInfoProto) else value(*i) for i in inputs],
        [value(*output)],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=list(functions))


def branch(name: str) -> onnx.GraphProto:
    return helper.make_graph([node("Relu", "x", name)], name, [], [value(name, FLOAT, None)])


def loop_body() -> onnx.GraphProto:
    nodes = [node("Identity", "c", "c_out"), node("NonZero", "x", "n"), node("Relu", "s", "s_out")]
    ins = [value("i", INT64, []), value("c", TensorProto.BOOL, []), value("s", FLOAT, None)]
    return helper.make_graph(nodes, "body", ins, [value("c_out", TensorProto.BOOL, []), value("s_out", FLOAT, None)])


def scan_body() -> onnx.GraphProto:
    return helper.make_graph([node("Relu", "row", "o")], "body", [value("row", FLOAT, [4])], [value("o", FLOAT, [4])])


IF = node("If", "c", "y", then_branch=branch("a"), else_branch=branch("b"))
PICK_LARGEST = [node("Relu", "x", "h"), node("ArgMax", "h", "k", axis=1, keepdims=0)]
BLOCKS, CAUTION = Severity.BLOCKS, Severity.CAUTION

# id, model, what is found: (severity, rule, where)
CASES: list[tuple[str, onnx.ModelProto, list[tuple[Severity, str, str]]]] = [
    ("plain", model(node("Relu", "x", "y")), []),
    (
        "reshape by shape arithmetic",
        model(
            node("Shape", "x", "s"), node("Gather", "s zero", "b"), node("Unsqueeze", "b axes", "b1"),
            node("Concat", "b1 rest", "to", axis=0), node("Reshape", "x to", "y"),
            constants={"zero": 0, "axes": [0], "rest": [2, 2]},
        ),
        [],
    ),
    ("constant by node", model(node("Constant", "", "k", value_ints=[2]), node("TopK", "x k", "y i")), []),
    ("if", model(IF, inputs=(X, ("c", TensorProto.BOOL, []))), [(BLOCKS, "control-flow", "If y")]),
    ("if of a constant", model(IF, constants={"c": True}), [(CAUTION, "control-flow", "If y")]),
    (
        "loop, and what is inside",
        model(node("Loop", "n - x", "y", body=loop_body()), constants={"n": np.int64(3)}),
        [(BLOCKS, "control-flow", "Loop y"), (BLOCKS, "data-dependent-shape", "Loop y > NonZero n")],
    ),
    (
        "scan",
        model(node("Scan", "x", "y", body=scan_body(), num_scan_inputs=1)),
        [(BLOCKS, "control-flow", "Scan y")],
    ),
    (
        "sequence map",
        model(
            node("SplitToSequence", "x", "s"), node("SequenceMap", "s", "t", body=scan_body()),
            node("ConcatFromSequence", "t", "y", axis=0),
        ),
        [
            (BLOCKS, "unsupported-operator", "SplitToSequence s"),
            (BLOCKS, "control-flow", "SequenceMap t"),
            (BLOCKS, "unsupported-operator", "ConcatFromSequence y"),
        ],
    ),
    ("lstm", model(node("LSTM", "x w r", "y"), constants={"w": 0.0, "r": 0.0}), [(CAUTION, "recurrence", "LSTM y")]),
    ("non-zero", model(node("NonZero", "x", "y")), [(BLOCKS, "data-dependent-shape", "NonZero y")]),
    (
        "non-zero of a constant",
        model(node("NonZero", "w", "n"), node("Relu", "x", "y"), constants={"w": [1.0, 0.0]}),
        [(CAUTION, "data-dependent-shape", "NonZero n")],
    ),
    ("non-maximum suppression", model(node("NonMaxSuppression", "x x", "y")),
     [(BLOCKS, "data-dependent-shape", "NonMaxSuppression y")]),
    ("unique", model(node("Unique", "x", "y")), [(BLOCKS, "data-dependent-shape", "Unique y")]),
    ("compress", model(node("Compress", "x x", "y")), [(BLOCKS, "data-dependent-shape", "Compress y")]),
    ("top-k of a value", model(*PICK_LARGEST, node("TopK", "x k", "y i")),
     [(BLOCKS, "data-dependent-shape", "TopK y")]),
    ("range of a value", model(*PICK_LARGEST, node("Range", "zero k one", "y"), constants={"zero": 0, "one": 1}),
     [(BLOCKS, "data-dependent-shape", "Range y")]),
    ("reshape by a value", model(*PICK_LARGEST, node("Reshape", "x k", "y")),
     [(BLOCKS, "data-dependent-shape", "Reshape y")]),
    ("slice by a value", model(*PICK_LARGEST, node("Slice", "x zero k", "y"), constants={"zero": [0]}),
     [(BLOCKS, "data-dependent-shape", "Slice y")]),
    ("resize by a value", model(*PICK_LARGEST, node("Resize", "x - - k", "y")),
     [(BLOCKS, "data-dependent-shape", "Resize y")]),
    (
        "shape tensor in",
        model(node("Reshape", "x to", "y"), inputs=(X, ("to", TensorProto.INT32, [2]))),
        [(BLOCKS, "shape-tensor", "Reshape y")],
    ),
    (
        "shape tensor out",
        model(node("Shape", "x", "y"), output=("y", TensorProto.INT32, [2])),
        [(BLOCKS, "shape-tensor", "output y")],
    ),
    (
        "free height and width",
        model(node("Relu", "x", "y"), inputs=(("x", FLOAT, ["B", 3, "H", None]),)),
        [(CAUTION, "dynamic-shape", "input x")],
    ),
    (
        "unknown rank",
        model(node("Relu", "x", "y"), inputs=(("x", FLOAT, None),)),
        [(BLOCKS, "dynamic-shape", "input x")],
    ),
    ("operator without importer", model(node("Det", "x", "y")), [(BLOCKS, "unsupported-operator", "Det y")]),
    (
        "custom operator",
        model(node("Mine", "x", "y", domain="mine")),
        [(BLOCKS, "custom-operator", "Mine y")],
    ),
    (
        "custom operator with a standard name",
        model(node("Gelu", "x", "y", domain="mine")),
        [(CAUTION, "custom-operator", "Gelu y")],
    ),
    (
        "function of the model's own",
        model(
            node("Pick", "x", "y", domain="mine"),
            functions=(
                helper.make_function(
                    "mine", "Pick", ["a"], ["b"], [node("NonZero", "a", "b")], [helper.make_opsetid("", 17)]
                ),
            ),
        ),
        [(BLOCKS, "data-dependent-shape", "NonZero")],
    ),
    (
        "text",
        model(node("Identity", "x", "y"), inputs=(("x", TensorProto.STRING, ["B"]),)),
        [(BLOCKS, "type", "input x")],
    ),
    (
        "64-bit integers",
        model(node("Relu", "x", "y"), inputs=(X, ("ids", INT64, ["B"]))),
        [(CAUTION, "type", "input ids")],
    ),
    (
        "double out",
        model(node("Relu", "x", "y"), output=("y", TensorProto.DOUBLE, None)),
        [(CAUTION, "type", "output y")],
    ),
    (
        "sequence in",
        model(
            node("Relu", "x", "y"),
            inputs=(X, helper.make_tensor_sequence_value_info("s", FLOAT, None)),
        ),
        [(BLOCKS, "type", "input s")],
    ),
]  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_our_networks_can_be_captured(name: str) -> None:
    path = onnx_path(name)
    if not path.is_file():
        pytest.fail(f"{path} is missing: run `make models` before the tests")
    report = check_onnx(path)
    assert report.safe
    assert report.findings == ()
    assert report.nodes > 100


@pytest.mark.parametrize(("tiny", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_findings(tiny: onnx.ModelProto, expected: list[tuple[Severity, str, str]]) -> None:
    report = check_onnx(tiny)
    found = [(f.severity, f.rule, f.where) for f in report.findings]
    assert len(found) == len(expected), report.findings
    for (severity, rule, where), wanted in zip(found, expected, strict=True):
        assert (severity, rule) == wanted[:2]
        assert where == wanted[2] or where.startswith(f"{wanted[2]} ")  # the inliner renames nodes
    assert report.safe == all(severity is not BLOCKS for severity, _, _ in found)
    assert all(f.reason and f.advice for f in report.findings)


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("this is text, not a model")
    (tmp_path / "empty.onnx").write_bytes(b"")
    with pytest.raises(ModelBuildError, match=r"text.onnx is no ONNX model"):
        check_onnx(tmp_path / "text.onnx")
    with pytest.raises(ModelBuildError, match=r"empty.onnx is no ONNX model: it holds no graph"):
        check_onnx(tmp_path / "empty.onnx")
    with pytest.raises(ModelBuildError, match=r"none.onnx cannot be read: No such file"):
        check_onnx(tmp_path / "none.onnx")


def parser() -> tuple[Any, Any]:
    """A parser of the real library, and what must outlive it."""
    trt = find_tensorrt("tensorrt_rtx").load()
    log = _process_logger(trt)
    builder = trt.Builder(log)
    network = builder.create_network(0)
    return trt.OnnxParser(network, log), (builder, network)


def test_operators_are_those_of_the_real_parser() -> None:
    asked, _owner = parser()
    names = {s.name for s in onnx.defs.get_all_schemas_with_history() if s.domain == ""}
    assert frozenset(n for n in names if asked.supports_operator(n)) == TENSORRT_OPERATORS


@pytest.mark.parametrize(
    "dtype", ["FLOAT", "FLOAT16", "BFLOAT16", "INT8", "UINT8", "INT32", "INT64", "BOOL", "INT16", "UINT16", "UINT32",
              "UINT64", "STRING", "COMPLEX64"],
)  # fmt: skip
def test_types_are_those_of_the_real_parser(dtype: str) -> None:
    number = TensorProto.DataType.Value(dtype)
    tiny = model(node("Identity", "x", "y"), inputs=(("x", number, ["B", 4]),), output=("y", number, ["B", 4]))
    asked, _owner = parser()
    assert asked.parse(tiny.SerializeToString()) == (dtype in graph_safety._TYPES)


REFUSED = {"unsupported-operator", "custom-operator"}


@pytest.mark.parametrize(
    ("tiny", "parses"),
    [
        (c[1], not any(rule in REFUSED and severity is BLOCKS for severity, rule, _ in c[2]))
        for c in CASES
        if not c[2] or {rule for _, rule, _ in c[2]} & REFUSED
    ],
    ids=[c[0] for c in CASES if not c[2] or {rule for _, rule, _ in c[2]} & REFUSED],
)
def test_the_real_parser_agrees(tiny: onnx.ModelProto, parses: bool) -> None:
    asked, _owner = parser()
    assert asked.parse(tiny.SerializeToString()) == parses


def command() -> Command:
    spec = importlib.util.spec_from_file_location("check_graph_safety", REPOSITORY / "scripts/check_graph_safety.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    main: Command = module.main
    return main


def test_command(tmp_path: Path) -> None:
    good, bad, wrong = tmp_path / "good.onnx", tmp_path / "bad.onnx", tmp_path / "wrong.onnx"
    onnx.save(model(node("Relu", "x", "y")), good)
    onnx.save(model(node("NonZero", "x", "y")), bad)
    wrong.write_text("text, no model")
    run = CliRunner(env={"COLUMNS": "200"}).invoke
    main = command()

    result = run(main, [str(good)])
    assert (result.exit_code, result.output.replace("\n", "")) == (0, f"{good}: can be captured (1 nodes)")
    result = run(main, [str(good), str(bad)])
    assert result.exit_code == 1
    for text in ("bad.onnx: cannot be captured", "blocks", "data-dependent-shape", "NonZero y", "keep a mask of fixed"):
        assert text in result.output
    result = run(main, [str(wrong)])
    assert result.exit_code == 2
    assert "wrong.onnx is no ONNX model" in result.stderr
    assert run(main, []).exit_code == 2
    assert "Exit status: 0 all can be captured" in run(main, ["--help"]).output
