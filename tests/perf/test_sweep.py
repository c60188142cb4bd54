"""The parts of the sweep that need neither perf_analyzer nor a server. The reports in tests/data are its own."""

from __future__ import annotations

import base64
import csv
import dataclasses
import io
import json
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from facegraph_client import OutputError
from facegraph_server.image_decode import decode_image
from matplotlib.figure import Figure
from perf_sweep import analyzer as analyzer_module
from perf_sweep import old_glibc
from perf_sweep.analyzer import VERSION, PerfAnalyzer, find_perf_analyzer
from perf_sweep.cases import MODELS, PHOTO_MODELS, Case, make_cases
from perf_sweep.errors import AnalyzerError, AnalyzerMissingError, SweepError
from perf_sweep.inputs import make_inputs
from perf_sweep.measurement import (
    FULL,
    QUICK,
    Addresses,
    Measurement,
    StageTimes,
    analyzer_options,
    gpu_values,
    measure,
    read_measurement,
)
from perf_sweep.old_glibc import AptSource, find_source
from perf_sweep.plots import png, steps_figure, throughput_figure
from perf_sweep.results import BEGIN, END, ResultFolder, update_document
from perf_sweep.run import Plan
from perf_sweep.served import pending_requests
from perf_sweep.tables import (
    Ratio,
    comparison_table,
    loads_table,
    number,
    pair_up,
    ratio,
    remark,
    steps_table,
    summary_table,
)
from PIL import Image

RECORDED = Path(__file__).parents[1] / "data" / "perf_analyzer"
STEPS = ["preprocess", "face_detector", "crop_faces", "face_mesh", "postprocess"]
ADDRESSES = Addresses("h:1", "h:2", "h:3")
CASE = Case("cpu", "face_landmarks", "grpc", concurrency=4)
SWEEP = Path(__file__).parents[2] / "perf" / "sweep.py"


def made(case: Case = CASE, round_number: int = 1, rate: float = 100.0, **other: object) -> Measurement:
    times = {"mean_ms": 12.0, "p50_ms": 1000 / rate, "p90_ms": 14.0, "p95_ms": 15.0, "p99_ms": 20.0}
    steps = {"preprocess": StageTimes(0.5, 0.25, 3.0, 9.0), "face_mesh": StageTimes(0.0, 0.25, 6.0, 9.0)}
    plain = Measurement(
        case=case,
        round=round_number,
        images_per_s=rate,
        client_ms=0.1,
        network_ms=1.0,
        server=StageTimes(0, 0, 10, 1),
        steps={} if case.model not in PHOTO_MODELS else steps,
        stable=True,
        **times,
    )
    return dataclasses.replace(plain, **other)  # type: ignore[arg-type]


def cells(lines: list[str]) -> list[dict[str, str]]:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]


# Cases


def test_photos_go_one_to_a_request_and_networks_in_batches() -> None:
    cases = make_cases(
        "cpu",
        MODELS,
        MODELS,
        protocols=["grpc", "http"],
        shared_memory=["none", "system"],
        batches=[1, 4],
        concurrencies=[1, 2, 8],
    )
    assert len(cases) == len(set(cases)) == 3 * 2 * 2 * 3 + 2 * 2 * 2 * 2 * 3
    assert {case.batch for case in cases if case.model in PHOTO_MODELS} == {1}
    assert {case.images_at_once for case in cases if case.model == "face_mesh"} == {1, 2, 4, 8, 32}


def test_rates_replace_concurrencies_and_models_that_are_not_served_are_left_out() -> None:
    cases = make_cases(
        "fused",
        ["face_mesh", "face_landmarks"],
        ["face_landmarks"],
        protocols=["grpc"],
        shared_memory=["none"],
        batches=[1, 4],
        concurrencies=[1],
        rates_per_s=[20, 50],
    )
    assert [(case.model, case.rate_per_s, case.concurrency) for case in cases] == [
        ("face_landmarks", 20, None),
        ("face_landmarks", 50, None),
    ]


def test_profiles_take_turns_forwards_and_backwards() -> None:
    plan = Plan(("cpu", "fused"), ("face_mesh",), ("grpc",), ("none",), (1, 4), (1,), rounds=3, settings=QUICK)
    assert list(plan.turns()) == [(1, "cpu"), (1, "fused"), (2, "fused"), (2, "cpu"), (3, "cpu"), (3, "fused")]
    assert plan.size == 6  # fused has no face_mesh by itself
    assert plan.not_served("fused") == ["face_mesh"]
    with pytest.raises(SweepError, match="nothing to measure: fused"):
        dataclasses.replace(plan, profiles=("fused",)).require_cases()


# Requests


def test_requests_carry_the_photo_and_what_the_steps_make_of_it(sample_photo: Path, tmp_path: Path) -> None:
    photo = sample_photo.read_bytes()
    inputs = make_inputs({"astronaut": photo})
    assert set(inputs) == set(MODELS)
    inputs["face_reconstruction"].write(tmp_path / "input.json")
    (step,) = json.loads((tmp_path / "input.json").read_text())["data"]
    content = base64.b64decode(step["IMAGE"]["b64"])
    assert int.from_bytes(content[:4], "little") == len(photo)
    assert content[4:] == photo
    assert np.frombuffer(base64.b64decode(step["TEXTURE_SIZE"]["b64"]), np.int32).tolist() == [1024]
    assert inputs["face_reconstruction"].largest_output_bytes >= 3 * 1024**2  # perf_analyzer's own default is 100 KB

    (tracked,) = inputs["face_tracking"].steps
    frame = np.frombuffer(base64.b64decode(tracked["FRAME"]["b64"]), np.uint8).reshape(tracked["FRAME"]["shape"])
    np.testing.assert_array_equal(frame, decode_image(photo))
    assert tracked["PRIOR"]["shape"] == [1, 468, 3]
    (crop,) = inputs["face_mesh"].steps  # one face; no batch dimension
    assert crop["CROPS"]["shape"] == [192, 192, 3]
    pixels = np.frombuffer(base64.b64decode(crop["CROPS"]["b64"]), np.uint8)
    assert pixels.std() > 30
    assert inputs["face_detector"].steps[0]["DETECTOR_INPUT"]["shape"] == [192, 192, 3]


def test_a_photo_without_a_face_is_refused() -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (200, 200), (90, 90, 90)).save(buffer, "PNG")
    with pytest.raises(SweepError, match=r"no face was found in wall\.png"):
        make_inputs({"wall.png": buffer.getvalue()})


# perf_analyzer's options and reports


def option(options: list[str], name: str) -> str:
    return options[options.index(name) + 1]


def options_of(case: Case, **other: bool) -> list[str]:
    gpu_metrics = other.pop("gpu_metrics", False)
    return analyzer_options(
        case, FULL, ADDRESSES, input_file=Path("/x.json"), output_bytes=5_000_000, gpu_metrics=gpu_metrics, **other
    )


def test_options_of_a_concurrency() -> None:
    options = options_of(Case("cpu", "face_mesh", "http", "system", batch=4, concurrency=8), gpu_metrics=True)
    assert option(options, "-u") == "h:1"
    assert option(options, "-b") == "4"
    assert option(options, "--concurrency-range") == "8"  # one value: warm-up needs it
    assert option(options, "--warmup-request-count") == "50"
    assert option(options, "--measurement-interval") == "3000"
    assert option(options, "--stability-percentage") == "10"
    assert option(options, "--output-shared-memory-size") == "5000000"
    assert option(options, "--metrics-url") == "h:3/metrics"
    assert "/" not in option(options, "-f")  # the reports of the steps get their names in front of it


def test_options_of_a_rate() -> None:
    options = options_of(Case("cpu", "face_landmarks", "grpc", rate_per_s=12.5), any_difference=True)
    assert option(options, "-u") == "h:2"
    assert option(options, "--request-rate-range") == "12.5"
    assert "--async" in options
    assert "--concurrency-range" not in options
    assert "--shared-memory" not in options
    assert "--collect-metrics" not in options
    assert option(options, "--max-trials") == "3"
    assert float(option(options, "--stability-percentage")) > 1000


def test_slow_requests_get_longer_windows_and_less_warm_up() -> None:
    assert QUICK.for_requests_of(0.01) == QUICK
    slow = QUICK.for_requests_of(2.0)
    assert (slow.window_s, slow.warm_up_requests) == (10.0, 5)


def test_a_recorded_report_is_read() -> None:
    found = read_measurement(CASE, 2, RECORDED, "", steps=STEPS, stable=True)
    assert (found.images_per_s, found.mean_ms, found.p50_ms, found.p99_ms) == (148.116, 26.645, 24.111, 128.465)
    assert found.images_per_s * found.mean_ms / 1000 == pytest.approx(CASE.concurrency, rel=0.02)  # Little's law
    assert found.steps["face_detector"] == StageTimes(0.55, 0.022, 6.49, 0.144)
    assert list(found.steps) == STEPS
    assert sum(step.compute_infer_ms for step in found.steps.values()) == pytest.approx(
        found.server.compute_infer_ms, rel=0.01
    )
    assert found.between_ms == pytest.approx(
        26.645
        - (0.546 + 0.09 + 2.107)
        - (0.55 + 0.022 + 6.49)
        - (0.221 + 0.019 + 3.478)
        - (1.318 + 0.041 + 0.989)
        - (0.611 + 0.026 + 3.544)
    )
    assert found.gpu_percent is found.gpu_memory_mib is found.delayed_percent is None


def test_gpus_are_read_and_the_busiest_counts(tmp_path: Path) -> None:
    header, row = (RECORDED / "report.csv").read_text().splitlines()
    header += ",Avg GPU Utilization,Avg GPU Power Usage,Max GPU Memory Usage,Total GPU Memory"
    row += ",GPU-a:0.25;GPU-b:0.75;,GPU-a:100.5;GPU-b:300.5;,GPU-a:1048576;GPU-b:2097152;,GPU-a:1;GPU-b:1;"
    (tmp_path / "report.csv").write_text(f"{header}\n{row}\n")
    case = dataclasses.replace(CASE, concurrency=None, rate_per_s=600.0)
    said = "[WARNING] Perf Analyzer was not able to keep up. 99.17% of the requests were delayed."
    found = read_measurement(case, 1, tmp_path, said, steps=[], stable=False)
    assert (found.gpu_percent, found.gpu_memory_mib, found.gpu_power_w) == (75.0, 2.0, 300.5)
    assert found.delayed_percent == 99.17
    assert gpu_values("") == []


def test_a_missing_step_is_an_error_not_a_gap(tmp_path: Path) -> None:
    shutil.copytree(RECORDED, tmp_path / "run")
    (tmp_path / "run" / "crop_faces_v1.report.csv").unlink()
    with pytest.raises(AnalyzerError, match="no times of the step crop_faces"):
        read_measurement(CASE, 1, tmp_path / "run", "", steps=STEPS, stable=True)


@pytest.mark.parametrize("text", ["", "Concurrency,Inferences/Second\n", "Concurrency,Avg latency\n4,1\n"])
def test_a_report_without_its_row_or_columns_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "report.csv").write_text(text)
    with pytest.raises(AnalyzerError):
        read_measurement(CASE, 1, tmp_path, "", steps=[], stable=True)


def stand_in(tmp_path: Path, script: str) -> PerfAnalyzer:
    program = tmp_path / "stand-in"
    program.write_text(f"#!{sys.executable}\nimport pathlib, shutil, sys, time\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    return PerfAnalyzer((str(program),), "stand-in")


def measure_with(analyzer: PerfAnalyzer, folder: Path) -> Measurement:
    return measure(
        analyzer,
        CASE,
        QUICK,
        ADDRESSES,
        input_file=Path("x.json"),
        output_bytes=1,
        gpu_metrics=False,
        steps=STEPS,
        folder=folder,
    )


def test_the_steps_are_found_where_the_program_puts_them(tmp_path: Path) -> None:
    # It writes relative to its working folder, the step's name in front of the value of -f.
    copy = f"[shutil.copy(path, path.name) for path in pathlib.Path({str(RECORDED)!r}).iterdir()]"
    found = measure_with(stand_in(tmp_path, copy), tmp_path / "raw" / "001")
    assert found.steps["face_mesh"].compute_infer_ms == 3.478
    assert found.stable


def test_windows_that_never_agree_are_measured_once_more_and_marked(tmp_path: Path) -> None:
    script = (
        "if '100000' not in sys.argv: sys.exit(print('Failed to obtain stable measurement.') or 2)\n"
        f"[shutil.copy(path, path.name) for path in pathlib.Path({str(RECORDED)!r}).iterdir()]"
    )
    found = measure_with(stand_in(tmp_path, script), tmp_path / "run")
    assert not found.stable
    assert (tmp_path / "run" / "perf_analyzer.txt").read_text().count("--concurrency-range") == 2


def test_what_the_program_said_is_in_the_error(tmp_path: Path) -> None:
    script = "print('error: failed to get model metadata: connection refused'); sys.exit(99)"
    with pytest.raises(AnalyzerError, match="face_landmarks grpc, concurrency 4:\nerror: failed to get model metadata"):
        measure_with(stand_in(tmp_path, script), tmp_path / "run")


def test_waiting_requests_are_counted() -> None:
    metrics = (
        "# HELP nv_inference_pending_request_count Pending\n"
        'nv_inference_pending_request_count{model="a",version="1"} 3\n'
        'nv_inference_pending_request_count{model="b",version="1"} 4\nnv_inference_count{model="b"} 9\n'
    )
    assert pending_requests(metrics) == 7


# Tables


def test_ratio_is_the_median_of_neighbours_with_its_range() -> None:
    assert ratio([20, 30, 90], [10, 10, 30]) == Ratio(3, 2, 3)
    assert str(ratio([20, 30, 90], [10, 10, 30])) == "3.00 (2.00 to 3.00)"
    assert str(ratio([1], [8])) == "0.125"


@pytest.mark.parametrize(
    ("value", "text"), [(0.01234, "0.0123"), (1.239, "1.24"), (12.34, "12.3"), (1234.5, "1234"), (0, "0")]
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


def test_profiles_are_compared_round_by_round() -> None:
    graph = CASE.in_profile("tensorrt")
    base = CASE.in_profile("nograph")
    rates = {1: (100, 150), 2: (50, 125), 3: (80, 160)}
    measured = [made(case, n, r) for n, pair in rates.items() for case, r in zip((base, graph), pair, strict=True)]
    measured.append(made(base, 4, 1e6))  # interrupted before its partner
    (pair,) = pair_up(measured, "nograph", "tensorrt")
    assert pair.throughput_gain == Ratio(2, 1.5, 2.5)
    assert pair.latency_gain == pytest.approx(Ratio(2, 1.5, 2.5))
    (row,) = cells(comparison_table([pair], "nograph", "tensorrt"))
    assert row["nograph images/s"] == "80.0"
    assert row["tensorrt images/s"] == "150"
    assert row["throughput gain"] == "2.00 (1.50 to 2.50)"
    assert row["rounds"] == "3"


def test_summary_shows_one_and_four_at_once() -> None:
    photo = [made(dataclasses.replace(CASE, concurrency=n), rate=100.0 * n) for n in (1, 2, 4)]
    network = [
        made(Case("cpu", "face_mesh", "grpc", batch=b, concurrency=c), rate=10.0 * b * c, server_memory_mib=500.0 + b)
        for b, c in ((1, 1), (1, 4), (4, 1))
    ]
    network[0] = dataclasses.replace(network[0], stable=False)
    first, second = cells(summary_table([*photo, *network], None))
    assert (first["images/s at 1"], first["images/s at 4"], first["server MiB"]) == ("100", "400", "-")
    # A batch of four in one request, not four requests of one.
    assert (second["images/s at 1"], second["images/s at 4"], second["server MiB"]) == ("10.0", "40.0", "504")
    assert (first["profile"], second["profile"]) == ("cpu", "cpu *")
    assert not {"GPU %", "GPU MiB", "gain at 1"} & set(first)  # nothing of it was measured


def test_summary_shows_gpu_and_gain() -> None:
    one = dataclasses.replace(CASE, concurrency=1)
    measured = [
        made(one.in_profile("nograph")),
        made(one.in_profile("tensorrt"), rate=230.0, gpu_percent=61.7, gpu_memory_mib=900.0),
    ]
    base, graph = cells(summary_table(measured, "nograph"))
    assert (base["gain at 1"], graph["gain at 1"]) == ("-", "2.30")
    assert (base["GPU %"], graph["GPU %"], graph["GPU MiB"]) == ("-", "62", "900")


def test_steps_and_what_is_between_add_up_to_the_whole() -> None:
    (row,) = cells(steps_table([made(dataclasses.replace(CASE, concurrency=1)), made(CASE)]))
    assert (row["preprocess"], row["face_mesh"], row["between"], row["whole"]) == ("3.75", "6.25", "2.00", "12.0")
    assert steps_table([made(Case("cpu", "face_mesh", "grpc", concurrency=1))]) == []


def test_remarks() -> None:
    rate = dataclasses.replace(CASE, concurrency=None, rate_per_s=120.0)
    assert remark([made(rate, rate=119.0)]) == ""
    assert remark([made(rate, rate=100.0)]) == "more than it can answer"
    assert remark([made(), made(stable=False)]) == "not stable in 1 of 2 rounds"
    assert cells(loads_table([made(rate)]))[0]["load"] == "120 requests/s"
    assert summary_table([made(rate)], None) == []


# Pictures


def points(figure: Figure, axes: int = 0) -> list[tuple[list[float], list[float]]]:
    lines = figure.axes[axes].get_lines()
    return [(list(map(float, line.get_xdata())), list(map(float, line.get_ydata()))) for line in lines]  # type: ignore[arg-type]


def test_throughput_picture_has_a_panel_a_model_and_a_point_a_load() -> None:
    measured = [made(dataclasses.replace(CASE, concurrency=n), rate=100.0 * n) for n in (4, 1)]
    measured.append(made(Case("cpu", "face_mesh", "grpc", concurrency=1)))
    figure = throughput_figure(measured)
    assert [axes.get_title() for axes in figure.axes] == ["face_landmarks", "face_mesh"]
    assert points(figure)[0] == ([100, 400], [10, 2.5])
    assert points(figure)[1] == ([100, 400], [20, 20])
    assert png(figure).startswith(b"\x89PNG")


def test_steps_picture_stacks_to_the_whole() -> None:
    figure = steps_figure([made(dataclasses.replace(CASE, concurrency=1))])
    assert figure is not None
    bars = figure.axes[0].patches
    assert [bar.get_width() for bar in bars] == [3.75, 6.25, 2]  # type: ignore[attr-defined]
    assert [bar.get_x() for bar in bars] == [0, 3.75, 10]  # type: ignore[attr-defined]
    assert steps_figure([made()]) is None


# The folder


def read_csv(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def about() -> dict[str, object]:
    return {"machine": {"CPU": "a slow one"}, "command": "python perf/sweep.py", "failed": [], "interrupted": False}


def test_finished_cases_stay_and_the_report_has_machine_and_numbers(tmp_path: Path) -> None:
    results = ResultFolder(tmp_path, overwrite=False)
    measured = [made(dataclasses.replace(CASE, concurrency=n), rate=100.0 * n) for n in (1, 4)]
    for i, measurement in enumerate(measured, 1):
        results.add(measurement)
        assert len((tmp_path / "results.csv").read_text().splitlines()) == 1 + i
    rows = read_csv(tmp_path / "results.csv")
    assert [(row["model"], row["concurrency"], row["images_per_s"]) for row in rows] == [
        ("face_landmarks", "1", "100"),
        ("face_landmarks", "4", "400"),
    ]
    steps = read_csv(tmp_path / "steps.csv")
    assert [(row["step"], row["compute_infer_ms"]) for row in steps[:2]] == [("preprocess", "3"), ("face_mesh", "6")]
    paths = results.finish(measured, about(), ["cpu"])
    assert {path.name for path in paths} == {
        "results.csv", "steps.csv", "sweep.json", "report.md", "throughput.png", "steps.png",
    }  # fmt: skip
    report = (tmp_path / "report.md").read_text()
    assert "CPU: a slow one" in report
    assert "python perf/sweep.py" in report
    assert json.loads((tmp_path / "sweep.json").read_text()) == about()


def test_an_earlier_sweep_is_not_replaced_unasked_and_other_files_never(tmp_path: Path) -> None:
    ResultFolder(tmp_path, overwrite=False).add(made())
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match="--overwrite"):
        ResultFolder(tmp_path, overwrite=False)
    assert (tmp_path / "results.csv").exists()
    ResultFolder(tmp_path, overwrite=True)
    assert not (tmp_path / "results.csv").exists()
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_only_the_marked_part_of_the_document_changes(tmp_path: Path) -> None:
    document = tmp_path / "performance.md"
    document.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    update_document(document, ["new"])
    update_document(document, ["newer"])
    assert document.read_text() == f"before\n{BEGIN}\n\nnewer\n{END}\nafter\n"
    document.write_text("no marks")
    with pytest.raises(OutputError, match="has no lines"):
        update_document(document, ["new"])


def test_the_document_of_the_project_shows_what_a_sweep_wrote() -> None:
    text = (SWEEP.parents[1] / "docs" / "performance.md").read_text()
    block = text.partition(BEGIN)[2].partition(END)[0]
    assert "- command: `python perf/sweep.py --quick" in block
    for model in MODELS:
        assert f"| {model} " in block
    for picture in ("images/sweep-throughput.png", "images/sweep-steps.png"):
        assert f"({picture})" in block
        assert (SWEEP.parents[1] / "docs" / picture).is_file()


# Finding perf_analyzer


def test_mirrors_are_found_in_both_formats() -> None:
    old = "# deb http://no.example bookworm main\ndeb [signed-by=/k.gpg] http://one.example/debian bookworm main\n"
    new = (
        "Types: deb\nURIs: http://sec.example/debian-security\nSuites: bookworm-security\nComponents: main\n\n"
        "Types: deb\n# URIs: http://no.example\nURIs: http://two.example/debian\nSuites: bookworm bookworm-updates\n"
        "Signed-By: /usr/share/keyrings/k.gpg\n"
    )
    assert find_source([old], "bookworm") == AptSource("http://one.example/debian", "/k.gpg")
    assert find_source(["", new], "bookworm") == AptSource("http://two.example/debian", "/usr/share/keyrings/k.gpg")
    assert find_source([new.replace("Types: deb\n# ", "Enabled: no\n# ")], "bookworm") is None
    assert find_source([old, new], "noble") is None


def fake_wheel(monkeypatch: pytest.MonkeyPatch, script: str) -> list[str]:
    """Put a script where pip's download would be; return what was reported."""

    def download(folder: Path) -> Path:
        with zipfile.ZipFile(folder / "perf_analyzer.whl", "w") as archive:
            archive.writestr("perf_analyzer/bin/perf_analyzer", f"#!/bin/sh\n{script}\n")
            archive.writestr("perf_analyzer-1.dist-info/licenses/LICENSE", "BSD")
        return folder / "perf_analyzer.whl"

    monkeypatch.setattr(analyzer_module, "_download_wheel", download)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    return []


def test_the_one_on_the_path_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "perf_analyzer"
    program.write_text("#!/bin/sh\necho 'Perf Analyzer Version 2.59.0 (commit x)' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = find_perf_analyzer(pytest.fail, tmp_path / "build")
    assert found.command == (str(program),)
    assert found.version.startswith("2.59.0 (commit x)")


def test_a_wheel_that_runs_is_fetched_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    reports = fake_wheel(monkeypatch, "echo Perf Analyzer Version 0.0.0")
    for _ in range(2):
        assert find_perf_analyzer(reports.append, tmp_path) == PerfAnalyzer(
            (str(tmp_path / VERSION / "perf_analyzer"),), VERSION
        )
    assert len(reports) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [VERSION]  # nothing temporary stays


def test_another_old_system_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_wheel(monkeypatch, "echo version GLIBC_2.38 not found >&2; exit 1")
    monkeypatch.setattr(old_glibc.platform, "freedesktop_os_release", lambda: {"ID": "ubuntu", "PRETTY_NAME": "Old"})
    with pytest.raises(AnalyzerMissingError, match=r"(?s)newer glibc than .* of Old.*SDK container.*--server"):
        find_perf_analyzer(lambda _: None, tmp_path)
    assert not (tmp_path / "runtime").exists()


def test_another_processor_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(analyzer_module.platform, "machine", lambda: "aarch64")
    with pytest.raises(AnalyzerMissingError, match=r"no perf_analyzer wheel for linux aarch64; .*SDK container"):
        find_perf_analyzer(lambda _: None, tmp_path)


# The command


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--compare", "cpu", "fused", "--profiles", "cpu"], "leave out --profiles"),
        (["--request-rate", "5", "--concurrency", "1"], "give one of them"),
        (["--server", "h:1,2"], "HOST:8000,8001,8002"),
        (["--models", "face_msh"], "face_msh"),
        (["--batch", "17"], "17"),
        (["--profiles", "fused", "--models", "face_mesh"], "nothing to measure"),
        (["--server", "127.0.0.1:1,2,3"], "no Triton answers"),
    ],
)
def test_mistakes_are_named_with_exit_status_two(arguments: list[str], message: str, tmp_path: Path) -> None:
    command = [sys.executable, str(SWEEP), *arguments, "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
