"""What a load has to keep to, and what it broke."""

from __future__ import annotations

from dataclasses import dataclass

_LEAST_IN_FLIGHT_SHARE = 0.6
_OVERTIME_S, _OVERTIME_SHARE = 2.0, 0.1


@dataclass
class Ledger:
    """What the users of one process, or of all, have noted besides Locust's own statistics.

    Attributes:
        cycle_s: time of all users who ask without a pause, from one answer to the next.
        in_flight_s: how much of it they waited for an answer.
        frames: frames that live cameras delivered.
        late_frames: those answered after the next one was there, or never sent because of that.

    """

    cycle_s: float = 0.0
    in_flight_s: float = 0.0
    frames: int = 0
    late_frames: int = 0

    def add(self, cycle_s: float, in_flight_s: float, frames: int, late_frames: int) -> None:
        """Add another ledger's values, in the order of the attributes."""
        self.cycle_s += cycle_s
        self.in_flight_s += in_flight_s
        self.frames += frames
        self.late_frames += late_frames

    def take(self) -> tuple[float, float, int, int]:
        """Return the values in the order of the attributes, and begin at zero again."""
        values = (self.cycle_s, self.in_flight_s, self.frames, self.late_frames)
        self.cycle_s, self.in_flight_s, self.frames, self.late_frames = 0.0, 0.0, 0, 0
        return values

    @property
    def in_flight_share(self) -> float:
        """How much of their time the users waited for answers; 1 where nobody asked without a pause."""
        return self.in_flight_s / self.cycle_s if self.cycle_s else 1.0

    @property
    def late_share(self) -> float:
        """The part of the frames that was late."""
        return self.late_frames / self.frames if self.frames else 0.0


@dataclass(frozen=True)
class Limits:
    """What is allowed; None allows everything."""

    failure_share: float
    p95_ms: float | None
    late_share: float | None


@dataclass(frozen=True)
class Outcome:
    """What a run was. ``ran_s`` until its users were stopped; ``planned_s`` None where nobody said."""

    requests: int
    failures: int
    p95_ms: float
    exceptions: int
    ran_s: float
    planned_s: float | None


def complaints(outcome: Outcome, ledger: Ledger, limits: Limits) -> list[str]:
    """Return what the run broke, a sentence each; none for a good run."""
    found = []
    if outcome.requests == 0:
        found.append("not one request was made: give the run more time")
    elif outcome.failures / outcome.requests > limits.failure_share:
        found.append(
            f"{outcome.failures} of {outcome.requests} requests failed or were answered wrongly, "
            f"allowed are {limits.failure_share:.2%}"
        )
    if outcome.exceptions:
        found.append(f"users stumbled over {outcome.exceptions} kinds of unexpected errors: see the exceptions above")
    if limits.p95_ms is not None and outcome.p95_ms > limits.p95_ms:
        found.append(f"95 % of the requests took up to {outcome.p95_ms:g} ms, allowed are {limits.p95_ms:g} ms")
    if limits.late_share is not None and ledger.late_share > limits.late_share:
        found.append(f"{ledger.late_frames} of {ledger.frames} frames were late, allowed are {limits.late_share:.2%}")
    return found + _signs_of_standstill(outcome, ledger)


def _signs_of_standstill(outcome: Outcome, ledger: Ledger) -> list[str]:
    found = []
    if ledger.in_flight_share < _LEAST_IN_FLIGHT_SHARE:
        found.append(
            f"throughput: users waited for an answer in {ledger.in_flight_share:.0%} of their time only, and for their "
            "turn in the rest: gevent does not cooperate, or this load generator has too little CPU for its users "
            "(try --processes)"
        )
    if outcome.planned_s is not None:
        allowed_s = outcome.planned_s * (1 + _OVERTIME_SHARE) + _OVERTIME_S
        if outcome.ran_s > allowed_s:
            found.append(
                f"run duration: {outcome.ran_s:.0f} s instead of {outcome.planned_s:g} s: gevent does not cooperate, "
                "or this load generator has too little CPU"
            )
    return found
