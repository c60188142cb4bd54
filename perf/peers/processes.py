"""The peers' processes: started in their own environment, ended with this one."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

import numpy as np
from facegraph_client import SetupError
from facegraph_server.paths import REPOSITORY
from numpy.typing import NDArray

from peers.timed_loop import Timing
from peers.worker_protocol import read_references, read_timing

_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 10.0
_POLL_S = 0.2
_LOG_CHARACTERS = 2000


class PeerProcess:
    """One program of this package in the peers' environment, and all that it starts.

    Args:
        python: the environment's Python.
        program: the module's name in this package.
        arguments: the program's.
        log: where its messages go.
        port: one that it listens on when it is ready; None for a program that answers lines.

    Raises:
        SetupError: on entering, when it ends or does not listen in time.

    """

    def __init__(
        self, python: Path, program: str, arguments: Sequence[str], *, log: Path, port: int | None = None
    ) -> None:
        self._command = [str(python), "-m", f"peers.{program}", *arguments]
        self._log, self._port = log, port
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PeerProcess:
        """Start it and wait until it listens."""
        environment = os.environ | {
            "GLOG_minloglevel": "2",
            "GRADIO_ANALYTICS_ENABLED": "False",
            "PYTHONPATH": str(REPOSITORY / "perf"),
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if self._port is None else log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        if self._port is not None:
            try:
                self._wait_until_it_listens(self._port)
            except BaseException:
                self.stop()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End it."""
        self.stop()

    def stop(self) -> None:
        """End it and its children; harmless when they have ended."""
        if self._process is None:
            return
        process, self._process = self._process, None
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        for what in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, what)
                process.wait(_STOP_TIMEOUT_S)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue

    def send_line(self, line: str) -> None:
        """Send one line to a program that answers lines."""
        pipe = _given(self._running().stdin)
        pipe.write(line.encode() + b"\n")
        pipe.flush()

    def read_line(self, timeout_s: float) -> str:
        """Return the program's next line.

        Raises:
            SetupError: there is none in time.

        """
        pipe = _given(self._running().stdout)
        if not select.select([pipe], [], [], timeout_s)[0] or not (line := pipe.readline()):
            raise SetupError(f"{self._command[2]} does not answer. The end of its log:\n{self._log_end()}")
        return line.decode()

    def _wait_until_it_listens(self, port: int) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._running().poll() is not None:
                raise SetupError(f"{self._command[2]} ended while starting. The end of its log:\n{self._log_end()}")
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(_POLL_S)
        raise SetupError(f"{self._command[2]} was not ready after {_START_TIMEOUT_S:.0f} s:\n{self._log_end()}")

    def _log_end(self) -> str:
        return self._log.read_text(errors="replace")[-_LOG_CHARACTERS:]

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise SetupError(f"{self._command[2]} is not running; use it inside a with block")
        return self._process


class Workers:
    """Programs that measure by themselves, all at the same time. See worker_protocol.

    Attributes:
        references_px: for each photo the landmarks FP32 [F,468,3] that they found.

    """

    def __init__(self, processes: Sequence[PeerProcess]) -> None:
        self._processes = processes
        self.references_px: list[NDArray[np.float32]] = []
        for process in processes:
            self.references_px = read_references(process.read_line(_START_TIMEOUT_S))

    def measure(self, count: int, seconds: float) -> Timing:
        """Run the first ``count`` of them for so long; the others wait."""
        running = self._processes[:count]
        for process in running:
            process.send_line(str(seconds))
        timings = [read_timing(process.read_line(seconds + _START_TIMEOUT_S)) for process in running]
        by_photo = zip(*(timing.latency_ms for timing in timings), strict=True)
        latency_ms = [[ms for of_worker in of_photo for ms in of_worker] for of_photo in by_photo]
        return Timing(sum(t.photos_per_s for t in timings), latency_ms, sum(t.wrong for t in timings))


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 on which nothing listens; all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _given(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise SetupError("this program does not answer lines: it was started as a server")
    return pipe
