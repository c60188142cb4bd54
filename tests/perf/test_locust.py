"""Locust loads the real server, notices wrong answers, and notices when it loads nothing."""

from __future__ import annotations

import csv
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from facegraph_client import FaceLandmarks
from facegraph_server.embedded import EmbeddedServer
from locust_load.frame_clock import FrameClock
from locust_load.judgement import Ledger, Limits, Outcome, complaints
from locust_load.knee import Counts, Step, is_past_knee, knee, percentile_ms, step_between
from locust_load.photos import MovingFace, WrongAnswerError, check_faces, known_photos

PERF = Path(__file__).parents[2] / "perf"


class Run(NamedTuple):
    status: int
    log: str
    rows: list[dict[str, str]]
    took_s: float

    @property
    def total(self) -> dict[str, str]:
        return self.rows[-1]


def load(server: EmbeddedServer, folder: Path, *arguments: str, file: str = str(PERF / "locustfile.py")) -> Run:
    """Run Locust without a web page; the last row of its statistics is the total."""
    command = [sys.executable, "-m", "locust", "-f", file, "--headless", "--only-summary", "--csv", str(folder / "run")]
    command += ["--host", server.grpc_address, "--http-address", server.http_address, *arguments]
    begin = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    took_s = time.monotonic() - begin
    stats = folder / "run_stats.csv"
    with stats.open() if stats.exists() else (folder / "none").open("w+") as lines:
        rows = list(csv.DictReader(lines))
    return Run(done.returncode, done.stdout + done.stderr, rows, took_s)


def changed(folder: Path, before: str) -> str:
    """A locustfile that runs ``before``, then is the real one."""
    path = folder / "changed_locustfile.py"
    path.write_text(f"import sys\nsys.path.insert(0, {str(PERF)!r})\n{before}\nfrom locustfile import *\n")
    return str(path)


def test_a_mixed_load_passes(server: EmbeddedServer, tmp_path: Path) -> None:
    run = load(server, tmp_path, "-u", "8", "-r", "8", "-t", "6s", "--html", str(tmp_path / "run.html"))
    assert run.status == 0, run.log
    assert "PASS" in run.log
    assert run.took_s < 20
    asked = {(row["Type"], row["Name"].split(",")[0]) for row in run.rows[:-1]}
    assert asked >= {(p, what) for p in ("gRPC", "HTTP") for what in ("landmarks", "burst", "live frame")}
    assert {what for _, what in asked} == {"landmarks", "reconstruct", "burst", "live frame"}
    for photo in known_photos():
        assert any(photo.name in row["Name"] for row in run.rows)
    assert int(run.total["Request Count"]) > 60
    assert int(run.total["Failure Count"]) == 0
    assert "late frames: " in run.log
    assert "live frame" in (tmp_path / "run.html").read_text()
    assert (tmp_path / "run_stats_history.csv").exists()


WRONG = {
    "landmarks": """
import locust_load.photos as photos
true_px = photos._reference_px
photos._reference_px = lambda: true_px() + 6  # a fifteenth of the face's width
""",
    "count": """
import locust_load.photos as photos
true_photos = photos.known_photos
photos.known_photos = lambda: [p._replace(faces_px=p.faces_px * 2 or (p.faces_px,)) for p in true_photos()]
""",
}


@pytest.mark.parametrize(("what", "message"), [("landmarks", "landmarks are off"), ("count", "faces instead of")])
def test_wrong_answers_fail_the_run(server: EmbeddedServer, tmp_path: Path, what: str, message: str) -> None:
    file = changed(tmp_path, WRONG[what])
    run = load(server, tmp_path, "-u", "2", "-r", "2", "-t", "2s", "GrpcUploads", file=file)
    assert run.status == 1
    assert "failed or were answered wrongly" in run.log
    assert int(run.total["Failure Count"]) > 0
    assert message in (tmp_path / "run_failures.csv").read_text()


def test_a_limit_that_is_exceeded_fails_the_run(server: EmbeddedServer, tmp_path: Path) -> None:
    run = load(server, tmp_path, "-u", "1", "-r", "1", "-t", "2s", "--max-p95-ms", "0.1", "HttpUploads")
    assert run.status == 1
    assert "allowed are 0.1 ms" in run.log
    assert int(run.total["Failure Count"]) == 0


NO_COOPERATION = "import grpc.experimental.gevent\ngrpc.experimental.gevent.init_gevent = lambda: None\n"
NO_PROBE = "import locust_load.cooperation\nlocust_load.cooperation.is_cooperating = lambda: True\n"


def test_gevent_that_does_not_cooperate_is_refused(server: EmbeddedServer, tmp_path: Path) -> None:
    run = load(server, tmp_path, "-t", "2s", "GrpcUploads", file=changed(tmp_path, NO_COOPERATION))
    assert run.status == 1
    assert "init_gevent()" in run.log


def test_gevent_that_does_not_cooperate_shows_in_the_throughput(server: EmbeddedServer, tmp_path: Path) -> None:
    file = changed(tmp_path, NO_COOPERATION + NO_PROBE)
    run = load(server, tmp_path, "-u", "6", "-r", "6", "-t", "3s", "GrpcUploads", file=file)
    assert run.status == 1
    assert "FAIL: throughput" in run.log


def test_steps_find_a_knee(server: EmbeddedServer, tmp_path: Path) -> None:
    files = f"{PERF / 'locustfile.py'},{PERF / 'locust_steps.py'}"
    run = load(server, tmp_path, "--step-s", "0.5", "GrpcUploads", file=files)
    assert run.status == 0, run.log
    assert "knee: " in run.log
    with (tmp_path / "run_knee.csv").open() as lines:
        steps = list(csv.DictReader(lines))
    assert [int(step["users"]) for step in steps] == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32][: len(steps)]
    assert all(float(step["answers_per_s"]) > 1 for step in steps)


def face(landmarks_xy: np.ndarray) -> FaceLandmarks:
    points = np.concatenate([landmarks_xy, np.zeros((len(landmarks_xy), 1))], axis=1)
    return FaceLandmarks(landmarks_px=points, box_xyxy=np.zeros(4), score=1.0)


def test_an_answer_is_compared_with_the_photo() -> None:
    two = next(photo for photo in known_photos() if len(photo.faces_px) == 2).faces_px
    width = np.ptp(two[0][:, 0])
    check_faces(two, [face(two[1]), face(two[0])])  # in any order
    check_faces(two, [face(two[0] + 0.02 * width), face(two[1])])
    check_faces((), [])
    for wrong in (
        [face(two[0])],
        [face(two[0]), face(two[0])],
        [face(two[0]), face(two[1]), face(two[1])],
        [face(two[0] + 0.03 * width), face(two[1])],
        [face(np.full_like(two[0], np.nan)), face(two[1])],
    ):
        with pytest.raises(WrongAnswerError):
            check_faces(two, wrong)


def test_the_face_in_the_video_moves_and_stays_inside() -> None:
    video = MovingFace()
    frames = [video.frame(i) for i in range(180)]
    corners = np.array([(px.min(0), px.max(0)) for _, (px,) in frames])
    assert all(frame.shape == (352, 448, 3) for frame, _ in frames)
    assert corners.min() > 10
    assert (corners[:, 1] < (438, 342)).all()
    steps = np.linalg.norm(np.diff(corners[:, 0], axis=0), axis=1)
    assert np.ptp(corners[:, 0], axis=0).min() > 15
    assert steps.max() < 3


def test_a_camera_keeps_only_the_newest_frame() -> None:
    clock = FrameClock(100.0, rate_hz=10.0)
    first = clock.next_frame(100.0)
    assert first == (0, 100.0, 0)
    assert not clock.is_late(first, 100.09)
    assert clock.is_late(first, 100.11)
    second = clock.next_frame(100.05)  # early: the caller waits
    assert second == (1, pytest.approx(100.1), 0)
    assert clock.next_frame(100.47) == (4, pytest.approx(100.4), 2)
    assert clock.next_frame(100.47).number == 5


def outcome(**changes: object) -> Outcome:
    usual = {"requests": 100, "failures": 0, "p95_ms": 20.0, "exceptions": 0, "ran_s": 10.0, "planned_s": 10.0}
    return Outcome(**(usual | changes))  # type: ignore[arg-type]


STRICT = Limits(failure_share=0.0, p95_ms=50.0, late_share=0.1)
GOOD = Ledger(cycle_s=10.0, in_flight_s=9.0, frames=100, late_frames=10)


@pytest.mark.parametrize(
    ("run", "ledger", "words"),
    [
        pytest.param(outcome(), GOOD, [], id="good"),
        pytest.param(outcome(requests=0), GOOD, ["not one request"], id="nothing"),
        pytest.param(outcome(failures=1), GOOD, ["1 of 100 requests failed"], id="failure"),
        pytest.param(outcome(exceptions=2), GOOD, ["unexpected errors"], id="exception"),
        pytest.param(outcome(p95_ms=51.0), GOOD, ["up to 51 ms"], id="slow"),
        pytest.param(outcome(), Ledger(frames=100, late_frames=11), ["11 of 100 frames"], id="late"),
        pytest.param(outcome(), Ledger(cycle_s=10.0, in_flight_s=1.0), ["throughput"], id="one-at-a-time"),
        pytest.param(outcome(ran_s=15.0), GOOD, ["run duration"], id="overtime"),
        pytest.param(outcome(ran_s=15.0, planned_s=None), GOOD, [], id="steps-have-no-plan"),
    ],
)
def test_what_a_run_broke_is_said(run: Outcome, ledger: Ledger, words: list[str]) -> None:
    found = complaints(run, ledger, STRICT)
    assert len(found) == len(words)
    assert all(word in complaint for word, complaint in zip(words, found, strict=True))


def test_no_limit_allows_everything() -> None:
    limits = Limits(failure_share=1.0, p95_ms=None, late_share=None)
    assert complaints(outcome(failures=100, p95_ms=1e9), Ledger(frames=1, late_frames=1), limits) == []


def test_ledgers_of_several_processes_add_up() -> None:
    worker, master = Ledger(2.0, 1.0, 30, 3), Ledger()
    master.add(*worker.take())
    master.add(*worker.take())
    master.add(2.0, 2.0, 10, 1)
    assert master == Ledger(4.0, 3.0, 40, 4)
    assert worker == Ledger()
    assert (master.in_flight_share, master.late_share) == (0.75, 0.1)


def test_a_step_is_what_was_counted_in_it() -> None:
    before = Counts(100, 1, {10: 90, 500: 10})
    after = Counts(160, 3, {10: 108, 20: 40, 500: 10, 900: 2})
    assert step_between(4, 2.0, before, after) == Step(4, 29.0, 20.0, 20.0, 2)
    assert math.isnan(percentile_ms({}, 0.5))
    assert percentile_ms({5: 1, 7: 0}, 1.0) == 5.0


def test_the_knee_is_where_more_users_only_wait_longer() -> None:
    steps = [Step(n, rate, n * 5.0, n * 6.0, 0) for n, rate in [(1, 100), (2, 190), (4, 196), (8, 200), (12, 199)]]
    assert knee(steps).users == 2
    assert knee(steps[:1]).users == 1
    assert not is_past_knee(steps[:3])
    assert not is_past_knee([Step(n, n * 100.0, 1, 1, 0) for n in (1, 2, 3, 4, 5)])
    flat = [Step(n, 100.0, 1, 1, 0) for n in (1, 2, 3)]
    assert not is_past_knee(flat[:2])
    assert is_past_knee([*steps[:2], Step(4, 150.0, 1, 1, 0), Step(8, 150.0, 1, 1, 0)])
