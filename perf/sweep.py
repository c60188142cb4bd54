"""Measure the served models with perf_analyzer. See --help."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import click
from facegraph_client import FaceGraphError
from facegraph_server.atomic_file import write_atomically
from facegraph_server.paths import MODEL_REPOSITORY, REPOSITORY, SAMPLE_PHOTO
from facegraph_server.profiles import PROFILES, default_profile, loaded_models
from facegraph_server.triton_install import find_triton
from perf_sweep.analyzer import find_perf_analyzer
from perf_sweep.cases import MODELS, PROTOCOLS, SHARED_MEMORY, Case
from perf_sweep.inputs import make_inputs, read_photos
from perf_sweep.machine import describe_machine, load_per_core
from perf_sweep.measurement import FULL, QUICK, Addresses, Measurement
from perf_sweep.results import STEPS_PICTURE, THROUGHPUT_PICTURE, ResultFolder, report, update_document
from perf_sweep.run import Outcome, Plan, Progress, sweep
from perf_sweep.served import find_running
from perf_sweep.tables import number, remark
from rich import progress as bars
from rich.console import Console

_OUT = REPOSITORY / "out" / "perf"
_DOCUMENT = REPOSITORY / "docs" / "performance.md"
_COMPARED_ROUNDS = 5
_BUSY = 0.5
_EPILOG = """
\b
Examples:
  python perf/sweep.py --quick                                  (what make perf does, under five minutes)
  python perf/sweep.py --profiles tensorrt --out out/h200       (everything, some twenty minutes a profile)
  python perf/sweep.py --compare nograph tensorrt --models face_landmarks,face_mesh
  python perf/sweep.py --models face_landmarks --request-rate 20,50,100
  python perf/sweep.py --server 127.0.0.1 --protocols grpc --shared-memory none,system

\b
Writes into the folder: report.md, throughput.png, steps.png; results.csv and steps.csv, a row for each case and round;
sweep.json with machine, versions and command; inputs/ and raw/, what perf_analyzer read and wrote.
Exit status: 0 everything was measured, 1 some cases were not, 2 it could not run, 130 interrupted: what was measured
is there all the same.
"""


class _Several(click.ParamType):
    """Values with commas between them."""

    name = "list"

    def __init__(self, one: click.ParamType) -> None:
        self._one = one

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:  # noqa: ARG002 - click's
        choices = getattr(self._one, "choices", None)
        return ",".join(choices) if choices else "N,N,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        if isinstance(value, tuple):
            return value
        return tuple(dict.fromkeys(self._one.convert(part.strip(), param, ctx) for part in value.split(",")))


class _ServerAddress(click.ParamType):
    """HOST, or HOST and the three ports."""

    name = "HOST[:HTTP,GRPC,METRICS]"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> Addresses:
        host, separator, ports = value.partition(":")
        numbers = ports.split(",") if separator else ["8000", "8001", "8002"]
        if len(numbers) != 3 or not host or not all(port.isdecimal() for port in numbers):
            self.fail(
                f"{value!r}: write HOST, or HOST:8000,8001,8002 with the ports of HTTP, gRPC and metrics", param, ctx
            )
        return Addresses(*(f"{host}:{port}" for port in numbers))


@click.command(epilog=_EPILOG, context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.option("--quick", is_flag=True, help="Fewer loads, no shared memory, short windows: under five minutes.")
@click.option(
    "--profiles", type=_Several(click.Choice(PROFILES)), help="One after the other.  [default: by what the machine has]"
)
@click.option(
    "--compare",
    nargs=2,
    type=click.Choice(PROFILES),
    metavar="BASE OTHER",
    help="Two profiles that take turns, and how many times better OTHER is.",
)
@click.option(
    "--models", type=_Several(click.Choice(MODELS)), default=MODELS, show_default=False, help="[default: all]"
)
@click.option(
    "--protocols", type=_Several(click.Choice(PROTOCOLS)), default=PROTOCOLS, show_default=False, help="[default: both]"
)
@click.option(
    "--concurrency",
    type=_Several(click.IntRange(1, 256)),
    help="Requests under way at any time.  [default: 1,2,4,8; quick: 1,4]",
)
@click.option(
    "--request-rate",
    type=_Several(click.FloatRange(0, min_open=True)),
    help="Instead: requests a second, sent whether or not earlier ones are answered.",
)
@click.option(
    "--batch",
    type=_Several(click.IntRange(1, 16)),
    default=(1, 4),
    show_default=False,
    help="Rows of one request, for face_detector and face_mesh; the others take one photo a request.  [default: 1,4]",
)
@click.option(
    "--shared-memory",
    type=_Several(click.Choice(SHARED_MEMORY)),
    help="How tensors travel; none is in the request.  [default: none,system; quick: none]",
)
@click.option("--rounds", type=click.IntRange(1), help="How often the profiles take turns.  [default: 1; --compare: 5]")
@click.option(
    "--photo",
    "photos",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=(SAMPLE_PHOTO,),
    show_default=False,
    help="With a face; may be repeated.  [default: samples/astronaut.jpg]",
)
@click.option("--server", type=_ServerAddress(), help="A running one, ports 8000, 8001, 8002 unless given.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=_OUT,
    show_default=False,
    help="Folder for the results.  [default: out/perf]",
)
@click.option("--overwrite", is_flag=True, help="Replace an earlier sweep in that folder.")
@click.option("--update-docs", is_flag=True, help="Also put the tables and pictures into docs/performance.md.")
def main(
    quick: bool,
    profiles: tuple[str, ...] | None,
    compare: tuple[str, str] | None,
    models: tuple[str, ...],
    protocols: tuple[str, ...],
    concurrency: tuple[int, ...] | None,
    request_rate: tuple[float, ...] | None,
    batch: tuple[int, ...],
    shared_memory: tuple[str, ...] | None,
    rounds: int | None,
    photos: tuple[Path, ...],
    server: Addresses | None,
    out: Path,
    overwrite: bool,
    update_docs: bool,
) -> None:
    """Measure models, protocols, loads and profiles with NVIDIA's perf_analyzer, on real faces.

    Starts a private server for each profile. perf_analyzer is fetched where it is not installed.
    """
    if compare and (profiles or server):
        raise click.UsageError("--compare names two profiles to start: leave out --profiles and --server")
    if server and profiles:
        raise click.UsageError("--server measures the profile that it runs: leave out --profiles")
    if request_rate and concurrency:
        raise click.UsageError("--request-rate is instead of --concurrency: give one of them")
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        if compare:
            models = _served_by_both(console, models, compare)
        plan = Plan(
            profiles=compare
            or profiles
            or (find_running(server).profile if server else default_profile(find_triton()),),
            models=models,
            protocols=protocols,
            shared_memory=shared_memory or (("none",) if quick else ("none", "system")),
            batches=batch,
            concurrencies=concurrency or ((1, 4) if quick else (1, 2, 4, 8)),
            rates_per_s=request_rate or (),
            rounds=rounds or (_COMPARED_ROUNDS if compare else 1),
            settings=QUICK if quick else FULL,
            running=server,
        )
        plan.require_cases()
        outcome = _measure(console, plan, photos, ResultFolder(out, overwrite=overwrite), update_docs=update_docs)
    except FaceGraphError as error:
        console.print(f"error: {error}", style="red", markup=False)
        sys.exit(2)
    except KeyboardInterrupt:
        console.print("stopped before anything was measured")
        sys.exit(130)
    sys.exit(130 if outcome.interrupted else 1 if outcome.failed else 0)


def _served_by_both(console: Console, models: tuple[str, ...], compared: tuple[str, str]) -> tuple[str, ...]:
    served = set.intersection(*(set(loaded_models(MODEL_REPOSITORY, profile)) for profile in compared))
    if missing := [model for model in models if model not in served]:
        console.print(f"{' and '.join(compared)} do not both serve {', '.join(missing)} by themselves: left out")
    return tuple(model for model in models if model in served)


def _measure(
    console: Console, plan: Plan, photos: Sequence[Path], results: ResultFolder, *, update_docs: bool
) -> Outcome:
    """Measure and write; return what came of it."""
    analyzer = find_perf_analyzer(console.print)
    with console.status("looking for the faces in the photos"):
        inputs = make_inputs(read_photos(photos))
    for profile in plan.profiles:
        if missing := plan.not_served(profile):
            console.print(f"{profile} has {', '.join(missing)} only as a part of others: left out")
    if (busy := load_per_core()) > _BUSY:
        console.print(f"this machine is busy (load {busy:.1f} a core): expect numbers that scatter", style="yellow")
    begin = time.monotonic()
    with _Bar(console, plan.size) as bar:
        outcome = sweep(plan, analyzer, inputs, results, bar)
    machine = describe_machine() | {
        "Triton": outcome.triton,
        "perf_analyzer": analyzer.version,
        "photos": ", ".join(map(_short, photos)),
        "load before": f"{busy:.1f} a core",
        "took": f"{time.monotonic() - begin:.0f} s",
    }
    about = {
        "machine": machine,
        "command": shlex.join(["python", "perf/sweep.py", *sys.argv[1:]]),
        "profiles": plan.profiles,
        "settings": vars(plan.settings),
        "failed": outcome.failed,
        "interrupted": outcome.interrupted,
    }
    paths = results.finish(outcome.measured, about, plan.profiles)
    if update_docs and outcome.measured:
        _update_docs(outcome.measured, about, plan.profiles, results.folder)
        paths.append(_DOCUMENT)
    for path in paths:
        click.echo(_short(path))
    if outcome.failed:
        console.print(f"{len(outcome.failed)} of {plan.size} cases were not measured, see sweep.json", style="red")
    return outcome


def _update_docs(measured: Sequence[Measurement], about: dict[str, Any], profiles: Sequence[str], folder: Path) -> None:
    pictures = {name: f"images/sweep-{name}" for name in (THROUGHPUT_PICTURE, STEPS_PICTURE)}
    for name, place in pictures.items():
        if (folder / name).exists():
            write_atomically(_DOCUMENT.parent / place, (folder / name).read_bytes())
    update_document(_DOCUMENT, report(measured, about, profiles, pictures))


class _Bar(Progress):
    """Shows how far the sweep is; a line for every finished case."""

    def __init__(self, console: Console, cases: int) -> None:
        self._console = console
        self._bar = bars.Progress(
            bars.TextColumn("{task.description}", markup=False),
            bars.BarColumn(20),
            bars.MofNCompleteColumn(),
            bars.TimeElapsedColumn(),
            bars.TextColumn("left"),
            bars.TimeRemainingColumn(elapsed_when_finished=False),
            console=console,
            transient=True,
            speed_estimate_period=600,
        )
        self._task = self._bar.add_task("starting", total=cases)

    def __enter__(self) -> _Bar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def starting(self, profile: str) -> None:
        self._bar.update(self._task, description=f"starting {profile}")

    def measuring(self, case: Case) -> None:
        self._bar.update(self._task, description=str(case))

    def measured(self, measurement: Measurement) -> None:
        words = (
            f"{measurement.case}: {number(measurement.images_per_s)} images/s, median {number(measurement.p50_ms)} ms"
        )
        self._line(f"{words}, p99 {number(measurement.p99_ms)} ms", remark([measurement]))

    def failed(self, case: Case, why: str) -> None:
        self._line(f"{case}: not measured", why)

    def _line(self, words: str, remark: str) -> None:
        self._bar.advance(self._task)
        self._console.print(f"{words}; {remark}" if remark else words, markup=False, style="yellow" if remark else None)


def _short(path: Path) -> str:
    try:
        return str(path.resolve().relative_to(REPOSITORY))
    except ValueError:
        return str(path)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
