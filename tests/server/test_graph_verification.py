"""The judgement of the verification, on made-up answers: it must see what it is there to see."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from facegraph_client import Face, InputError
from facegraph_server.checks import Check, at_least, at_most, equal, not_judged
from facegraph_server.errors import ServerStartError
from facegraph_server.nvidia_smi import GpuReading
from facegraph_server.verification import networks, pipeline
from facegraph_server.verification.graph_use import check_counters, check_log, graph_counters
from facegraph_server.verification.run import VerificationPlan, VerificationReport
from facegraph_server.verification.soak import (
    ProcessMemory,
    Sample,
    SoakResult,
    check_soak,
    server_memory,
    soak,
    theil_sen_slope,
)

from tests.server.test_graph_use import BATCHES, captured, enqueued, launched

NETWORK_INSTANCES = ("face_detector_0_0", "face_mesh_0_0")


def face(seed: int = 0, *, shift_px: float = 0.0, level: int = 0) -> Face:
    rng = np.random.default_rng(seed)
    texture = rng.integers(0, 200, (32, 32, 3)).astype(np.uint8) + np.uint8(level)
    return Face(
        landmarks_px=(rng.random((468, 3)) * 100 + shift_px).astype(np.float32),
        box_xyxy=np.zeros(4, np.float32),
        score=0.9,
        vertices_cm=np.zeros((468, 3), np.float32),
        pose=np.eye(4, dtype=np.float32),
        texture_rgb=texture,
        coverage=np.zeros((32, 32), np.uint8),
    )


def failed(checks: list[Check]) -> list[str]:
    return [check.name for check in checks if check.passed is False]


def good_log() -> list[str]:
    lines = [captured(instance, batch) for instance in NETWORK_INSTANCES for batch in BATCHES]
    return lines + [launched(instance) for instance in NETWORK_INSTANCES for _ in range(32)]


def test_a_good_log_passes() -> None:
    checks = check_log("\n".join(good_log()), "tensorrt")
    assert failed(checks) == []
    assert len(checks) == 7


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        pytest.param(lambda lines: lines[1:], "face_detector: batch sizes captured", id="one-size-missing"),
        pytest.param(
            lambda lines: [*lines, enqueued("face_mesh_0_0")], "face_mesh: runs without a graph", id="enqueued"
        ),
        pytest.param(
            lambda lines: [line for line in lines if "launching CUDA graph for face_mesh" not in line],
            "face_mesh: runs that replayed a graph",
            id="never-launched",
        ),
        pytest.param(
            lambda lines: [*lines, "unable to record CUDA graph for face_mesh_0_0"],
            "lines that tell of a failed capture",
            id="failed",
        ),
        pytest.param(lambda _: [], "face_mesh: batch sizes captured", id="not-verbose"),
    ],
)
def test_a_bad_log_fails(change: Callable[[list[str]], list[str]], complaint: str) -> None:
    assert any(complaint in name for name in failed(check_log("\n".join(change(good_log())), "tensorrt")))


def test_nograph_must_not_replay() -> None:
    text = "\n".join(map(enqueued, NETWORK_INSTANCES))
    assert failed(check_log(text, "nograph")) == []
    assert failed(check_log(f"{text}\n{launched('face_mesh_0_0')}", "nograph")) == [
        "nograph, face_mesh: runs that replayed a graph"
    ]


def test_profiles_without_engines_log_no_graphs() -> None:
    assert check_log("", "cpu") == []


METRICS = """# HELP facegraph_graph_replays_total Runs that replayed a CUDA graph
# TYPE facegraph_graph_replays_total counter
facegraph_graph_replays_total{model="face_landmarks",version="1"} 5.000000
facegraph_graph_replays_total{model="face_tracking",version="1"} 2.000000
facegraph_graph_captures_total{model="face_landmarks",version="1"} 8.000000
facegraph_graph_eager_runs_total{model="face_tracking",version="1"} 0.000000
"""


def test_counters_add_up_over_models() -> None:
    assert graph_counters(METRICS) == {"captures": 8.0, "replays": 7.0, "eager_runs": 0.0, "fallbacks": 0.0}


def with_eager_runs(metrics: str) -> str:
    return metrics.replace('eager_runs_total{model="face_tracking",version="1"} 0', 'eager_runs_total{model="x"} 1')


@pytest.mark.parametrize(
    ("metrics", "options", "complaints"),
    [
        (METRICS, {"has_gpu": True}, []),
        (with_eager_runs(METRICS), {"has_gpu": True}, ["fused: runs without a graph"]),
        ("", {"has_gpu": True}, ["fused: graphs captured", "fused: runs that replayed a graph"]),
        (
            METRICS,
            {"has_gpu": True, "graphs": False},
            [
                "fused with its graphs off: runs without a graph",
                "fused with its graphs off: runs that replayed a graph",
            ],
        ),
        (with_eager_runs(""), {"has_gpu": False}, ["fused without a GPU: runs without a graph"]),
        (with_eager_runs(METRICS), {"has_gpu": False}, []),
    ],
    ids=["replayed", "eager-too", "nothing-counted", "not-off", "no-gpu-nothing-counted", "no-gpu"],
)
def test_counters_are_judged(metrics: str, options: dict[str, bool], complaints: list[str]) -> None:
    assert failed(check_counters(metrics, **options)) == complaints  # type: ignore[arg-type]


def answers(orders: Callable[[str], list[Face]]) -> pipeline.PipelineAnswers:
    photos = {name: name.encode() for name in ("A", "B", "C", "empty")}
    return pipeline.ask_pipeline(lambda photo: orders(photo.decode()), photos)


def faces_of(photo: str) -> list[Face]:
    return [] if photo == "empty" else [face("ABC".index(photo))]


def test_steady_answers_pass() -> None:
    steady = answers(faces_of)
    checks = pipeline.check_orders(steady, "x")
    assert len(checks) == 8
    assert failed(checks) == []
    assert failed(pipeline.check_pair(steady, steady, ("x", "y"), pipeline.SAME_CODE)) == []


class Stale:
    """Answers that hang behind: what a graph replayed on other buffers than those of its request gives."""

    def __init__(self, behind: int) -> None:
        self._asked = ["C"] * behind
        self._lock = threading.Lock()
        self._behind = behind

    def __call__(self, photo: str) -> list[Face]:
        with self._lock:
            self._asked.append(photo)
            return faces_of(self._asked[-1 - self._behind])


def test_answers_one_request_behind_show_in_every_order() -> None:
    names = failed(pipeline.check_orders(answers(Stale(1)), "x"))
    for order in ("A..AB..B", "ABAB", "A..AB..B at once", "mixed at once"):
        assert f"x, order {order}: landmarks against alone" in names
        assert f"x, order {order}: texture against alone, PSNR" in names


def test_the_first_answers_after_a_change_being_those_before_shows() -> None:
    """AAAABBBB gives A for the first B: the pattern of triton-inference-server/server issue 8550."""
    asked: list[str] = []

    def stale(photo: str) -> list[Face]:
        asked.append(photo)
        last_four = asked[-5:-1]
        return faces_of("A") if photo == "B" and last_four == ["A"] * 4 else faces_of(photo)

    names = failed(pipeline.check_orders(answers(stale), "x"))
    assert "x, order A..AB..B: landmarks against alone" in names
    assert not any("ABAB" in name for name in names)


def test_answers_mixed_up_between_concurrent_requests_show() -> None:
    under_way: list[str] = []
    lock = threading.Lock()

    def mixed_up(photo: str) -> list[Face]:
        with lock:
            under_way.append(photo)
        time.sleep(0.02)
        with lock:
            other = next((name for name in under_way if name != photo), photo)
            under_way.remove(photo)
        return faces_of(other)

    names = failed(pipeline.check_orders(answers(mixed_up), "x"))
    assert {
        "x, order mixed at once: landmarks against alone",
        "x, order A..AB..B at once: landmarks against alone",
    } <= {*names}
    assert not any("ABAB" in name or "A..AB..B:" in name for name in names)


def test_an_order_that_loses_a_face_shows() -> None:
    count = itertools.count()
    names = failed(pipeline.check_orders(answers(lambda photo: [] if next(count) == 7 else faces_of(photo)), "x"))
    assert "x, order A..AB..B: landmarks against alone" in names


@pytest.mark.parametrize(
    ("other", "complaints"),
    [
        pytest.param([face(shift_px=0.02)], {"landmarks"}, id="moved"),
        pytest.param([face(level=1)], {"texture, PSNR"}, id="one-colour-level"),
        pytest.param([face(5)], {"landmarks", "texture, SSIM", "texture, PSNR"}, id="another-face"),
        pytest.param([face(), face()], {"faces found", "landmarks", "texture, SSIM", "texture, PSNR"}, id="one-more"),
    ],
)
def test_profiles_that_differ_fail(other: list[Face], complaints: set[str]) -> None:
    found, expected = (
        pipeline.PipelineAnswers({"photo": other}),
        pipeline.PipelineAnswers({"photo": [face()]}),
    )
    names = failed(pipeline.check_pair(found, expected, ("x", "y"), pipeline.SAME_CODE))
    assert {name.partition(": ")[2] for name in names} == complaints


def test_photos_without_any_face_prove_nothing() -> None:
    none = pipeline.PipelineAnswers({"photo": []})
    assert failed(pipeline.check_pair(none, none, ("x", "y"), pipeline.SAME_CODE)) == ["x against y: faces to compare"]


@pytest.mark.parametrize(
    ("profiles", "bars"),
    [
        (("tensorrt", "nograph"), pipeline.SAME_CODE),
        (("nograph", "tensorrt"), pipeline.SAME_CODE),
        (("fused", "fused"), pipeline.SAME_CODE),
        (("fused", "cpu"), pipeline.SAME_ALGORITHM),
        (("tensorrt", "cpu"), pipeline.SAME_ALGORITHM),
    ],
)
def test_graph_and_no_graph_must_agree_more_closely(profiles: tuple[str, str], bars: pipeline.Bars) -> None:
    assert pipeline.bars_for(profiles) == bars
    assert pipeline.SAME_CODE.texture_ssim == 0.9998
    assert pipeline.SAME_ALGORITHM.texture_psnr_db == 40


def test_between_two_implementations_the_ssim_is_recorded_only() -> None:
    found, expected = (pipeline.PipelineAnswers({"photo": [face(level=level)]}) for level in (2, 0))
    checks = pipeline.check_pair(found, expected, ("x", "y"), pipeline.SAME_ALGORITHM)
    assert [(check.name.rpartition(": ")[2], check.passed) for check in checks[2:]] == [
        ("landmarks", True), ("texture, PSNR", True), ("texture, SSIM", None),
    ]  # fmt: skip
    assert isinstance(checks[-1].found, float)
    assert 0.9 < checks[-1].found < 1


@pytest.mark.parametrize(
    ("found", "difference"),
    [
        ({"X": np.array([0.0, 10.0]), "SCORES": np.array([0.5])}, 0.0),
        ({"X": np.array([0.0, 10.1]), "SCORES": np.array([0.5])}, 0.01),
        ({"X": np.array([0.0, 10.0]), "SCORES": np.array([0.7])}, 0.2),
        ({"X": np.array([0.0, np.nan]), "SCORES": np.array([0.5])}, np.inf),
        ({"X": np.array([0.0]), "SCORES": np.array([0.5])}, np.inf),
        ({"X": np.array([0.0, 10.0])}, np.inf),
    ],
    ids=["equal", "of-range", "probability", "nan", "shape", "missing"],
)
def test_differences_of_networks(found: dict[str, np.ndarray], difference: float) -> None:
    expected = {"X": np.array([0.0, 10.0]), "SCORES": np.array([0.5])}
    assert networks.largest_difference(found, expected) == pytest.approx(difference)


def test_served_networks_are_compared_batch_by_batch() -> None:
    one = {(name, batch): {"X": np.arange(4.0)} for name in ("face_detector", "face_mesh") for batch in (1, 2)}
    other = one | {("face_mesh", 2): {"X": np.arange(4.0) + 0.001}}
    assert failed(networks.compare_served((one, 0.0), (one, 0.0))) == []
    assert [n.split(",")[0] for n in failed(networks.compare_served((other, 0.0), (one, 0.0)))] == ["face_mesh"]
    assert "second profile" in failed(networks.compare_served((one, 0.0), (one, 0.1)))[0]
    assert networks.compare_served((one, 0.0), ({}, 0.0))[0].passed is None


def clock(step_s: float = 1.0) -> Callable[[], float]:
    ticks: Iterator[float] = iter(np.arange(0, 1e6, step_s).tolist())
    return lambda: next(ticks)


def run_soak(
    growth_mib_per_request: float, answer: Callable[[int, int], bytes], *, duration_s: float = 600
) -> SoakResult:
    asked: list[int] = []
    rng = np.random.default_rng(0)

    def ask(number: int) -> bytes:
        asked.append(number)
        return answer(number, len(asked))

    def memory() -> ProcessMemory:
        return ProcessMemory(100 + rng.normal(), 200 + growth_mib_per_request * len(asked))

    return soak(ask, 3, duration_s, interval_s=2, read_memory=memory, clock=clock(duration_s / 60))


def test_a_steady_soak_passes() -> None:
    result = run_soak(0, lambda number, _: bytes([number]))
    assert result.requests >= 20
    assert failed(check_soak(result, "x")) == []


def test_a_leak_and_a_changed_answer_fail() -> None:
    result = run_soak(1, lambda number, i: bytes([number, i == 11]))
    assert result.changed == 1
    assert failed(check_soak(result, "x")) == [
        "x: answers that were not those of the start, bit by bit",
        "x: growth of memory, Python steps",
    ]
    growth = result.growth("stubs")
    assert growth is not None
    assert growth.growth_mib == pytest.approx(2 / 3 * result.requests, rel=0.15)
    assert growth.limit_mib == 8


def test_a_short_soak_records_memory_without_judging_it() -> None:
    checks = {check.name: check for check in check_soak(run_soak(1, lambda *_: b"", duration_s=60), "x")}
    assert all(check.passed is not False for check in checks.values())
    check = checks["x: growth of memory, Python steps"]
    assert check.passed is None
    assert str(check.found).endswith("MiB")
    assert "too short to tell a leak" in check.bar


def test_a_short_soak_still_asks_everything_twice() -> None:
    result = soak(lambda i: bytes([i]), 3, 0, interval_s=1, read_memory=lambda: None)
    assert (result.requests, result.changed) == (6, 0)
    assert [c.passed for c in check_soak(result, "x")] == [True, True, None, None, None]


def test_gpu_readings_are_recorded() -> None:
    gpu = GpuReading(900.0, 60.0, None, 200.0)
    samples = [Sample(60.0 * i, None, gpu._replace(temperature_c=50.0 + i)) for i in range(9)]
    checks = {check.name: check for check in check_soak(SoakResult(6, 0, samples), "x")}
    assert checks["x: GPU temperature"].found == "median 54, highest 58 degrees C"
    assert checks["x: growth of memory, GPU"].passed
    assert "x: GPU utilisation" not in checks


def test_the_trend_ignores_an_outlier() -> None:
    assert theil_sen_slope([0, 1, 2, 3, 4], [0, 2, 400, 6, 8]) == pytest.approx(2)


def test_no_triton_no_memory() -> None:
    assert server_memory(2**22 + 1) is None


def test_report_says_what_it_found() -> None:
    checks = [
        at_most("networks", "a", 1e-6, 1e-5, "of range"),
        at_least("pipeline", "b | c", float("inf"), 60.0, "dB"),
        equal("log", "d", 3, 3),
        not_judged("soak", "e", "no GPU"),
    ]
    samples = [Sample(1.5, ProcessMemory(1, 2), None), Sample(3, None, None)]
    report = VerificationReport({"GPU": "none"}, checks, samples)
    assert report.verified
    data = json.loads(report.to_json())
    assert data["soak_samples"] == [{"time_s": 1.5, "server_mib": 1, "stubs_mib": 2}, {"time_s": 3}]
    assert [check["found"] for check in data["checks"]] == [1e-6, "inf", 3, None]
    rows = [[cell.strip() for cell in line.split(" | ")] for line in report.to_markdown().splitlines()]
    assert ["| pipeline", "b \\| c", "inf", ">= 60 dB", "passed     |"] in rows
    assert not replace(report, checks=[*checks, at_most("networks", "f", float("nan"), 1.0)]).verified
    assert not replace(report, checks=[not_judged("soak", "e", "no GPU")]).verified


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"profiles": ("fast", "cpu")}, ServerStartError, "no profile 'fast'"),
        ({"levels": ("networks", "sock")}, InputError, "no level sock"),
    ],
)
def test_impossible_plans_are_refused(options: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        VerificationPlan(**options)  # type: ignore[arg-type]
