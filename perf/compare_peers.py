"""Measure facegraph beside MediaPipe's FaceMesh and the servers that people put around it. See --help."""

from __future__ import annotations

import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from types import FrameType

import click
import numpy as np
from facegraph_client import FaceGraphError, ServerError
from facegraph_server.atomic_file import write_atomically
from facegraph_server.embedded import EmbeddedServer
from facegraph_server.paths import REPOSITORY
from numpy.typing import NDArray
from peers import callers, report, verdict
from peers.environment import REQUIREMENTS, peers_python
from peers.photos import write_photos
from peers.processes import PeerProcess, Workers, free_ports
from peers.timed_loop import Ask, Timing, timed_loop
from peers.verdict import Load
from peers.worker_protocol import PEER_TOLERANCE, read_photos
from perf_sweep.machine import describe_machine, load_per_core
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

_CONCURRENCY = (1, 2, 4, 8)
_PROCESSES = 2
_OUR_TOLERANCE = 0.03  # in widths of the face: our detector is another one, so our crop is a little different
_WARM_UP_S = 1.0
_FIRST_ANSWER_S = 60.0
_BUSY = 0.2
_TABLE_COLUMNS = 120
_EPILOG = """
\b
Examples:
  python perf/compare_peers.py
  python perf/compare_peers.py --rounds 2 --seconds 1 --out out/peers

\b
Writes peers.json, peers.md and peers.png into the folder.
Exit status: 0 every promise is kept, 1 one is not, 2 it could not measure, or an answer was wrong.
"""

Run = Callable[[float], Timing]
"""Measure one load for so many seconds."""


class Candidates:
    """Everything that is compared, running on loopback; all end with the ``with`` block.

    Args:
        python: the Python of the peers' environment.
        folder: of the photos; logs are written beside them.

    """

    def __init__(self, python: Path, folder: Path) -> None:
        self._python, self._folder = python, folder
        self._photos = read_photos(folder)
        self._references: list[NDArray[np.float32]] = []
        self._stack = ExitStack()
        self.runs: dict[Load, Run] = {}

    def __enter__(self) -> Candidates:
        """Start all and wait until all have answered."""
        with ExitStack() as started:
            self._start(started)
            self._stack = started.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """End all."""
        self._stack.close()

    def _start(self, stack: ExitStack) -> None:
        self._references = self._add_workers(stack, verdict.IN_PROCESS, "run_in_process", "simplejpeg")
        self._add_workers(stack, verdict.IN_PROCESS_OPENCV, "run_in_process", "opencv")
        (port,) = self._serve(stack, "serve_fastapi", 1, listens=0)
        self._add(verdict.FASTAPI, partial(callers.ask_fastapi, port), PEER_TOLERANCE)
        (port,) = self._serve(stack, "serve_gradio", 1, listens=0)
        self._add(verdict.GRADIO, partial(callers.ask_gradio, port), PEER_TOLERANCE)
        self._add(verdict.GRADIO_DIRECT, partial(callers.ask_gradio_directly, port), PEER_TOLERANCE)
        self._add_workers(stack, verdict.GRADIO_CLIENT, "run_gradio_client", str(port))
        _, port, _ = self._serve(stack, "serve_pytriton", 3, listens=1)
        self._add(verdict.PYTRITON, partial(callers.ask_pytriton, port), PEER_TOLERANCE)
        server = stack.enter_context(EmbeddedServer(profile="cpu"))
        self._add(verdict.OURS_GRPC, partial(callers.ask_facegraph, server.grpc_address), _OUR_TOLERANCE)
        self._add(verdict.OURS_HTTP, partial(callers.ask_facegraph, f"http://{server.http_address}"), _OUR_TOLERANCE)

    def _serve(self, stack: ExitStack, program: str, ports: int, *, listens: int) -> list[int]:
        numbers = free_ports(ports)
        log = self._folder / f"{program}.log"
        stack.enter_context(
            PeerProcess(self._python, program, [str(n) for n in numbers], log=log, port=numbers[listens])
        )
        return numbers

    def _add_workers(self, stack: ExitStack, name: str, program: str, argument: str) -> list[NDArray[np.float32]]:
        arguments = [argument, str(self._folder)]
        workers = Workers(
            [
                stack.enter_context(
                    PeerProcess(self._python, program, arguments, log=self._folder / f"{program}-{argument}-{n}.log")
                )
                for n in range(_PROCESSES)
            ]
        )
        for count in range(1, _PROCESSES + 1):
            self.runs[Load(name, count)] = partial(workers.measure, count)
        return workers.references_px

    def _add(self, name: str, connect: Callable[[], AbstractContextManager[Ask]], tolerance: float) -> None:
        _wait_for_first_answer(connect, self._photos[0])
        for concurrency in _CONCURRENCY:

            def run(seconds: float, concurrency: int = concurrency) -> Timing:
                with ExitStack() as stack:
                    asks = [stack.enter_context(connect()) for _ in range(concurrency)]
                    for ask in asks:  # connects
                        ask(self._photos[0])
                    return timed_loop(asks, self._photos, self._references, seconds=seconds, tolerance=tolerance)

            self.runs[Load(name, concurrency)] = run


def _wait_for_first_answer(connect: Callable[[], AbstractContextManager[Ask]], photo: bytes) -> None:
    """A server may listen some time before its model is loaded."""
    deadline = time.monotonic() + _FIRST_ANSWER_S
    while True:
        try:
            with connect() as ask:
                ask(photo)
            return
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def measure_rounds(runs: dict[Load, Run], rounds: int, seconds: float, progress: Progress) -> dict[Load, list[Timing]]:
    """Let all take turns; every other round in reverse, so that nobody always follows the same one.

    Raises:
        ServerError: an answer was wrong: its speed means nothing.

    """
    timings: dict[Load, list[Timing]] = {load: [] for load in runs}
    task = progress.add_task("", total=(rounds + 1) * len(runs))
    for number in range(rounds + 1):
        order = list(runs.items())
        for load, run in order if number % 2 else order[::-1]:
            name = "warming up" if number == 0 else f"round {number} of {rounds}"
            progress.update(task, description=f"{name}: {load.candidate}, {load.concurrency}")
            timing = run(seconds if number else _WARM_UP_S)
            if timing.wrong:
                raise ServerError(
                    f"{load.candidate} at {load.concurrency} found other faces than MediaPipe in {timing.wrong} of "
                    f"{sum(map(len, timing.latency_ms))} answers"
                )
            if number:
                timings[load].append(timing)
            progress.advance(task)
    return timings


@click.command(epilog=_EPILOG, context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.option("--rounds", type=click.IntRange(1, 50), default=5, help="How often all take turns.")
@click.option("--seconds", type=click.FloatRange(0.5, 60), default=3.0, help="Length of one turn.")
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), default=REPOSITORY / "perf" / "results", help="Folder."
)
def main(rounds: int, seconds: float, out: Path) -> None:
    """Compare with MediaPipe's FaceMesh on the CPU: in its own processes, and behind FastAPI, Gradio and PyTriton.

    The peers get a virtual environment of their own in build/peers (1.5 GB), made on the first run.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, _TABLE_COLUMNS)
    try:
        sys.exit(_compare(console, rounds, seconds, out))
    except FaceGraphError as error:
        console.print(f"error: {error}", style="red", markup=False)
        sys.exit(2)
    except KeyboardInterrupt:
        console.print("interrupted: nothing was written")
        sys.exit(130)


def _compare(console: Console, rounds: int, seconds: float, out: Path) -> int:
    with console.status("preparing the peers' environment in build/peers (the first time some minutes)"):
        python = peers_python()
    busy = load_per_core()
    if busy > _BUSY:
        console.print(f"this machine is busy (load {busy:.1f} a core): ratios will scatter", style="yellow")
    with tempfile.TemporaryDirectory(prefix="facegraph-peers-") as folder:
        photos = write_photos(Path(folder))
        with ExitStack() as stack:
            with console.status("starting the candidates"):
                running = stack.enter_context(Candidates(python, Path(folder)))
            progress = stack.enter_context(Progress(console=console, transient=True))
            timings = measure_rounds(running.runs, rounds, seconds, progress)

    bars = verdict.judge(timings)
    facts = {
        "command": shlex.join(["python", "perf/compare_peers.py", *sys.argv[1:]]),
        **describe_machine(),
        "peers": ", ".join(line for line in REQUIREMENTS.read_text().splitlines() if not line.startswith("#")),
        "load a core before": f"{busy:.2f}",
        "seconds a turn": f"{seconds:g}",
    }
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "peers.json", report.as_json(timings, bars, photos, facts).encode())
    write_atomically(out / "peers.md", report.markdown(timings, bars, photos, facts).encode())
    write_atomically(out / "peers.png", report.picture(timings))
    _print(console, report.rows(timings), [report.bar_line(bar) for bar in bars])
    console.print(f"written: {out}/peers.md, peers.json, peers.png")
    return 0 if all(bar.is_met for bar in bars) else 1


def _print(console: Console, rows: Sequence[Sequence[str]], lines: Sequence[str]) -> None:
    table = Table(*report.COLUMNS)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for line in lines:
        console.print(line, style="green" if line.startswith("PASS") else "red", markup=False)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
