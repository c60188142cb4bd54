"""What the comparison makes of its timings. The peers themselves are not started: their environment has 1.5 GB."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from facegraph_client import FaceClient, ServerError, SetupError, load_upright_rgb
from facegraph_server.embedded import EmbeddedServer
from numpy.typing import NDArray
from peers import callers, report, verdict
from peers.environment import peers_python
from peers.photos import write_photos
from peers.processes import PeerProcess, Workers, free_ports
from peers.timed_loop import Timing, is_near, timed_loop
from peers.verdict import Load
from peers.worker_protocol import read_photos
from PIL import Image

PHOTOS = ("small", "large")
FACTS = {"command": "python perf/compare_peers.py", "CPU": "a processor"}


def timings(*per_s_and_ms: tuple[float, float]) -> list[Timing]:
    """One timing a round; the large photo takes three times as long as the small one."""
    return [Timing(per_s, [[ms, ms, 99.0], [3 * ms]], 0) for per_s, ms in per_s_and_ms]


def measured(ours: float = 400.0, ours_ms: float = 5.0) -> dict[Load, list[Timing]]:
    """Two rounds; in the second one the machine was twice as slow for everybody."""
    speeds = {
        Load(verdict.IN_PROCESS, 1): (200.0, 4.0),
        Load(verdict.IN_PROCESS, 2): (390.0, 5.0),
        Load(verdict.IN_PROCESS_OPENCV, 1): (150.0, 5.0),
        Load(verdict.IN_PROCESS_OPENCV, 2): (300.0, 6.0),
        Load(verdict.FASTAPI, 1): (100.0, 8.0),
        Load(verdict.FASTAPI, 4): (200.0, 20.0),
        Load(verdict.GRADIO, 1): (50.0, 20.0),
        Load(verdict.GRADIO, 2): (40.0, 50.0),
        Load(verdict.OURS_GRPC, 1): (ours / 2, ours_ms),
        Load(verdict.OURS_GRPC, 4): (ours, 4 * ours_ms),
        Load(verdict.OURS_GRPC, 8): (ours * 0.9, 8 * ours_ms),
    }
    return {load: timings((rate, ms), (rate / 2, ms * 2)) for load, (rate, ms) in speeds.items()}


def test_ratios_are_taken_within_a_round() -> None:
    ratio = verdict.round_by_round([100.0, 50.0, 30.0], [50.0, 25.0, 10.0])
    assert ratio == (2.0, 2.0, 3.0)
    assert str(ratio) == "2.00 (2.00 to 3.00)"
    with pytest.raises(ValueError, match="longer"):
        verdict.round_by_round([1.0], [1.0, 2.0])


def test_latency_is_the_mean_over_photos_of_medians() -> None:
    assert verdict.latency_ms(Timing(1.0, [[4.0, 4.0, 99.0], [12.0], []], 0)) == 8.0


def test_bars_compare_with_the_stronger_peer() -> None:
    two_processes, latency, fastapi, gradio = verdict.judge(measured())
    assert two_processes.ratio == pytest.approx((400 / 390,) * 3)
    assert latency.ratio == pytest.approx((5 / 4,) * 3)
    assert fastapi.ratio == pytest.approx((2.0,) * 3)
    assert gradio.ratio == pytest.approx((8.0,) * 3)
    assert all(bar.is_met for bar in (two_processes, latency, fastapi, gradio))
    faster_with_opencv = measured() | {Load(verdict.IN_PROCESS_OPENCV, 2): timings((800.0, 1.0), (400.0, 2.0))}
    assert verdict.judge(faster_with_opencv)[0].ratio == pytest.approx((0.5,) * 3)


def test_bars_fail() -> None:
    bars = verdict.judge(measured(ours=140.0, ours_ms=6.0))
    assert [bar.is_met for bar in bars] == [False, False, False, False]
    assert report.bar_line(bars[0]).startswith(
        "FAIL: throughput over gRPC / two in-process MediaPipe processes is 0.36"
    )
    assert report.bar_line(bars[1]).endswith("is 1.50 (1.50 to 1.50), promised <= 1.3")
    assert report.bar_line(verdict.judge(measured())[3]).startswith("PASS: ")


def test_the_table_has_a_row_for_each_candidate_at_its_best() -> None:
    rows = {row[0]: row[1:] for row in report.rows(measured())}
    assert list(rows) == [
        verdict.IN_PROCESS,
        verdict.IN_PROCESS_OPENCV,
        verdict.FASTAPI,
        verdict.GRADIO,
        verdict.OURS_GRPC,
    ]
    assert rows[verdict.FASTAPI] == ("150", "4", "2.00 (2.00 to 2.00)", "24.00", "0.62 (0.62 to 0.62)")
    assert rows[verdict.GRADIO][1] == "1"
    assert rows[verdict.OURS_GRPC][:3] == ("300", "4", "1.00 (1.00 to 1.00)")


def test_the_report_says_all() -> None:
    rounds = measured(ours=140.0)
    bars = verdict.judge(rounds)
    text = report.markdown(rounds, bars, PHOTOS, FACTS)
    assert "`python perf/compare_peers.py`" in text
    assert all(f"- {report.bar_line(bar)}" in text for bar in bars)
    assert "| MediaPipe, FastAPI | 12.00 | 36.00 |" in text
    assert "- CPU: a processor" in text
    saved = json.loads(report.as_json(rounds, bars, PHOTOS, FACTS))
    assert [bar["is_met"] for bar in saved["bars"]] == [bar.is_met for bar in bars]
    assert saved["measured"][0]["photos_per_s"] == [200.0, 100.0]
    assert saved["measured"][0]["latency_ms_by_photo"] == [[4.0, 12.0], [8.0, 24.0]]
    assert saved["photos"] == list(PHOTOS)


def test_the_picture_is_a_small_png() -> None:
    data = report.picture(measured())
    with Image.open(io.BytesIO(data)) as image:
        assert image.format == "PNG"
        pixels = np.asarray(image.convert("RGB")).reshape(-1, 3)
    assert len(data) < 100_000
    for colour in (report._OURS_COLOUR, report._PEER_COLOUR):
        rgb = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
        assert (pixels == rgb).all(1).sum() > 500


FACE = np.random.default_rng(0).uniform(100, 200, (1, 468, 3)).astype(np.float32)


def test_near_is_a_part_of_the_width() -> None:
    width = float(np.ptp(FACE[0, :, 0]))
    shift = np.array([1, 0, 0], np.float32) * width
    assert is_near(FACE + 0.009 * shift, FACE, 0.01)
    assert not is_near(FACE + 0.011 * shift, FACE, 0.01)
    assert is_near(FACE + np.array([0, 0, 50], np.float32), FACE, 0.01)  # depths of different scales are not compared
    assert not is_near(FACE[:0], FACE, 1.0)
    assert not is_near(np.concatenate([FACE, FACE]), FACE, 1.0)
    assert not is_near(FACE * np.float32(np.nan), FACE, 1.0)


def test_a_timed_loop_counts_what_all_threads_got() -> None:
    asked: list[bytes] = []

    def ask(photo: bytes) -> NDArray[np.float32]:
        asked.append(photo)
        time.sleep(0.01 if photo == b"a" else 0.03)
        return FACE if photo == b"a" else FACE + 30

    timing = timed_loop([ask, ask], [b"a", b"b"], [FACE, FACE], seconds=0.5, tolerance=0.01)
    assert asked[:2] in ([b"a", b"b"], [b"b", b"a"])
    assert sum(map(len, timing.latency_ms)) == len(asked)
    assert timing.wrong == asked.count(b"b") == len(timing.latency_ms[1])
    assert 30 < timing.photos_per_s <= 100.5  # two threads, 20 ms a call on average, if the machine has time
    assert np.median(timing.latency_ms[0]) >= 10
    assert np.median(timing.latency_ms[1]) >= 30


def test_a_failing_call_ends_the_loop() -> None:
    def fail(_: bytes) -> NDArray[np.float32]:
        raise ServerError("no answer")

    with pytest.raises(ServerError, match="no answer"):
        timed_loop([fail, fail], [b"a"], [FACE], seconds=5, tolerance=0.01)


def test_ours_finds_the_face_on_every_photo(server: EmbeddedServer, tmp_path: Path) -> None:
    names = write_photos(tmp_path)
    photos = read_photos(tmp_path)
    assert len(photos) == len(names) == 4
    sizes = ["x".join(map(str, load_upright_rgb(photo).shape[1::-1])) for photo in photos]
    assert [name.split()[1] for name in names] == sizes
    with FaceClient(server.grpc_address) as client, callers.ask_facegraph(server.grpc_address) as ask:
        for photo in photos:
            (face,) = client.landmarks(photo)
            np.testing.assert_array_equal(ask(photo), face.landmarks_px[None])


WORKER = """
import sys
import time
from pathlib import Path
import numpy as np
sys.path.insert(0, sys.argv[-1])
from peers.worker_protocol import serve_lines
FACE = np.linspace(0, 100, 468 * 3, dtype=np.float32).reshape(1, 468, 3)
serve_lines(lambda photo: time.sleep(0.002) or FACE, sys.argv[1])
"""


@pytest.fixture
def other_program(tmp_path: Path) -> Path:
    """Stands in for the environment's Python: runs a program of this test, whatever module it is given."""
    (tmp_path / "program.py").write_text(WORKER)
    script = tmp_path / "python"
    perf = Path(__file__).parents[2] / "perf"
    script.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} {tmp_path}/program.py "$@" {perf}\n')
    script.chmod(0o755)
    return script


def test_workers_measure_together(other_program: Path, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "0.jpg").write_bytes(b"photo")
    arguments = [str(folder)]
    with (
        PeerProcess(other_program, "run", arguments, log=tmp_path / "0.log") as first,
        PeerProcess(other_program, "run", arguments, log=tmp_path / "1.log") as second,
    ):
        workers = Workers([first, second])
        assert workers.references_px[0].shape == (1, 468, 3)
        one, two = workers.measure(1, 0.1), workers.measure(2, 0.1)
        assert one.wrong == two.wrong == 0
        assert len(two.latency_ms[0]) > 0.2 * len(one.latency_ms[0]) > 0
        pid = first._running().pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_program_that_ends_says_why(other_program: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import sys\nsys.exit('the reason')\n")
    (port,) = free_ports(1)
    log = tmp_path / "log"
    with pytest.raises(SetupError, match="the reason"), PeerProcess(other_program, "serve", [], log=log, port=port):
        pass
    with PeerProcess(other_program, "run", [], log=log) as process, pytest.raises(SetupError, match="the reason"):
        process.read_line(10)


def test_the_environment_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        if "venv" in command:
            (tmp_path / "venv" / "bin").mkdir(parents=True, exist_ok=True)
            (tmp_path / "venv" / "bin" / "python").touch()
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr("peers.environment.subprocess.run", run)
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("one==1\n")
    python = peers_python(tmp_path / "venv", requirements)
    assert len(commands) == 2
    assert commands[1][0] == str(python)
    assert peers_python(tmp_path / "venv", requirements) == python
    assert len(commands) == 2
    requirements.write_text("one==2\n")
    peers_python(tmp_path / "venv", requirements)
    assert len(commands) == 4


def test_a_failed_installation_says_what_pip_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "no matching distribution")

    monkeypatch.setattr("peers.environment.subprocess.run", run)
    with pytest.raises(SetupError, match="no matching distribution"):
        peers_python(tmp_path / "venv")
