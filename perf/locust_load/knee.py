"""The knee: from which number of users on more of them bring longer waits instead of more answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

_ENOUGH = 0.95
"""The knee is where this part of the best throughput is reached: the last few percent cost a multiple in latency."""
_IN_VAIN = 2


class Counts(NamedTuple):
    """What Locust has counted so far: requests, failed ones, and how many took so many (rounded) milliseconds."""

    requests: int
    failures: int
    by_response_ms: Mapping[int, int]


class Step(NamedTuple):
    """What a number of users got. Milliseconds have two digits, as Locust keeps them."""

    users: int
    answers_per_s: float
    p50_ms: float
    p95_ms: float
    failures: int


def step_between(users: int, seconds: float, before: Counts, after: Counts) -> Step:
    """Return the step whose requests were counted between two readings, ``seconds`` apart."""
    times = {ms: count - before.by_response_ms.get(ms, 0) for ms, count in after.by_response_ms.items()}
    failures = after.failures - before.failures
    answers = after.requests - before.requests - failures
    return Step(users, answers / seconds, percentile_ms(times, 0.5), percentile_ms(times, 0.95), failures)


def percentile_ms(by_response_ms: Mapping[int, int], part: float) -> float:
    """Return the time within which ``part`` of the requests were answered; NaN where there were none."""
    total = sum(by_response_ms.values())
    seen = 0
    for ms in sorted(by_response_ms):
        seen += by_response_ms[ms]
        if seen and seen >= part * total:
            return float(ms)
    return float("nan")


def knee(steps: Sequence[Step]) -> Step:
    """Return the step with the fewest users that reaches nearly the best throughput, of at least one step."""
    best = max(step.answers_per_s for step in steps)
    return min((s for s in steps if s.answers_per_s >= _ENOUGH * best), key=lambda s: s.users)


def is_past_knee(steps: Sequence[Step]) -> bool:
    """Say whether the last steps brought nothing over the best before them, so that going on would not either."""
    if len(steps) <= _IN_VAIN:
        return False
    before = max(step.answers_per_s for step in steps[:-_IN_VAIN])
    return all(step.answers_per_s * _ENOUGH < before for step in steps[-_IN_VAIN:])
