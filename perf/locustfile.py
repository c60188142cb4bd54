"""Load for a server of facegraph, by Locust: photo uploads, live video, bursts, over gRPC and HTTP.

Every answer is checked against the faces that the photo shows; a wrong one is a failure. Users of one kind alone: name
the class at the end. Answers from one user at a time do not show what a server can do: give as many users as it should
have requests in flight. One process drives one core; --processes N drives more.

    locust -f perf/locustfile.py --headless -u 8 -r 8 -t 60s --host 127.0.0.1:8001 --http-address 127.0.0.1:8000 \
        --csv out/load/mix --html out/load/mix.html --max-p95-ms 250 --max-late-share 0.05
    locust -f perf/locustfile.py --headless -u 2 -r 2 -t 60s GrpcLiveStream
    locust -f perf/locustfile.py,perf/locust_steps.py --headless --csv out/load/steps GrpcUploads

Exit status: 0 all is within the limits, 1 something is not; the last lines say what.
"""

from __future__ import annotations

import itertools
import logging
import random
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from typing import Any

import grpc.experimental.gevent
import locust

# The locust command has made the standard library cooperate with gevent before it reads this file. gRPC has to be told,
# before anything opens a channel.
grpc.experimental.gevent.init_gevent()

from facegraph_client import FaceClient, FaceGraphError, FaceLandmarks  # noqa: E402
from gevent.pool import Group  # noqa: E402
from locust.env import Environment  # noqa: E402
from locust.runners import MasterRunner, WorkerRunner  # noqa: E402
from locust_load.cooperation import NOT_COOPERATING, is_cooperating  # noqa: E402
from locust_load.frame_clock import FrameClock  # noqa: E402
from locust_load.judgement import Ledger, Limits, Outcome, complaints  # noqa: E402
from locust_load.photos import MovingFace, check_faces, check_textures, known_photos  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

_TIMEOUT_S = 30.0
_TEXTURE_SIZE_PX = 256
_BURST = 8
_LONGEST_GAP = 5  # frames; after a longer one the face may be anywhere, so a client starts afresh

_photos = known_photos()
_ledger = Ledger()
_log = logging.getLogger("facegraph")


class FaceUser(locust.User):
    """One connection to the server; ``protocol`` says which."""

    abstract = True
    protocol = "gRPC"
    host = "127.0.0.1:8001"

    def on_start(self) -> None:
        """Connect."""
        options = self.environment.parsed_options
        url = self.host if self.protocol == "gRPC" else f"http://{options.http_address}"
        self.faces = FaceClient(url, timeout_s=_TIMEOUT_S)

    def on_stop(self) -> None:
        """Disconnect.

        The client goes here, not when the interpreter ends: tritonclient then closes it once more, and under gevent
        that sometimes waits forever for a thread of gRPC that is gone.
        """
        self.faces.close()
        del self.faces

    def ask(
        self,
        name: str,
        call: Callable[[], Sequence[FaceLandmarks]],
        expected_px: Sequence[NDArray[Any]],
        *,
        begin_s: float | None = None,
    ) -> Sequence[FaceLandmarks]:
        """Time a call, check its answer, tell Locust; return the answer, empty where there was none.

        Args:
            name: what Locust's tables call it.
            call: asks the server.
            expected_px: landmarks [468,2] of each face.
            begin_s: ``perf_counter`` from when the time counts; None: from now.

        """
        begin_s = time.perf_counter() if begin_s is None else begin_s
        faces: Sequence[FaceLandmarks] = []
        problem: FaceGraphError | None = None
        try:
            faces = call()
        except FaceGraphError as error:
            problem = error
        milliseconds = (time.perf_counter() - begin_s) * 1000
        try:
            if problem is None:
                check_faces(expected_px, faces)
                check_textures(faces)
        except FaceGraphError as error:
            problem = error
        self.environment.events.request.fire(
            request_type=self.protocol,
            name=name,
            response_time=milliseconds,
            response_length=sum(face.landmarks_px.nbytes for face in faces),
            exception=problem,
            context={},
        )
        return faces


class Uploads(FaceUser):
    """Sends one photo after the other without a pause: small and large, with one face, two and none."""

    abstract = True
    wait_time = locust.constant(0)

    def on_start(self) -> None:
        """Connect; every user begins with another photo."""
        super().on_start()
        self._turns = itertools.cycle(random.sample(_photos, len(_photos)))
        self._answered_s: float | None = None

    @locust.task(9)
    def landmarks(self) -> None:
        """Ask where the faces are."""
        photo = next(self._turns)
        self._ask_in_turn(f"landmarks, {photo.name}", lambda: self.faces.landmarks(photo.encoded), photo.faces_px)

    @locust.task(1)
    def reconstruct(self) -> None:
        """Ask for textured meshes."""
        photo = next(self._turns)
        self._ask_in_turn(
            f"reconstruct, {photo.name}",
            lambda: self.faces.reconstruct(photo.encoded, texture_size_px=_TEXTURE_SIZE_PX),
            photo.faces_px,
        )

    def _ask_in_turn(
        self, name: str, call: Callable[[], Sequence[FaceLandmarks]], expected_px: Sequence[NDArray[Any]]
    ) -> None:
        begin_s = time.perf_counter()
        answered_s = begin_s

        def timed_call() -> Sequence[FaceLandmarks]:
            nonlocal answered_s
            try:
                return call()
            finally:
                answered_s = time.perf_counter()

        self.ask(name, timed_call, expected_px)
        if self._answered_s is not None:
            _ledger.add(answered_s - self._answered_s, answered_s - begin_s, 0, 0)
        self._answered_s = answered_s


class LiveStream(FaceUser):
    """A camera of 30 frames a second whose face moves; each frame carries the faces of the frame before."""

    abstract = True

    def on_start(self) -> None:
        """Connect and switch the camera on."""
        super().on_start()
        self._video = MovingFace()
        self._clock = FrameClock(time.perf_counter())
        self._prior: Sequence[FaceLandmarks] = []

    @locust.task
    def frame(self) -> None:
        """Wait for the next frame, or take the newest; the time counts from when the camera had it."""
        due = self._clock.next_frame(time.perf_counter())
        time.sleep(max(due.due_s - time.perf_counter(), 0))
        frame_rgb, expected_px = self._video.frame(due.number)
        prior = self._prior if due.skipped <= _LONGEST_GAP else []
        answered_s = time.perf_counter()

        def call() -> Sequence[FaceLandmarks]:
            nonlocal answered_s
            try:
                return self.faces.track(frame_rgb, prior)
            finally:
                answered_s = time.perf_counter()

        self._prior = self.ask("live frame", call, expected_px, begin_s=due.due_s)
        late = due.skipped + self._clock.is_late(due, answered_s)
        _ledger.add(0.0, 0.0, 1 + due.skipped, late)


class Bursts(FaceUser):
    """Sends eight photos at once, then waits: what happens when people come out of a meeting."""

    abstract = True
    wait_time = locust.between(1, 2)

    @locust.task
    def burst(self) -> None:
        """Ask for all, each in its own greenlet, and wait until all are answered."""
        group = Group()
        for photo in random.choices(_photos, k=_BURST):
            group.spawn(
                self.ask,
                f"burst, {photo.name}",
                lambda encoded=photo.encoded: self.faces.landmarks(encoded),
                photo.faces_px,
            )
        group.join()


class GrpcUploads(Uploads):
    """Over gRPC."""

    weight = 2


class HttpUploads(Uploads):
    """Over HTTP."""

    protocol = "HTTP"
    weight = 2


class GrpcLiveStream(LiveStream):
    """Over gRPC."""


class HttpLiveStream(LiveStream):
    """Over HTTP."""

    protocol = "HTTP"


class GrpcBursts(Bursts):
    """Over gRPC."""


class HttpBursts(Bursts):
    """Over HTTP."""

    protocol = "HTTP"


@locust.events.init_command_line_parser.add_listener
def _add_options(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("facegraph", "--host is the gRPC address, HOST:PORT.")
    group.add_argument("--http-address", default="127.0.0.1:8000", help="HOST:PORT of HTTP (127.0.0.1:8000)")
    group.add_argument("--max-failure-share", type=float, default=0.0, help="failed or wrong of all requests (0)")
    group.add_argument("--max-p95-ms", type=float, help="95th percentile of the response times (no limit)")
    group.add_argument("--max-late-share", type=float, help="late of all live frames (no limit)")


@locust.events.init.add_listener
def _refuse_a_load_that_is_none(environment: Environment, **_: Any) -> None:
    if not isinstance(environment.runner, MasterRunner) and not is_cooperating():
        _log.error(NOT_COOPERATING)
        sys.exit(1)


_run_s = {"start": 0.0, "end": 0.0}


@locust.events.test_start.add_listener
def _note_start(**_: Any) -> None:
    _run_s["start"] = time.monotonic()


@locust.events.test_stopping.add_listener
def _note_end(**_: Any) -> None:
    _run_s["end"] = time.monotonic()


@locust.events.report_to_master.add_listener
def _send_ledger(data: dict[str, Any], **_: Any) -> None:
    data["facegraph"] = _ledger.take()


@locust.events.worker_report.add_listener
def _receive_ledger(data: dict[str, Any], **_: Any) -> None:
    _ledger.add(*data["facegraph"])


@locust.events.quitting.add_listener
def _judge(environment: Environment, **_: Any) -> None:
    runner, options = environment.runner, environment.parsed_options
    if runner is None or options is None or isinstance(runner, WorkerRunner):
        return
    total = environment.stats.total
    outcome = Outcome(
        requests=total.num_requests,
        failures=total.num_failures,
        p95_ms=float(total.get_response_time_percentile(0.95) or 0),
        exceptions=len(runner.exceptions),
        ran_s=_run_s["end"] - _run_s["start"],
        planned_s=None if environment.shape_class else options.run_time,
    )
    limits = Limits(options.max_failure_share, options.max_p95_ms, options.max_late_share)
    _log.info("users without a pause waited for answers in %.0f %% of their time", 100 * _ledger.in_flight_share)
    if _ledger.frames:
        _log.info("late frames: %d of %d", _ledger.late_frames, _ledger.frames)
    broken = complaints(outcome, _ledger, limits)
    for complaint in broken:
        _log.error("FAIL: %s", complaint)
    if not broken:
        _log.info("PASS: within the limits")
    environment.process_exit_code = 1 if broken else 0
