"""The sweep with the real perf_analyzer against a real Triton."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from facegraph_client import FaceGraphError
from facegraph_server.embedded import EmbeddedServer
from perf_sweep.analyzer import find_perf_analyzer
from perf_sweep.errors import AnalyzerMissingError, SweepError
from perf_sweep.inputs import ModelInput, make_inputs, tensor
from perf_sweep.measurement import Addresses
from perf_sweep.probe import probe
from perf_sweep.served import find_running

SWEEP = Path(__file__).parents[2] / "perf" / "sweep.py"
STEPS = {"preprocess", "face_detector", "crop_faces", "face_mesh", "postprocess"}


@pytest.fixture(scope="module", autouse=True)
def _perf_analyzer() -> None:
    try:
        find_perf_analyzer(print)
    except AnalyzerMissingError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def addresses(server: EmbeddedServer) -> Addresses:
    return Addresses(server.http_address, server.grpc_address, server.metrics_address)


@pytest.fixture(scope="module")
def inputs(sample_photo: Path) -> dict[str, ModelInput]:
    return make_inputs({"astronaut": sample_photo.read_bytes()})


def read_csv(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def as_option(addresses: Addresses) -> str:
    host = addresses.http.partition(":")[0]
    return f"{host}:{','.join(address.rpartition(':')[2] for address in addresses)}"


@pytest.mark.slow
def test_a_sweep_measures_what_adds_up(addresses: Addresses, tmp_path: Path) -> None:
    command = [sys.executable, str(SWEEP), "--quick", "--server", as_option(addresses), "--out", str(tmp_path / "out")]
    command += ["--models", "face_landmarks,face_mesh", "--protocols", "grpc", "--batch", "4", "--concurrency", "2"]
    done = subprocess.run([*command, "--shared-memory", "none,system"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = read_csv(tmp_path / "out" / "results.csv")
    assert [(row["model"], row["shared_memory"], row["batch"]) for row in rows] == [
        ("face_landmarks", "none", "1"),
        ("face_landmarks", "system", "1"),
        ("face_mesh", "none", "4"),
        ("face_mesh", "system", "4"),
    ]
    for row in rows:
        assert row["profile"] == "cpu"
        # Little's law: what is under way is what arrives a second times how long it stays.
        under_way = float(row["images_per_s"]) / float(row["batch"]) * float(row["mean_ms"]) / 1000
        assert under_way == pytest.approx(2, rel=0.1)
        assert 0 < float(row["p50_ms"]) <= float(row["p90_ms"]) <= float(row["p95_ms"]) <= float(row["p99_ms"])
    steps = read_csv(tmp_path / "out" / "steps.csv")
    for memory in ("none", "system"):
        (row,) = (row for row in rows if row["model"] == "face_landmarks" and row["shared_memory"] == memory)
        mine = {step["step"]: step for step in steps if step["shared_memory"] == memory}
        assert set(mine) == STEPS
        computing_ms = sum(float(step["compute_infer_ms"]) for step in mine.values())
        assert computing_ms == pytest.approx(float(row["compute_infer_ms"]), rel=0.05)  # the ensemble's own sum
        waiting_ms = sum(float(step["queue_ms"]) + float(step["compute_input_ms"]) for step in mine.values())
        assert 0.5 * float(row["mean_ms"]) < computing_ms + waiting_ms < 1.05 * float(row["mean_ms"])
    facts = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert facts["machine"]["Triton"].count(".") == 2
    assert (facts["failed"], facts["interrupted"]) == ([], False)
    assert "| face_landmarks | grpc, system shm | cpu" in (tmp_path / "out" / "report.md").read_text()


@pytest.fixture
def sweep_under_way(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [
        sys.executable,
        str(SWEEP),
        "--quick",
        "--profiles",
        "cpu",
        "--models",
        "face_mesh",
        "--protocols",
        "grpc",
    ]
    process = subprocess.Popen([*command, "--out", str(tmp_path / "out")], stderr=subprocess.PIPE, text=True)
    yield process
    if process.poll() is None:
        process.kill()
    process.wait()


@pytest.mark.slow
def test_an_interrupted_sweep_keeps_what_is_finished(sweep_under_way: subprocess.Popen[str], tmp_path: Path) -> None:
    assert sweep_under_way.stderr is not None
    for line in sweep_under_way.stderr:
        if "images/s" in line:
            break
    sweep_under_way.send_signal(signal.SIGINT)
    rest = sweep_under_way.stderr.read()
    sweep_under_way.stderr.close()
    assert sweep_under_way.wait(60) == 130, rest
    rows = read_csv(tmp_path / "out" / "results.csv")
    assert 1 <= len(rows) < 4
    assert 100 < float(rows[0]["server_memory_mib"]) < 4000
    assert json.loads((tmp_path / "out" / "sweep.json").read_text())["interrupted"] is True
    assert (tmp_path / "out" / "report.md").is_file()


def test_a_running_server_is_recognised_and_its_steps_are_known(addresses: Addresses) -> None:
    running = find_running(addresses)
    assert (running.profile, running.own) == ("cpu", False)
    assert set(running.steps("face_landmarks")) == STEPS
    assert running.steps("face_mesh") == []
    running.wait_until_idle()


def test_the_probe_times_every_model(addresses: Addresses, inputs: dict[str, ModelInput]) -> None:
    for model, model_input in inputs.items():
        assert 0.0001 < probe(addresses, model, model_input.steps[0]) < 10


def test_the_probe_refuses_requests_that_find_no_face(addresses: Addresses, inputs: dict[str, ModelInput]) -> None:
    (step,) = inputs["face_tracking"].steps
    blank = tensor(np.full((200, 200, 3), 90, np.uint8))
    nobody = tensor(np.zeros((1, 468, 3), np.float32))
    with pytest.raises(SweepError, match="face_tracking finds no face"):
        probe(addresses, "face_tracking", {**step, "FRAME": blank, "PRIOR": nobody})
    with pytest.raises(FaceGraphError, match=r"face_landmarks does not answer: .*picture"):
        probe(
            addresses,
            "face_landmarks",
            {**inputs["face_landmarks"].steps[0], "IMAGE": {"b64": "BAAAAAECAwQ=", "shape": [1]}},
        )
