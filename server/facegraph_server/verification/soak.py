"""Level three of the verification: ask the same for a while; no answer may change and no memory may grow."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from facegraph_server.checks import Check, at_least, at_most, equal, not_judged
from facegraph_server.nvidia_smi import GpuReading, read_gpu

LEVEL = "soak"

_PROC = Path("/proc")
_SERVER, _STUB = "tritonserver", "triton_python_b"  # the kernel keeps 15 characters of a process's name

WARM_UP_SHARE = 1 / 3
"""The first part of a soak in which allocators and caches still fill; the trend is that of the rest."""

LEAST_TREND_S = 180.0
"""A shorter trend is recorded, not judged: glibc's arenas fill for minutes, one thread's after the other."""

GROWTH_LIMIT_MIB = 8.0
GROWTH_LIMIT_SHARE = 0.02
"""Memory may grow by the larger of 8 MiB and 2 % after the warm-up: what the samples themselves scatter."""


class ProcessMemory(NamedTuple):
    """Memory of a server's processes in MiB; pages shared between processes count in parts (PSS)."""

    server_mib: float
    stubs_mib: float


@dataclass(frozen=True)
class Sample:
    """The server's state at one time of the soak."""

    time_s: float
    memory: ProcessMemory | None
    gpu: GpuReading | None

    def to_dict(self) -> dict[str, float | None]:
        """Return plain values by name; what was not read is missing."""
        values: dict[str, float | None] = {"time_s": round(self.time_s, 1)}
        for part in (self.memory, self.gpu):
            values |= {} if part is None else part._asdict()
        return values


class Growth(NamedTuple):
    """The trend of a memory after the warm-up, its limit, and the time that it spans."""

    growth_mib: float
    limit_mib: float
    over_s: float


@dataclass
class SoakResult:
    """What a soak saw.

    Attributes:
        requests: how many were answered.
        changed: how many answers were not, bit by bit, the first answer to the same question.
        samples: in order of time.

    """

    requests: int = 0
    changed: int = 0
    samples: list[Sample] = field(default_factory=list)

    def growth(self, part: str) -> Growth | None:
        """Return the growth after the warm-up; None where there are too few samples.

        Args:
            part: ``server``, ``stubs`` or ``gpu``.

        """
        points = [(s.time_s, value) for s in self.samples if (value := _memory_mib(s, part)) is not None]
        kept = points[int(len(points) * WARM_UP_SHARE) :]
        if len(kept) < 3:  # noqa: PLR2004  a trend needs more than two points
            return None
        times, values = (np.array(column, np.float64) for column in zip(*kept, strict=True))
        over_s = float(times[-1] - times[0])
        limit_mib = max(GROWTH_LIMIT_MIB, GROWTH_LIMIT_SHARE * float(np.median(values)))
        return Growth(theil_sen_slope(times, values) * over_s, limit_mib, over_s)


def soak(
    ask: Callable[[int], bytes],
    questions: int,
    duration_s: float,
    *,
    interval_s: float,
    read_memory: Callable[[], ProcessMemory | None],
    clock: Callable[[], float] = time.monotonic,
) -> SoakResult:
    """Ask in turn until the time is over.

    Args:
        ask: asks the question of a number from 0 on and returns its answer as bytes.
        questions: how many there are.
        duration_s: how long; every question is asked twice at least.
        interval_s: from one sample of memory and GPU to the next.
        read_memory: returns the memory of the server, None where it cannot be read.
        clock: returns seconds.

    """
    result = SoakResult()
    first: dict[int, bytes] = {}
    start, next_sample_s = clock(), 0.0
    while (now_s := clock() - start) < duration_s or result.requests < 2 * questions:
        if now_s >= next_sample_s:
            result.samples.append(Sample(now_s, read_memory(), read_gpu()))
            next_sample_s = now_s + interval_s
        number = result.requests % questions
        answer = ask(number)
        result.changed += first.setdefault(number, answer) != answer
        result.requests += 1
    result.samples.append(Sample(clock() - start, read_memory(), read_gpu()))
    return result


def check_soak(result: SoakResult, profile: str) -> list[Check]:
    """Judge a soak."""
    checks = [
        at_least(LEVEL, f"{profile}: requests answered", result.requests, 1),
        equal(LEVEL, f"{profile}: answers that were not those of the start, bit by bit", result.changed, 0),
    ]
    for part, title in (("server", "tritonserver"), ("stubs", "Python steps"), ("gpu", "GPU")):
        name = f"{profile}: growth of memory, {title}"
        growth = result.growth(part)
        if growth is None:
            why = "no GPU" if part == "gpu" and not any(s.gpu for s in result.samples) else "too few samples"
            checks.append(not_judged(LEVEL, name, why))
        elif growth.over_s < LEAST_TREND_S:
            why = f"recorded only: {growth.over_s:.0f} s are too short to tell a leak"
            checks.append(not_judged(LEVEL, name, why, f"{growth.growth_mib:.3g} MiB"))
        else:
            checks.append(at_most(LEVEL, name, growth.growth_mib, round(growth.limit_mib, 1), "MiB"))
    for what, unit in (("temperature_c", "degrees C"), ("utilisation_percent", "%")):
        readings = [getattr(sample.gpu, what) for sample in result.samples if sample.gpu is not None]
        values = [value for value in readings if value is not None]
        if values:
            found = f"median {np.median(values):g}, highest {max(values):g} {unit}"
            checks.append(not_judged(LEVEL, f"{profile}: GPU {what.partition('_')[0]}", "recorded only", found))
    return checks


def theil_sen_slope(x: Sequence[float] | NDArray[np.float64], y: Sequence[float] | NDArray[np.float64]) -> float:
    """Return the median of the slopes between all pairs of points: one outlier, or a few, do not tilt it."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    i, j = np.triu_indices(len(x), 1)
    return float(np.median((y[j] - y[i]) / (x[j] - x[i])))


def server_memory(ancestor: int | None = None) -> ProcessMemory | None:
    """Return the memory of the Triton, and of its Python steps, that a process started; None where there is none.

    Args:
        ancestor: the process; None is this one.

    """
    children: dict[int, list[int]] = {}
    for path in _PROC.glob("[0-9]*/stat"):
        try:
            # The name, in parentheses, may hold blanks: the parent is the second field after it.
            children.setdefault(int(path.read_text().rpartition(")")[2].split()[1]), []).append(int(path.parent.name))
        except OSError:
            continue  # it ended meanwhile
    totals, found = {_SERVER: 0.0, _STUB: 0.0}, False
    waiting = [ancestor or os.getpid()]
    while waiting:
        pid = waiting.pop()
        waiting += children.get(pid, [])
        try:
            name = (_PROC / str(pid) / "comm").read_text().strip()
            if name in totals:
                totals[name] += _pss_mib(pid)
                found = True
        except OSError:
            continue
    return ProcessMemory(totals[_SERVER], totals[_STUB]) if found else None


def _pss_mib(pid: int) -> float:
    for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _memory_mib(sample: Sample, part: str) -> float | None:
    if part == "gpu":
        return None if sample.gpu is None else sample.gpu.memory_mib
    if sample.memory is None:
        return None
    return sample.memory.server_mib if part == "server" else sample.memory.stubs_mib
