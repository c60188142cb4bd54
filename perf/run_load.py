"""Put a private server under Locust's load: a mix, live video, and steps to the knee. See --help."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import click
from facegraph_client import FaceGraphError
from facegraph_server.embedded import EmbeddedServer
from facegraph_server.paths import REPOSITORY
from rich.console import Console

_OUT = REPOSITORY / "out" / "load"
_LOCUST = Path(sys.executable).with_name("locust")
_LOCUSTFILE, _STEPS = (REPOSITORY / "perf" / name for name in ("locustfile.py", "locust_steps.py"))
_LIVE_LATE_SHARE = 0.2  # one camera on an idle server; generous, as a neighbour on the machine makes frames late too
_MOST_STEPS, _SETTLE_S = 10, 1
_STOP_S = 60.0
_EPILOG = """
\b
Examples:
  python perf/run_load.py                  (what make load does, under 90 seconds)
  python perf/run_load.py --seconds 300

\b
Writes into out/load: mix, live and steps, each _stats.csv, _stats_history.csv, _failures.csv, _exceptions.csv and
.html; steps_knee.csv. A server of your own: see the examples at the top of perf/locustfile.py.
Exit status: 0 all is within the limits, 1 something is not, 2 the server did not start.
"""


class Part(NamedTuple):
    """One run of Locust."""

    name: str
    arguments: tuple[str, ...]
    longest_s: float


def parts(seconds: int) -> list[Part]:
    """Return the runs: the mix for so long, live video half as long, each step a tenth."""
    step_s = max(seconds // 10, 1)
    mix = ("-u", "8", "-r", "8", "-t", f"{seconds}s")
    live = ("-u", "1", "-r", "1", "-t", f"{max(seconds // 2, 1)}s", "--max-late-share", str(_LIVE_LATE_SHARE))
    steps = ("--step-s", str(step_s), "GrpcUploads")
    return [
        Part("mix", mix, seconds),
        Part("live", (*live, "GrpcLiveStream"), seconds / 2),
        Part("steps", steps, _MOST_STEPS * (_SETTLE_S + step_s + 2)),
    ]


def locust_command(part: Part, server: EmbeddedServer) -> list[str]:
    """Return the command line of one run against a server."""
    files = f"{_LOCUSTFILE},{_STEPS}" if part.name == "steps" else str(_LOCUSTFILE)
    prefix = _OUT / part.name
    report = ["--csv", str(prefix), "--csv-full-history", "--html", f"{prefix}.html", "--only-summary"]
    addresses = ["--host", server.grpc_address, "--http-address", server.http_address]
    return [str(_LOCUST), "-f", files, "--headless", "--stop-timeout", "5s", *addresses, *report, *part.arguments]


@click.command(epilog=_EPILOG, context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.option("--seconds", type=click.IntRange(5, 3600), default=20, help="Length of the mix; the others follow it.")
def main(seconds: int) -> None:
    """Run Locust three times against a private server and say what broke."""
    signal.signal(signal.SIGTERM, _interrupt)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    shutil.rmtree(_OUT, ignore_errors=True)
    _OUT.mkdir(parents=True)
    try:
        broken = _broken_parts(console, seconds)
    except FaceGraphError as error:
        console.print(f"error: {error}", style="red", markup=False)
        sys.exit(2)
    except KeyboardInterrupt:
        console.print("interrupted")
        sys.exit(130)
    console.print(f"written: {_OUT}")
    if broken:
        console.print(f"FAIL: {', '.join(broken)}", style="red")
        sys.exit(1)
    console.print("PASS: every part", style="green")


def _broken_parts(console: Console, seconds: int) -> list[str]:
    broken = []
    with ExitStack() as stack:
        with console.status("starting Triton"):
            server = stack.enter_context(EmbeddedServer())
        for part in parts(seconds):
            console.rule(part.name)
            if not _passes(console, part, server):
                broken.append(part.name)
    return broken


def _passes(console: Console, part: Part, server: EmbeddedServer) -> bool:
    try:
        done = subprocess.run(locust_command(part, server), timeout=part.longest_s + _STOP_S, check=False)
    except subprocess.TimeoutExpired:
        console.print(f"FAIL: {part.name} did not end within {part.longest_s + _STOP_S:.0f} s", style="red")
        return False
    return done.returncode == 0


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
