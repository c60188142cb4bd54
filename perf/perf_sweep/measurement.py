"""Run perf_analyzer for one case and read what it wrote.

Four of its habits decide how:

- It names the report of an ensemble's step ``<step>_v<version>.<name of the report>``, folder and all: so it runs in
  its folder, with a bare file name.
- It sends warm-up requests only when it has one load: so each load is a run of its own.
- It writes nothing when the windows do not agree: so then it runs once more with any difference allowed, and the result
  is marked.
- With a fixed number of requests it writes no row and counts the wait before them: so only windows are used.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

from perf_sweep.analyzer import PerfAnalyzer
from perf_sweep.cases import Case
from perf_sweep.errors import AnalyzerError

_REPORT = "report.csv"
_LOG = "perf_analyzer.txt"
_WINDOWS = 3
"""How many windows perf_analyzer compares, and pools in its report."""

_LEAST_REQUESTS = 5  # of a window
_ANY_DIFFERENCE_PERCENT = 100_000
_UNSTABLE = "Failed to obtain stable measurement"
_SETUP_S = 60.0
_US_PER_MS = 1000.0
_MIB = 2**20
_LOG_LINES = 6

_STAGES = ("Server Queue", "Server Compute Input", "Server Compute Infer", "Server Compute Output")


@dataclass(frozen=True)
class Settings:
    """How long and how strictly perf_analyzer measures.

    Attributes:
        window_s: one window; the last three together are the result.
        stability_percent: how far throughput and latency of the three may lie apart.
        most_windows: after that many it gives up.
        warm_up_requests: sent before, not counted.

    """

    window_s: float
    stability_percent: float
    most_windows: int
    warm_up_requests: int

    def for_requests_of(self, seconds: float) -> Settings:
        """Return settings whose windows hold a few requests that take so long; the warm-up is no longer than one."""
        window_s = max(self.window_s, _LEAST_REQUESTS * seconds)
        return replace(
            self, window_s=window_s, warm_up_requests=max(1, min(self.warm_up_requests, int(window_s / seconds)))
        )


FULL = Settings(window_s=3.0, stability_percent=10.0, most_windows=10, warm_up_requests=50)
QUICK = Settings(window_s=1.0, stability_percent=15.0, most_windows=5, warm_up_requests=20)


class Addresses(NamedTuple):
    """Where the server is: ``HOST:PORT`` each."""

    http: str
    grpc: str
    metrics: str


class StageTimes(NamedTuple):
    """Mean times of one model in the server, ms."""

    queue_ms: float
    compute_input_ms: float
    compute_infer_ms: float
    compute_output_ms: float

    @property
    def until_answer_ms(self) -> float:
        """Until the answer is there. While it is handed over, the next step of an ensemble starts already."""
        return self.queue_ms + self.compute_input_ms + self.compute_infer_ms


@dataclass(frozen=True)
class Measurement:
    """What one run of one case gave.

    Attributes:
        case: what was measured.
        round: from 1 on.
        images_per_s: answered; a batch of n counts n.
        mean_ms: of a request as the client sees it; likewise the percentiles.
        p50_ms: see ``mean_ms``.
        p90_ms: see ``mean_ms``.
        p95_ms: see ``mean_ms``.
        p99_ms: see ``mean_ms``.
        client_ms: sending and receiving in the client.
        network_ms: between client and server, and what the server does before and after the model.
        server: the model itself; for an ensemble perf_analyzer adds its steps up.
        steps: the steps of an ensemble; empty for other models.
        stable: whether the windows agreed. If not, take the numbers with a grain of salt.
        delayed_percent: of a rate: requests that left late because the client could not keep up.
        gpu_percent: mean utilisation of the busiest GPU; None without one.
        gpu_memory_mib: peak of the GPU, whoever uses it; None without one.
        gpu_power_w: mean; None without one.
        server_memory_mib: peak of Triton's processes, shared pages counted once; None where they cannot be seen.

    """

    case: Case
    round: int
    images_per_s: float
    mean_ms: float
    p50_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float
    client_ms: float
    network_ms: float
    server: StageTimes
    steps: Mapping[str, StageTimes]
    stable: bool
    delayed_percent: float | None = None
    gpu_percent: float | None = None
    gpu_memory_mib: float | None = None
    gpu_power_w: float | None = None
    server_memory_mib: float | None = None

    @property
    def between_ms(self) -> float:
        """What of a request's mean time is not in a step: handing over, network, client."""
        return self.mean_ms - sum(times.until_answer_ms for times in self.steps.values())

    def row(self) -> dict[str, object]:
        """Return the row of the tidy table."""
        plain = {name: value for name, value in asdict(self).items() if name not in ("case", "server", "steps")}
        return {**asdict(self.case), **plain, **self.server._asdict()}

    def step_rows(self) -> list[dict[str, object]]:
        """Return the rows of the tidy table of steps."""
        return [
            {**asdict(self.case), "round": self.round, "step": step, **times._asdict()}
            for step, times in self.steps.items()
        ]


def analyzer_options(
    case: Case,
    settings: Settings,
    addresses: Addresses,
    *,
    input_file: Path,
    output_bytes: int,
    gpu_metrics: bool,
    any_difference: bool = False,
) -> list[str]:
    """Return perf_analyzer's options for one case.

    Args:
        case: what to measure.
        settings: how.
        addresses: of the server.
        input_file: the requests.
        output_bytes: of the largest output of one row, for shared memory.
        gpu_metrics: whether to ask the server about its GPU.
        any_difference: take the first three windows, however much they differ.

    """
    stability = _ANY_DIFFERENCE_PERCENT if any_difference else settings.stability_percent
    options = [
        "-m",
        case.model,
        "-i",
        case.protocol,
        "-u",
        addresses.grpc if case.protocol == "grpc" else addresses.http,
    ]
    options += ["-b", str(case.batch), "--input-data", str(input_file), "-f", _REPORT, "--verbose-csv", "-v"]
    options += [
        "--measurement-interval",
        str(round(settings.window_s * 1000)),
        "--stability-percentage",
        f"{stability:g}",
    ]
    options += ["--max-trials", str(_WINDOWS if any_difference else settings.most_windows)]
    options += ["--warmup-request-count", str(settings.warm_up_requests)]
    if case.concurrency is not None:
        options += ["--concurrency-range", str(case.concurrency)]
    else:
        # Asynchronous: a thread that waits for an answer sends none. At even intervals: by chance alone the windows of
        # a random rate would not agree.
        options += ["--request-rate-range", f"{case.rate_per_s:g}", "--request-distribution", "constant", "--async"]
    if case.shared_memory != "none":
        options += ["--shared-memory", case.shared_memory, "--output-shared-memory-size", str(output_bytes)]
    if gpu_metrics:
        options += ["--collect-metrics", "--metrics-url", f"{addresses.metrics}/metrics", "--metrics-interval", "100"]
    return options


def measure(
    analyzer: PerfAnalyzer,
    case: Case,
    settings: Settings,
    addresses: Addresses,
    *,
    input_file: Path,
    output_bytes: int,
    gpu_metrics: bool,
    steps: Sequence[str],
    folder: Path,
    round_number: int = 1,
) -> Measurement:
    """Measure one case.

    Args:
        analyzer: what measures.
        case: what to measure.
        settings: how.
        addresses: of the server.
        input_file: see :func:`analyzer_options`.
        output_bytes: see :func:`analyzer_options`.
        gpu_metrics: see :func:`analyzer_options`.
        steps: the models that an ensemble calls; their times must be there too.
        folder: a new one, for what perf_analyzer writes.
        round_number: for the result.

    Raises:
        AnalyzerError: it did not measure; the message ends with what it said.

    """
    folder.mkdir(parents=True)
    log = ""
    for any_difference in (False, True):
        options = analyzer_options(
            case,
            settings,
            addresses,
            input_file=input_file.resolve(),
            output_bytes=output_bytes,
            gpu_metrics=gpu_metrics,
            any_difference=any_difference,
        )
        timeout_s = _SETUP_S + 2 * settings.window_s * (settings.most_windows + _WINDOWS)
        said = _run([*analyzer.command, *options], folder, timeout_s)
        log += f"perf_analyzer {' '.join(options)}\n{said}\n"
        (folder / _LOG).write_text(log)
        if (folder / _REPORT).is_file():
            return read_measurement(case, round_number, folder, said, steps=steps, stable=not any_difference)
        if _UNSTABLE not in said:
            break
    end = "\n".join(line for line in said.splitlines() if line.strip())
    raise AnalyzerError(f"perf_analyzer did not measure {case}:\n" + "\n".join(end.splitlines()[-_LOG_LINES:]))


def read_measurement(
    case: Case, round_number: int, folder: Path, said: str, *, steps: Sequence[str], stable: bool
) -> Measurement:
    """Read what perf_analyzer wrote.

    Args:
        case: what was measured.
        round_number: for the result.
        folder: where it ran.
        said: its output.
        steps: the models that an ensemble calls.
        stable: for the result.

    Raises:
        AnalyzerError: a report is missing or is not as expected.

    """
    row = read_row((folder / _REPORT).read_text())
    try:
        return Measurement(
            case=case,
            round=round_number,
            images_per_s=float(row["Inferences/Second"]),
            mean_ms=_ms(row, "Avg latency"),
            p50_ms=_ms(row, "p50 latency"),
            p90_ms=_ms(row, "p90 latency"),
            p95_ms=_ms(row, "p95 latency"),
            p99_ms=_ms(row, "p99 latency"),
            client_ms=_ms(row, "Client Send") + _ms(row, "Client Recv"),
            network_ms=_ms(row, "Network+Server Send/Recv"),
            server=_stage_times(row),
            steps={step: _stage_times(read_row(_step_report(folder, step))) for step in steps},
            stable=stable,
            delayed_percent=_delayed_percent(said) if case.rate_per_s is not None else None,
            gpu_percent=_scaled(gpu_values(row.get("Avg GPU Utilization", "")), 100),
            gpu_memory_mib=_scaled(gpu_values(row.get("Max GPU Memory Usage", "")), 1 / _MIB),
            gpu_power_w=_scaled(gpu_values(row.get("Avg GPU Power Usage", "")), 1),
        )
    except (KeyError, ValueError) as error:
        raise AnalyzerError(
            f"{folder / _REPORT} is not as expected ({error!r}): another version of perf_analyzer?"
        ) from error


def read_row(text: str) -> dict[str, str]:
    """Return the one row of a report.

    Raises:
        AnalyzerError: there is none, or there are more.

    """
    rows = list(csv.DictReader(io.StringIO(text)))
    if len(rows) != 1:
        raise AnalyzerError(f"perf_analyzer's report has {len(rows)} rows instead of one")
    return rows[0]


def gpu_values(cell: str) -> list[float]:
    """Return the numbers of a cell ``GPU-uuid:value;GPU-uuid:value;``, one a GPU."""
    return [float(part.rpartition(":")[2]) for part in cell.split(";") if part.strip()]


def _step_report(folder: Path, step: str) -> str:
    found = [path for path in folder.glob(f"*.{_REPORT}") if re.fullmatch(rf"{re.escape(step)}_v\d+", _stem(path))]
    if len(found) != 1:
        raise AnalyzerError(f"perf_analyzer wrote no times of the step {step} into {folder}")
    return found[0].read_text()


def _stem(path: Path) -> str:
    return path.name.removesuffix(f".{_REPORT}")


def _stage_times(row: Mapping[str, str]) -> StageTimes:
    return StageTimes(*(_ms(row, name) for name in _STAGES))


def _ms(row: Mapping[str, str], name: str) -> float:
    return float(row[name]) / _US_PER_MS


def _scaled(values: Sequence[float], factor: float) -> float | None:
    return max(values) * factor if values else None


def _delayed_percent(said: str) -> float:
    found = re.findall(r"([\d.]+)% of the requests were delayed", said)
    return float(found[-1]) if found else 0.0


def _run(command: Sequence[str], folder: Path, timeout_s: float) -> str:
    """Return all that a program says; it never outlives this call.

    Raises:
        AnalyzerError: it took too long.

    """
    # In its own session: Ctrl-C is ours to handle, and what it started can be stopped with it.
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        return process.communicate(timeout=timeout_s)[0]
    except subprocess.TimeoutExpired as error:
        raise AnalyzerError(f"perf_analyzer was not done within {timeout_s:.0f} s") from error
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
