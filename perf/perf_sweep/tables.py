"""Measurements as Markdown: the summary, the steps of the ensembles, and two profiles against each other."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from facegraph_server.checks import markdown_table

from perf_sweep.cases import PHOTO_MODELS, Case
from perf_sweep.measurement import Measurement

_NOT_MEASURED = "-"
_KEPT = 0.9
"""A rate of which less comes back is more than the server can answer."""

_FEW = 4
"""The second load of the summary: this many images at once."""


class Ratio(NamedTuple):
    """A ratio and how far it scattered over the rounds."""

    median: float
    lowest: float
    highest: float

    def __str__(self) -> str:
        if self.lowest == self.highest:
            return number(self.median)
        return f"{number(self.median)} ({number(self.lowest)} to {number(self.highest)})"


class Pair(NamedTuple):
    """The measurements of one case in two profiles, round by round, in the same order."""

    case: Case
    base: list[Measurement]
    other: list[Measurement]

    @property
    def throughput_gain(self) -> Ratio:
        """Images a second of the other profile over those of the base."""
        return ratio([m.images_per_s for m in self.other], [m.images_per_s for m in self.base])

    @property
    def latency_gain(self) -> Ratio:
        """Median latency of the base over that of the other profile: over 1, the other one is faster."""
        return ratio([m.p50_ms for m in self.base], [m.p50_ms for m in self.other])


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """Divide measurements that were taken side by side; the spread is that of their ratios, not of each alone."""
    ratios = [a / b for a, b in zip(numerators, denominators, strict=True)]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios))


def pair_up(measured: Iterable[Measurement], base: str, other: str) -> list[Pair]:
    """Pair the measurements of two profiles by case and round; what has no partner is left out."""
    by_case: dict[Case, dict[tuple[int, str], Measurement]] = {}
    for m in measured:
        by_case.setdefault(m.case.in_profile(base), {})[m.round, m.case.profile] = m
    pairs = []
    for case, found in by_case.items():
        rounds = sorted({number for number, _ in found if (number, base) in found and (number, other) in found})
        if rounds:
            pairs.append(Pair(case, [found[n, base] for n in rounds], [found[n, other] for n in rounds]))
    return pairs


def summary_table(measured: Sequence[Measurement], base: str | None) -> list[str]:
    """Return the lines of the summary: a row for each model, transport and profile.

    Args:
        measured: in any order; of several rounds the medians are shown. Rates have no place here.
        base: the profile that the gain is against; None where there is one profile only.

    """
    columns = ["model", "transport", "profile", "mean ms", "p50", "p90", "p99", "images/s at 1", f"images/s at {_FEW}"]
    columns += ["GPU %", "GPU MiB", "server MiB", "gain at 1", f"gain at {_FEW}"]
    rows = []
    for model, transport, profile in dict.fromkeys(map(_variant, measured)):
        mine = [m for m in measured if _variant(m) == (model, transport, profile)]
        one, few = _at(mine, 1), _at(mine, _FEW)
        if not one and not few:
            continue
        mark = "" if all(m.stable for m in (*one, *few)) else " *"
        row = [model, transport, profile + mark, *_latencies(one), _median(one, _rate), _median(few, _rate)]
        row += [_peak(few or one, lambda m: m.gpu_percent), _peak(mine, lambda m: m.gpu_memory_mib)]
        rows.append(
            [*row, _peak(mine, lambda m: m.server_memory_mib), *(_gain(measured, base, ms) for ms in (one, few))]
        )
    kept = [i for i in range(len(columns)) if any(row[i] != _NOT_MEASURED for row in rows)]
    return markdown_table([columns[i] for i in kept], [[row[i] for i in kept] for row in rows]) if rows else []


def loads_table(measured: Sequence[Measurement]) -> list[str]:
    """Return the lines of a table of every load, in the order of the sweep."""
    columns = ["model", "transport", "profile", "load", "images/s", "mean ms", "p50", "p90", "p99", "remark"]
    rows = []
    for case in dict.fromkeys(m.case for m in measured):
        mine = [m for m in measured if m.case == case]
        row = [case.model, case.transport, case.profile, case.load, _median(mine, _rate), *_latencies(mine)]
        rows.append([*row, remark(mine)])
    return markdown_table(columns, rows)


def steps_table(measured: Sequence[Measurement]) -> list[str]:
    """Return the lines of the steps of each ensemble, mean ms of one request alone; empty where none was measured so.

    A step's time ends when its answer is there: the next step starts while the answer is handed over. What is left of
    the whole is in one column.
    """
    alone = [m for m in measured if m.steps and m.case.concurrency == 1]
    steps = list(dict.fromkeys(step for m in alone for step in m.steps))
    rows = []
    for case in dict.fromkeys(m.case for m in alone):
        mine = [m for m in alone if m.case == case]
        row = [case.model, case.transport, case.profile]
        for step in steps:
            times_ms = [m.steps[step].until_answer_ms for m in mine if step in m.steps]
            row.append(number(statistics.median(times_ms)) if times_ms else "")
        rows.append([*row, _median(mine, lambda m: m.between_ms), _median(mine, lambda m: m.mean_ms)])
    columns = ["model", "transport", "profile", *steps, "between", "whole"]
    return markdown_table(columns, rows) if rows else []


def comparison_table(pairs: Sequence[Pair], base: str, other: str) -> list[str]:
    """Return the lines of two profiles side by side; a gain over 1 means that the other one is better."""
    columns = ["model", "transport", "load", f"{base} images/s", f"{other} images/s", "throughput gain"]
    columns += [f"{base} p50 ms", f"{other} p50 ms", "latency gain", "rounds"]
    rows = []
    for pair in pairs:
        row = [pair.case.model, pair.case.transport, pair.case.load]
        row += [_median(pair.base, _rate), _median(pair.other, _rate), str(pair.throughput_gain)]
        row += [_median(pair.base, _p50), _median(pair.other, _p50), str(pair.latency_gain)]
        rows.append([*row, str(len(pair.base))])
    return markdown_table(columns, rows) if rows else []


def remark(measured: Sequence[Measurement]) -> str:
    """Say what is to be known about a row: windows that did not agree, a rate that was not kept."""
    remarks = []
    if unstable := sum(not m.stable for m in measured):
        remarks.append("not stable" if len(measured) == 1 else f"not stable in {unstable} of {len(measured)} rounds")
    rate = measured[0].case.rate_per_s
    if rate is not None and statistics.median(m.images_per_s for m in measured) < _KEPT * rate * measured[0].case.batch:
        remarks.append("more than it can answer")
    return ", ".join(remarks)


def number(value: float) -> str:
    """Return a number with three digits, or all that stand before the point."""
    if abs(value) < 1:
        return f"{value:.3g}"
    for limit, digits in ((10, 2), (100, 1)):
        if abs(value) < limit:
            return f"{value:.{digits}f}"
    return f"{value:.0f}"


def _variant(m: Measurement) -> tuple[str, str, str]:
    return m.case.model, m.case.transport, m.case.profile


def _rate(m: Measurement) -> float:
    return m.images_per_s


def _p50(m: Measurement) -> float:
    return m.p50_ms


def _latencies(measured: Sequence[Measurement]) -> list[str]:
    values: list[Callable[[Measurement], float]] = [lambda m: m.mean_ms, _p50, lambda m: m.p90_ms, lambda m: m.p99_ms]
    return [_median(measured, value) for value in values]


def _at(measured: Sequence[Measurement], images: int) -> list[Measurement]:
    """Return those with so many images at once: the networks in one request, photos in as many requests."""
    return [
        m
        for m in measured
        if m.case.images_at_once == images and (m.case.model in PHOTO_MODELS or m.case.concurrency == 1)
    ]


def _median(measured: Sequence[Measurement], value: Callable[[Measurement], float]) -> str:
    return number(statistics.median(map(value, measured))) if measured else _NOT_MEASURED


def _peak(measured: Sequence[Measurement], value: Callable[[Measurement], float | None]) -> str:
    found = [got for m in measured if (got := value(m)) is not None]
    return f"{max(found):.0f}" if found else _NOT_MEASURED


def _gain(measured: Sequence[Measurement], base: str | None, mine: Sequence[Measurement]) -> str:
    if base is None or not mine or mine[0].case.profile == base:
        return _NOT_MEASURED
    pairs = pair_up(
        (m for m in measured if m.case.in_profile(base) == mine[0].case.in_profile(base)), base, mine[0].case.profile
    )
    return number(pairs[0].throughput_gain.median) if pairs else _NOT_MEASURED
