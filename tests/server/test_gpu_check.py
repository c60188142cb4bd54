"""The GPU check without a GPU: its arithmetic, its report, and all its parts with stand-ins for what a GPU would do."""

from __future__ import annotations

import ctypes
import itertools
import json
import math
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from facegraph_server import torch_texture
from facegraph_server.contract import VERTICES
from facegraph_server.detector_views import choose_views
from facegraph_server.errors import ModelBuildError
from facegraph_server.frame_graph import FrameGraph
from facegraph_server.gpu_check import bare_machine, run
from facegraph_server.gpu_check.bare_machine import read_onnx_graph
from facegraph_server.gpu_check.cases import Case, frame_case, frame_name, network_case, sample_frame
from facegraph_server.gpu_check.memory import process_memory_bytes
from facegraph_server.gpu_check.report import GpuReport, Row, Way
from facegraph_server.gpu_check.run import GpuCheckPlan, NoGpuError, check_gpu
from facegraph_server.gpu_check.tensorrt_network import TensorRtNetwork
from facegraph_server.gpu_check.timing import HostCalls, Timing, alternate, count_host_calls, watch_host_calls
from facegraph_server.graphs_off import without_graphs
from facegraph_server.paths import NETWORKS, onnx_path
from onnx import numpy_helper
from torch import Tensor, nn

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = REPOSITORY / "scripts" / "gpu_check.py"


def way(median_ms: float, calls: HostCalls) -> Way:
    return Way(Timing(median_ms, 2 * median_ms, 0.01, 1000 / median_ms, 100), calls)


EAGER, GRAPH = HostCalls(700, 0, 2, 3), HostCalls(0, 1, 2, 0)


def frame_row(
    frames: int, eager_ms: float, graph_ms: float, calls: HostCalls = GRAPH, difference: float | None = 0.0
) -> Row:
    return Row("frame", f"{frames} at once", frames, way(eager_ms, EAGER), way(graph_ms, calls), 0.5, difference)


def verdicts(report: GpuReport) -> dict[str, str]:
    return {target.name: target.verdict for target in report.targets()}


TARGETS = (
    "throughput, graph over eager, 1 at once",
    "p50 latency, eager over graph, 1 at once",
    "throughput, graph over eager, 4 at once",
    "p50 latency, eager over graph, 4 at once",
    "launches of a frame with a graph",
    "extra memory of a process with graphs",
    "difference between graph and eager, of range",
)
LEAN = {"eager": 1000, "graph": 1040}


@pytest.mark.parametrize(
    ("rows", "memory", "missed"),
    [
        pytest.param([frame_row(1, 10, 2), frame_row(4, 40, 8)], LEAN, [], id="all-reached"),
        pytest.param([frame_row(1, 10, 5), frame_row(4, 40, 8)], LEAN, TARGETS[:1], id="only-twice-as-fast"),
        pytest.param(
            [frame_row(1, 10, 2), frame_row(1, 10, 9), frame_row(4, 40, 8)], LEAN, TARGETS[:2], id="worst-counts"
        ),
        pytest.param(
            [frame_row(1, 10, 2, HostCalls(1, 1, 2, 0)), frame_row(4, 40, 8)], LEAN, TARGETS[4:5], id="a-kernel-beside"
        ),
        pytest.param(
            [frame_row(1, 10, 2, HostCalls(0, 0, 2, 0)), frame_row(4, 40, 8)], LEAN, TARGETS[4:5], id="no-launch"
        ),
        pytest.param(
            [frame_row(1, 10, 2), frame_row(4, 40, 8), replace(frame_row(1, 10, 9), part="texture")],
            LEAN,
            [],
            id="the-speed-of-textures-is-not-judged",
        ),
        pytest.param(
            [
                frame_row(1, 10, 2),
                frame_row(4, 40, 8),
                replace(frame_row(1, 9, 9, HostCalls(1, 1, 2, 0)), part="texture"),
            ],
            LEAN,
            TARGETS[4:5],
            id="but-their-launches-are",
        ),
        pytest.param(
            [frame_row(1, 10, 2), frame_row(4, 40, 8)], LEAN | {"graph": 1060}, TARGETS[5:6], id="too-much-memory"
        ),
        pytest.param(
            [frame_row(1, 10, 2, difference=1e-4), frame_row(4, 40, 8)], LEAN, TARGETS[6:], id="other-results"
        ),
        pytest.param(
            [frame_row(1, 10, 2, difference=math.nan), frame_row(4, 40, 8)], LEAN, TARGETS[6:], id="not-a-number"
        ),
    ],
)
def test_targets(rows: list[Row], memory: dict[str, int], missed: tuple[str, ...]) -> None:
    report = GpuReport({}, rows, memory)
    assert verdicts(report) == {name: "FAILED" if name in missed else "passed" for name in TARGETS}
    assert report.passed == (not missed)


def test_what_was_not_measured_is_neither_reached_nor_missed() -> None:
    eager = Row("frame", "x", 1, way(10, EAGER))
    report = GpuReport({}, [eager], {"eager": 1000})
    assert set(verdicts(report).values()) == {"not judged"}
    assert report.passed
    assert not GpuReport({}, [eager], failed=["frame: cannot be captured"]).passed


def test_a_blind_profiler_proves_nothing() -> None:
    row = frame_row(1, 10, 2, HostCalls(0, 0, 0, 0))
    row.eager.calls = HostCalls(0, 0, 0, 0)
    assert verdicts(GpuReport({}, [row]))["launches of a frame with a graph"] == "not judged"


def test_the_report_is_json_and_markdown() -> None:
    row = frame_row(1, 10, 4, difference=math.inf)
    row.eager.gpu_percent, row.eager.memory_bytes = 30.0, 5 << 20
    assert row.graph is not None
    row.graph.gpu_percent, row.graph.memory_bytes = 90.0, 6 << 20
    report = GpuReport({"GPU": "made up"}, [row], LEAN, left_out=["Triton: not here"])
    data = json.loads(report.to_json())
    assert not data["passed"]
    assert data["rows"][0]["latency_ratio"] == 2.5
    assert data["rows"][0]["difference"] == "inf"
    assert data["rows"][0]["graph"]["calls"] == {"kernel_launches": 0, "graph_launches": 1, "copies": 2, "fills": 0}
    assert data["rows"][0]["eager"]["timing"]["p99_ms"] == 20
    assert [target["verdict"] for target in data["targets"]][:3] == ["passed", "passed", "not judged"]
    text = report.to_markdown()
    cells = next(line for line in text.splitlines() if line.startswith("| 1 at once")).split("|")
    assert [cell.strip() for cell in cells[1:-1]] == [
        "1 at once", "10.000 -> 4.000", "20.000 -> 8.000", "2.50", "2.50", "700 + 2 -> 1 + 2", "5 -> 6", "30 -> 90",
        "0.50", "inf", "1%",
    ]  # fmt: skip
    assert "Not measured:\n\n- Triton: not here\n" in text


def test_host_calls_are_counted_per_call() -> None:
    events = {
        "cudaLaunchKernel": 30, "cuLaunchKernelEx": 3, "cudaLaunchKernelExC": 3, "cudaGraphLaunch": 3,
        "cudaMemcpyAsync": 6, "cudaMemsetAsync": 9, "aten::conv2d": 90, "Memcpy HtoD (Pinned -> Device)": 3,
        "cudaStreamSynchronize": 3,
    }  # fmt: skip
    assert count_host_calls(events, 3) == HostCalls(12, 1, 2, 3)


def test_on_a_cpu_nothing_is_launched() -> None:
    assert watch_host_calls(lambda: torch.ones(3) + 1, calls=2) == HostCalls(0, 0, 0, 0)


def test_ways_take_turns_and_order_alternates() -> None:
    ticks = itertools.count()
    called: list[str] = []
    ways = {name: (lambda name=name: called.append(name)) for name in "ab"}  # type: ignore[misc]
    times = alternate(ways, 4, rounds=2, clock=lambda: next(ticks))
    order = [name for name, _ in itertools.groupby(called[6:])]
    assert order == ["a", "b", "a"]  # b ends the first round and starts the second
    assert times["a"].median_ms == 1000
    assert times["a"].spread == 0


def test_concurrent_calls_add_up() -> None:
    timing = alternate({"x": lambda: time.sleep(0.02)}, 0.2, rounds=1, concurrency=4)["x"]
    assert 24 <= timing.calls <= 44
    assert 100 < timing.calls_per_s <= 200
    assert timing.median_ms >= 20


class Detector(nn.Module):
    """Finds nothing, quickly."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(1))

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:
        n = len(pixels)
        return {"BOXES": torch.zeros(n, 504, 4), "KEYPOINTS": torch.zeros(n, 504, 6, 2), "SCORES": torch.zeros(n, 504)}


class Mesh(Detector):
    """Sees nothing, quickly."""

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:
        n = len(pixels)
        return {"CROP_LANDMARKS": torch.ones(n, 468, 3) * pixels.float().mean(), "PRESENCE": torch.zeros(n, 1)}


TINY = GpuCheckPlan(
    device="cpu",
    parts=("frame", "network"),
    frame_sizes_px=((96, 64),),
    batches=(1, 2),
    slice_s=0.001,
    rounds=2,
    sample_s=0.01,
)
CASES = [
    "video frame 96x64, 1 at once", "video frame 96x64, 2 at once", "photo 96x64, 1 at once",
    "photo with texture 96x64, 1 at once",
    "torch face_detector, batch 1", "torch face_detector, batch 2",
    "torch face_mesh, batch 1", "torch face_mesh, batch 2",
]  # fmt: skip
MADE_UP = {"face_detector": Detector(), "face_mesh": Mesh()}


def plan(**changes: Any) -> GpuCheckPlan:
    return replace(TINY, **changes)


def small_case(
    _networks: object, width_px: int, height_px: int, *, tracking: bool, frames: int, unwrap: object = None
) -> Case:
    """Stand in for a whole frame, which takes half a second on a CPU."""
    return Case(
        frame_name(width_px, height_px, tracking=tracking, frames=frames, textured=unwrap is not None),
        frames,
        lambda: lambda inputs: {"COUNT": inputs["X"] + 1},
        {"X": ((1,), torch.int32)},
        (),
        {"X": np.array([frames], np.int32)},
    )


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "load_networks", lambda device: MADE_UP)
    monkeypatch.setattr(run, "frame_case", small_case)
    monkeypatch.setattr(torch_texture, "FaceUnwrapper", object)


class PretendedGpu:
    """Everything runs on the CPU, and the check believes that it was a GPU."""

    def __init__(self) -> None:
        self.cannot_capture = ""
        self.graph_shift = 0
        self.used_bytes = itertools.count(0, 1 << 20)

    def runner(self, case: Case, device: str, *, graphs: bool) -> FrameGraph:
        if graphs and self.cannot_capture and self.cannot_capture in case.name:
            raise ModelBuildError("cannot be captured")
        function = case.make()
        shift = self.graph_shift if graphs else 0
        return FrameGraph(
            lambda inputs: {name: value + shift for name, value in function(inputs).items()},
            case.specs,
            device="cpu",
            partial=case.partial,
        )


@pytest.fixture
def gpu(small: None, monkeypatch: pytest.MonkeyPatch) -> PretendedGpu:
    pretended = PretendedGpu()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "made up")
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(run, "used_bytes", lambda device: next(pretended.used_bytes))
    monkeypatch.setattr(run, "watch_host_calls", lambda call: GRAPH)
    monkeypatch.setattr(Case, "runner", lambda case, device, *, graphs: pretended.runner(case, device, graphs=graphs))
    return pretended


@pytest.mark.usefixtures("small")
def test_on_a_cpu_everything_runs_eagerly() -> None:
    report = check_gpu(TINY, "command")
    assert [row.name for row in report.rows] == CASES
    assert all(row.graph is None and row.eager.timing.calls >= 4 for row in report.rows)
    assert (report.failed, report.left_out) == ([], [])
    assert report.machine["GPU"] == "none used: graphs are not applicable"
    assert report.machine["command"] == "command"


def test_with_a_gpu_both_ways_are_measured(gpu: PretendedGpu) -> None:
    report = check_gpu(plan(device="cuda"), "")
    assert [row.name for row in report.rows] == CASES
    for row in report.rows:
        assert row.graph is not None
        assert row.difference == 0
        assert row.graph.calls == GRAPH
        assert (row.eager.memory_bytes, row.graph.memory_bytes) == (1 << 20, 1 << 20)
        assert row.capture_s is not None
    assert verdicts(report)["difference between graph and eager, of range"] == "passed"


def test_other_results_with_a_graph_are_seen(gpu: PretendedGpu) -> None:
    gpu.graph_shift = 1
    report = check_gpu(plan(device="cuda"), "")
    assert all(row.difference is not None and row.difference > 1e-3 for row in report.rows)
    assert not report.passed


def test_a_failing_capture_fails_the_check_but_not_the_other_cases(gpu: PretendedGpu) -> None:
    gpu.cannot_capture = "video"
    report = check_gpu(plan(device="cuda"), "")
    assert [row.name for row in report.rows] == CASES[2:]
    assert report.failed == [f"{name}: cannot be captured" for name in CASES[:2]]
    assert not report.passed


@pytest.mark.usefixtures("small")
def test_what_does_not_fit_into_the_time_is_named() -> None:
    report = check_gpu(plan(budget_s=0.5), "")
    assert report.rows == []
    assert [text.partition(":")[0] for text in report.left_out] == CASES


@pytest.mark.usefixtures("small")
def test_an_interrupted_check_keeps_what_it_has_and_fails() -> None:
    told = []

    def progress(text: str) -> None:
        told.append(text)
        if len(told) == 3:
            raise KeyboardInterrupt

    report = check_gpu(TINY, "", progress)
    assert [row.name for row in report.rows] == CASES[:2]
    assert "interrupted" in report.failed[-1]
    assert not report.passed


def test_memory_is_that_of_two_processes(gpu: PretendedGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {False: 1000, True: 1030}
    monkeypatch.setattr(run, "process_memory_bytes", lambda bucket, device, *, graphs: sizes[graphs])
    report = check_gpu(plan(device="cuda", parts=("memory",)), "")
    assert report.extra_memory == pytest.approx(0.03)

    def fails(*_: object, **__: object) -> int:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(run, "process_memory_bytes", fails)
    report = check_gpu(plan(device="cuda", parts=("memory",)), "")
    assert report.extra_memory is None
    assert report.failed == [f"memory of a process, {how}: out of memory" for how in ("eager", "graph")]


@pytest.mark.usefixtures("small")
def test_without_a_gpu_tensorrt_is_left_out() -> None:
    assert check_gpu(plan(parts=("tensorrt",)), "").left_out == ["TensorRT: no GPU runs an engine"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    with pytest.raises(NoGpuError, match="sees no GPU"):
        check_gpu(plan(device="cuda"), "")


def test_frames_at_once_are_the_same_frame_in_turn() -> None:
    networks: Any = MADE_UP
    case = frame_case(networks, 96, 64, tracking=False, frames=2)
    assert case.specs["FRAME_1"][0] == (64, 96, 3)
    assert case.specs["VIEWS_0"][0] == (len(choose_views(96, 64, fine=False)), 3)
    with case.runner("cpu", graphs=False) as graph:
        found = graph.run(case.inputs)
    assert set(found) == {f"{n}_{i}" for n in ("LANDMARKS", "BOX", "SCORE", "COUNT", "REGIONS") for i in (0, 1)}
    assert not case.shows_something(found)  # the made-up networks find no face: nothing that could differ
    assert case.shows_something(found | {"COUNT_1": np.array([1])})


def test_the_sample_frame_shows_a_face() -> None:
    """Otherwise the comparison of graph and eager frames would prove nothing."""
    networks = run.load_networks("cpu")
    case = frame_case(networks, 320, 240, tracking=True, frames=1)
    assert np.ptp(case.inputs["PRIOR_0"][0, :, :2], axis=0).min() > 20
    assert not case.inputs["PRIOR_0"][1:].any()
    network = network_case("face_mesh", 2, lambda: networks["face_mesh"])
    with network.runner("cpu", graphs=False) as graph:
        assert graph.run(network.inputs)["CROP_LANDMARKS"].shape == (2, VERTICES, 3)


def test_without_pillow_a_frame_is_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bare_machine, "find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "PIL")
    monkeypatch.delitem(sys.modules, "cv2", raising=False)
    assert bare_machine.stand_in_for_absent_packages()[:2] == ["PIL", "cv2"]
    frame = sample_frame(40, 30)
    assert (frame.shape, frame.dtype) == ((30, 40, 3), np.uint8)
    assert frame.std() > 50
    stand_in: Any = sys.modules["cv2"]
    with pytest.raises(ModuleNotFoundError, match=r"cv2\.resize is needed, and cv2 is not installed"):
        stand_in.resize()


@pytest.mark.parametrize("name", NETWORKS)
def test_onnx_files_are_read_without_onnx(name: str) -> None:
    found, expected = read_onnx_graph(onnx_path(name).read_bytes()), onnx.load(onnx_path(name)).graph
    assert [v.name for v in (*found.input, *found.output)] == [v.name for v in (*expected.input, *expected.output)]
    for a, b in zip(found.initializer, expected.initializer, strict=True):
        assert a.name == b.name
        np.testing.assert_array_equal(a.array, numpy_helper.to_array(b), strict=True)
    for a, b in zip(found.node, expected.node, strict=True):
        assert (a.name, a.op_type, a.input, a.output) == (b.name, b.op_type, list(b.input), list(b.output))
        assert [(x.name, x.value) for x in a.attribute] == [
            (x.name, onnx.helper.get_attribute_value(x)) for x in b.attribute
        ]


class FakeTensorRt:
    """As much of TensorRT's Python API as a network of one input needs; doubles what it is given."""

    class Logger:
        WARNING = 2

        def __init__(self, level: int) -> None:
            pass

    class TensorIOMode:
        INPUT, OUTPUT = "in", "out"

    def __init__(self, *, loads: bool = True, enqueues: bool = True) -> None:
        self._loads, self._enqueues = loads, enqueues
        self.streams: list[int] = []
        self.num_io_tensors = 2
        self._addresses: dict[str, int] = {}

    def Runtime(self, _logger: object) -> FakeTensorRt:  # noqa: N802
        return self

    def deserialize_cuda_engine(self, plan: bytes) -> FakeTensorRt | None:
        return self if self._loads else None

    def create_execution_context(self) -> FakeTensorRt:
        return self

    def get_tensor_name(self, i: int) -> str:
        return ("PIXELS", "DOUBLED")[i]

    def get_tensor_mode(self, name: str) -> str:
        return "in" if name == "PIXELS" else "out"

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self._shape = shape
        return shape[0] <= 16

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self._shape

    def set_tensor_address(self, name: str, address: int) -> None:
        self._addresses[name] = address

    def execute_async_v3(self, stream: int) -> bool:
        self.streams.append(stream)
        size = math.prod(self._shape)
        source = (ctypes.c_uint8 * size).from_address(self._addresses["PIXELS"])
        target = (ctypes.c_float * size).from_address(self._addresses["DOUBLED"])
        target[:] = [2.0 * value for value in source]
        return self._enqueues


def test_a_tensorrt_engine_runs_on_torch_tensors() -> None:
    trt = FakeTensorRt()
    network = TensorRtNetwork(trt, b"plan", (2, 3), device="cpu", stream=lambda: 7)
    for seed in (0, 1):
        pixels = torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (2, 3), np.uint8))
        torch.testing.assert_close(network(pixels)["DOUBLED"], 2.0 * pixels.float())
    assert trt.streams == [7, 7]


@pytest.mark.parametrize(
    ("trt", "shape", "error", "message"),
    [
        (FakeTensorRt(loads=False), (1, 3), ModelBuildError, "another version or GPU"),
        (FakeTensorRt(), (17, 3), ModelBuildError, r"shape \[17, 3\]"),
        (FakeTensorRt(enqueues=False), (1, 3), RuntimeError, "could not enqueue"),
    ],
    ids=["other-version", "batch-too-large", "enqueue"],
)
def test_tensorrt_failures(trt: FakeTensorRt, shape: tuple[int, int], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        TensorRtNetwork(trt, b"", shape, device="cpu", stream=lambda: 0)(torch.zeros(shape, dtype=torch.uint8))


def test_graphs_are_switched_off_in_a_copy(tmp_path: Path) -> None:
    copy = without_graphs(tmp_path)
    files = sorted(path for path in copy.glob("*/configs/fused.pbtxt") if "face_swap" not in str(path))
    assert [path.parent.parent.name for path in files] == ["face_landmarks", "face_reconstruction", "face_tracking"]
    for path in files:
        original = (REPOSITORY / "model_repository" / path.relative_to(copy)).read_text()
        old, new = original.splitlines(), path.read_text().splitlines()
        assert [(a.strip(), b.strip()) for a, b in zip(old, new, strict=True) if a != b] == [
            ('value { string_value: "on" }', 'value { string_value: "off" }')
        ]


ONLY_TORCH_AND_NUMPY = """
import runpy, sys
allowed = {"torch", "torchgen", "functorch", "numpy", "sympy", "mpmath", "networkx", "jinja2", "markupsafe", "filelock"}
allowed |= {"fsspec", "typing_extensions", "facegraph_client", "facegraph_server"} | set(sys.stdlib_module_names)

class Only:
    def __init__(self, finder):
        self._finder = finder

    def find_spec(self, name, path=None, target=None):
        return self._finder.find_spec(name, path, target) if name.partition(".")[0] in allowed else None

sys.meta_path[:] = [Only(finder) for finder in sys.meta_path]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_the_first_half_needs_torch_and_numpy_only(tmp_path: Path) -> None:
    start = f"import sys; sys.argv = sys.argv[1:]\n{ONLY_TORCH_AND_NUMPY}"
    arguments = ["--device", "cpu", "--parts", "network", "served", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", start, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    data = json.loads((tmp_path / "gpu_check-cpu.json").read_text())
    assert data["machine"]["not installed"] == "PIL, cv2, onnx"
    assert [row["name"] for row in data["rows"]] == ["torch face_detector, batch 1", "torch face_mesh, batch 1"]
    assert all(row["graph"] is None for row in data["rows"])
    assert {target["verdict"] for target in data["targets"]} == {"not judged"}
    assert [text.partition(":")[0] for text in data["left_out"]] == ["Triton"]
    assert (tmp_path / "gpu_check-cpu.md").read_text() == done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_script_refuses_to_pretend() -> None:
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, timeout=120)
    assert done.returncode == 3
    assert "sees no GPU" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_memory_of_a_process_on_a_cpu() -> None:
    size = process_memory_bytes("320x240x1", "cpu", graphs=False)
    assert 100 << 20 < size < 4 << 30
    with pytest.raises(RuntimeError, match="write WIDTHxHEIGHTxVIEWS"):
        process_memory_bytes("320", "cpu", graphs=False)
