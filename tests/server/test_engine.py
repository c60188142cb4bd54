"""The builder: with TensorRT for RTX, which really builds without a GPU, and with a recording stand-in for TensorRT."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from facegraph_server import engine
from facegraph_server.cuda_device import GpuType, first_gpu
from facegraph_server.engine import PROGRESS_TOTAL, BatchProfile, Plan, TensorRT, build_plan, find_tensorrt
from facegraph_server.errors import ModelBuildError
from facegraph_server.paths import NETWORKS, onnx_path
from onnx import TensorProto, helper, numpy_helper

SM89 = GpuType("8.9")
RTX = find_tensorrt("tensorrt_rtx")
FULL = TensorRT("tensorrt", "tensorrt", "10.5.0")
L4 = GpuType("8.9", "NVIDIA L4")


def network_bytes(name: str) -> bytes:
    path = onnx_path(name)
    if not path.is_file():
        pytest.fail(f"{path} is missing: run `make models` before the tests")
    return path.read_bytes()


def onnx_tensors(name: str) -> dict[str, tuple[str, str, tuple[int, ...]]]:
    """Inputs and outputs of a network: name -> (mode, type, shape with -1 for the batch)."""
    graph = onnx.load_from_string(network_bytes(name)).graph
    types = {TensorProto.UINT8: "UINT8", TensorProto.FLOAT: "FP32"}
    result = {}
    for mode, values in (("input", graph.input), ("output", graph.output)):
        for value in values:
            tensor = value.type.tensor_type
            shape = tuple(d.dim_value if d.HasField("dim_value") else -1 for d in tensor.shape.dim)
            result[value.name] = (mode, types[tensor.elem_type], shape)
    return result


def small_model(op: str = "Relu", shape: tuple[Any, ...] = ("B", 4), domain: str = "") -> bytes:
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["y"], name="the_node", domain=domain)],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


@pytest.fixture(scope="module")
def plans() -> Callable[[str, str, Any], Plan]:
    built: dict[tuple[str, str, str], Plan] = {}

    def get(name: str, compute_capability: str, precision: Any) -> Plan:
        key = (name, compute_capability, precision)
        if key not in built:
            built[key] = build_plan(network_bytes(name), RTX, GpuType(compute_capability), precision=precision)
        return built[key]

    return get


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("compute_capability", ["7.5", "8.9"])
@pytest.mark.parametrize("name", NETWORKS)
def test_real_build_has_the_tensors_of_the_onnx_file(
    name: str, compute_capability: str, precision: str, plans: Callable[[str, str, str], Plan]
) -> None:
    # Without a GPU the plan cannot be deserialized: tensors and profile are those of the network and profile that were
    # serialized, and the plan itself is searched for the names.
    plan = plans(name, compute_capability, precision)
    expected = onnx_tensors(name)
    assert {t.name: (t.mode, t.dtype, t.shape) for t in plan.tensors} == expected
    for tensor in plan.tensors:
        sample = tensor.shape[1:]
        assert tensor.profile == (((1, *sample), (4, *sample), (16, *sample)) if tensor.mode == "input" else None)
        assert tensor.name.encode() in plan.data
    assert len(plan.data) > 1e6
    assert plan.timing_cache == b""


def test_real_builds_differ_by_target_and_precision(plans: Callable[[str, str, str], Plan]) -> None:
    contents = {plans("face_mesh", c, p).data for c in ("7.5", "8.9") for p in ("fp32", "fp16")}
    assert len(contents) == 4


@pytest.mark.gpu
@pytest.mark.parametrize("name", NETWORKS)
def test_engine_on_the_gpu_says_the_same(name: str) -> None:
    tensorrt = find_tensorrt()
    gpu = first_gpu()
    if gpu is None:
        pytest.skip("no GPU")
    plan = build_plan(network_bytes(name), tensorrt, gpu)
    trt = tensorrt.load()
    runtime = trt.Runtime(engine._process_logger(trt))
    loaded = runtime.deserialize_cuda_engine(plan.data)
    assert {loaded.get_tensor_name(i) for i in range(loaded.num_io_tensors)} == {t.name for t in plan.tensors}
    assert loaded.num_optimization_profiles == 1
    for tensor in plan.tensors:
        assert tuple(loaded.get_tensor_shape(tensor.name)) == tensor.shape
        if tensor.profile:
            assert tuple(map(tuple, loaded.get_tensor_profile_shape(tensor.name, 0))) == tensor.profile


def test_batch_sizes_become_the_profile() -> None:
    plan = build_plan(small_model(), RTX, SM89, batch=BatchProfile(2, 3, 5))
    assert plan.tensors[0].profile == ((2, 4), (3, 4), (5, 4))


@pytest.mark.parametrize("sizes", [(0, 1, 2), (2, 1, 4), (1, 5, 4)], ids=str)
def test_batch_sizes_are_in_order(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ModelBuildError, match="1 <= min <= opt <= max"):
        BatchProfile(*sizes)


def test_progress_rises_to_its_end() -> None:
    seen: list[tuple[str, int, int]] = []
    build_plan(small_model(), RTX, SM89, progress=lambda *step: seen.append(step))
    done = [d for _, d, _ in seen]
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, PROGRESS_TOTAL)
    assert len(set(done)) > 10
    assert {t for _, _, t in seen} == {PROGRESS_TOTAL}


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError("mine")], ids=["ctrl-c", "error"])
def test_an_exception_of_progress_stops_the_build(error: Any) -> None:
    calls = []

    def progress(phase: str, done: int, total: int) -> None:
        calls.append(phase)
        raise error

    with pytest.raises(error if isinstance(error, type) else type(error)):
        build_plan(small_model(), RTX, SM89, progress=progress)
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([("start", "a", None, 4), ("step", "a", 0), ("finish", "a")], [0, 250, 1000]),
        # The first child takes half of its parent's step, the second half of the rest, the step's end all of it.
        (
            [
                *[("start", "a", None, 2), ("start", "b", "a", 5), ("step", "b", 0), ("finish", "b")],
                *[("start", "c", "a", 1), ("step", "c", 0), ("finish", "c"), ("step", "a", 0)],
            ],
            [0, 0, 50, 250, 250, 375, 375, 500],
        ),
        # A phase that TensorRT forgot to finish does not hold up its siblings.
        ([("start", "a", None, 1), ("start", "b", "a", 1), ("start", "c", "a", 2), ("step", "c", 0)], [0, 0, 0, 250]),
        ([("start", "a", None, 2), ("step", "a", 1), ("step", "a", 0)], [0, 1000, 1000]),
    ],
    ids=["flat", "nested", "unfinished", "never falls"],
)
def test_phases_share_one_scale(events: list[Any], expected: list[int]) -> None:
    scale = engine._OneScale()
    seen = []
    for action, *arguments in events:
        getattr(scale, action)(*arguments)
        seen.append(scale.done())
    assert seen == expected


@pytest.mark.parametrize(
    ("data", "gpu", "message"),
    [
        (small_model("Bernoulli"), SM89, r"parser refuses the network:\n  node 0 the_node Bernoulli: .+"),
        (small_model("Mine", domain="my.ops"), SM89, r"parser refuses the network:\n  node 0 the_node Mine: .+"),
        (b"no model at all", SM89, r"parser refuses the network:\n  .+"),
        (small_model(shape=("B", "N")), SM89, r"the input x has shape \[-1, -1\]; one profile covers"),
        (small_model(shape=(2, 4)), SM89, r"the input x has shape \[2, 4\]; one profile covers"),
        (
            small_model(),
            GpuType("9.0"),
            r"does not build for compute capability 9.0, only 7.5, 8.0, 8.6, 8.9, 12.0, 12.1$",
        ),
    ],
    ids=["operator", "custom operator", "garbage", "two free dimensions", "fixed batch", "unknown target"],
)
def test_refusals_of_the_real_builder(data: bytes, gpu: GpuType, message: str) -> None:
    with pytest.raises(ModelBuildError, match=message):
        build_plan(data, RTX, gpu)


def test_full_tensorrt_needs_a_gpu() -> None:
    with pytest.raises(ModelBuildError, match=r"tensorrt 10.5.0 builds on the GPU that it builds for.*--gpus all"):
        build_plan(small_model(), FULL, SM89, local_gpu=lambda: None)


def test_full_tensorrt_builds_only_for_its_own_gpu() -> None:
    with pytest.raises(ModelBuildError, match=r"only for the GPU of this machine, NVIDIA L4 of compute capability 8.9"):
        build_plan(small_model(), FULL, GpuType("9.0"), local_gpu=lambda: L4)


@pytest.mark.parametrize("flavour", [None, "tensorrt"])
def test_missing_tensorrt(flavour: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelBuildError, match=r"not installed.*Triton container.*pip install tensorrt==VERSION"):
        find_tensorrt(flavour)


def test_tensorrt_is_preferred_and_must_not_be_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    versions = {"tensorrt": "10.5.0"}
    monkeypatch.setattr(engine, "_installed_version", lambda flavour, name: versions[flavour])
    assert find_tensorrt() == FULL
    versions["tensorrt"] = "8.6.1"
    with pytest.raises(ModelBuildError, match=r"tensorrt 8.6.1 is too old; install version 10 or newer"):
        find_tensorrt()


def test_broken_installation() -> None:
    with pytest.raises(ModelBuildError, match=r"tensorrt 1.0 is installed but cannot be imported: No module"):
        TensorRT("tensorrt", "facegraph_no_such_module", "1.0").load()


class StandInLogger:
    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)


class StandInCache:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def serialize(self) -> bytes:
        return self.data + b"+"


class StandInProfile:
    def set_shape(self, name: str, *shapes: tuple[int, ...]) -> None:
        self.shapes = shapes

    def get_shape(self, name: str) -> Any:
        return self.shapes


class StandIn:
    """Just enough of the ``tensorrt`` module to see what the builder asks of it; builder and config in one."""

    float32, float16, int32, int64, int8, uint8, bool, bfloat16 = range(8)
    NetworkDefinitionCreationFlag = SimpleNamespace(STRONGLY_TYPED=1)
    BuilderFlag = SimpleNamespace(TF32="TF32")
    ILogger = StandInLogger
    create_optimization_profile = StandInProfile
    create_timing_cache = staticmethod(StandInCache)
    num_errors = 0

    def __init__(
        self,
        *,
        parser_says: tuple[tuple[int, str], ...] = (),
        builds: bytes | None = b"plan",
        build_says: tuple[tuple[int, str], ...] = (),
        cache_matches: bool = True,
    ) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.parser_says, self.builds, self.build_says = parser_says, builds, build_says
        self.cache_matches = cache_matches

    def Builder(self, log: Any) -> StandIn:  # noqa: N802
        self.logger = log
        return self

    def create_network(self, flags: int) -> Any:
        self.calls.append(("network", flags))
        tensor = SimpleNamespace(name="x", shape=(-1, 4), dtype=self.uint8, is_shape_tensor=False)
        return SimpleNamespace(num_inputs=1, num_outputs=0, get_input=lambda i: tensor)

    def OnnxParser(self, network: Any, log: Any) -> StandIn:  # noqa: N802
        return self

    def parse(self, data: bytes) -> bool:
        for severity, text in self.parser_says:
            self.logger.log(severity, text)
        return True

    def create_builder_config(self) -> StandIn:
        return self

    def add_optimization_profile(self, profile: Any) -> None:
        self.calls.append(("profile", profile.shapes))

    def set_flag(self, flag: str) -> None:
        self.calls.append(("set", flag))

    def clear_flag(self, flag: str) -> None:
        self.calls.append(("clear", flag))

    def set_timing_cache(self, cache: StandInCache, ignore_mismatch: bool) -> bool:
        assert not ignore_mismatch
        self.calls.append(("cache", cache.data))
        return self.cache_matches or not cache.data

    def build_serialized_network(self, network: Any, config: Any) -> bytes | None:
        for severity, text in self.build_says:
            self.logger.log(severity, text)
        return self.builds


def build_with(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Plan:
    monkeypatch.setattr(TensorRT, "load", lambda self: stand_in)
    return build_plan(b"onnx", FULL, L4, local_gpu=lambda: L4, **options)


@pytest.mark.parametrize(("precision", "call"), [("fp32", ("clear", "TF32")), ("tf32", ("set", "TF32"))])
def test_precision_sets_tf32(precision: str, call: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = StandIn()
    plan = build_with(stand_in, monkeypatch, precision=precision)
    assert plan.data == b"plan"
    assert plan.tensors[0].dtype == "UINT8"
    assert stand_in.calls == [
        ("network", 2),  # 1 << STRONGLY_TYPED
        ("profile", ((1, 4), (4, 4), (16, 4))),
        call,
        ("cache", b""),
    ]


@pytest.mark.parametrize(
    ("matches", "offered", "kept"),
    [(True, [b"old"], b"old+"), (False, [b"old", b""], b"+")],
    ids=["used", "of another version or GPU"],
)
def test_timing_cache(matches: bool, offered: list[bytes], kept: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = StandIn(cache_matches=matches)
    plan = build_with(stand_in, monkeypatch, timing_cache=b"old")
    assert [c[1] for c in stand_in.calls if c[0] == "cache"] == offered
    assert plan.timing_cache == kept


def test_parser_warnings_are_refused_unless_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    says = ((2, "weights were clamped"), (3, "chatter"))
    with pytest.raises(ModelBuildError, match=r"with warnings.*harmless:\n  weights were clamped$"):
        build_with(StandIn(parser_says=says), monkeypatch)
    assert build_with(StandIn(parser_says=says), monkeypatch, allow_warnings=True).data == b"plan"


def test_a_failed_build_ends_with_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = StandIn(builds=None, build_says=((2, "a warning"), (1, "out of memory")))
    with pytest.raises(ModelBuildError, match=r"cannot build the network for NVIDIA L4 .*8.9:\n  out of memory$"):
        build_with(stand_in, monkeypatch)


class Driver:
    """libcuda with one GPU of compute capability 9.0; ``fails`` names the call that returns an error."""

    def __init__(self, fails: str = "") -> None:
        self.fails = fails

    def _code(self, name: str) -> int:
        return 100 if name == self.fails else 0

    def cuInit(self, flags: int) -> int:  # noqa: N802
        return self._code("cuInit")

    def cuDeviceGet(self, device: Any, ordinal: int) -> int:  # noqa: N802
        device._obj.value = 7
        return self._code("cuDeviceGet")

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:  # noqa: N802
        assert device.value == 7
        value._obj.value = {75: 9, 76: 0}[attribute]
        return self._code("cuDeviceGetAttribute")

    def cuDeviceGetName(self, buffer: Any, length: int, device: Any) -> int:  # noqa: N802
        buffer.value = b"NVIDIA H200"
        return self._code("cuDeviceGetName")


@pytest.mark.parametrize(
    ("fails", "expected"),
    [("", GpuType("9.0", "NVIDIA H200")), ("cuInit", None), ("cuDeviceGet", None), ("cuDeviceGetName", None)],
    ids=["there", "no driver", "no device", "no name"],
)
def test_first_gpu(fails: str, expected: GpuType | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(fails))
    assert first_gpu() == expected


def test_no_driver_library() -> None:
    assert first_gpu("libfacegraph_no_such_library.so") is None


def test_one_logger_for_the_process() -> None:
    trt = RTX.load()
    assert engine._process_logger(trt) is engine._process_logger(trt)


def test_a_plan_holds_its_weights() -> None:
    def model(value: float) -> bytes:
        weight = numpy_helper.from_array(np.full((4,), value, np.float32), "w")
        graph = helper.make_graph(
            [helper.make_node("Mul", ["x", "w"], ["y"])],
            "small",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["B", 4])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["B", 4])],
            [weight],
        )
        built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return bytes(built.SerializeToString())

    assert build_plan(model(2.5), RTX, SM89).data != build_plan(model(3.5), RTX, SM89).data
