"""A load in steps that finds the knee: used beside locustfile.py, see there.

Users grow from 1 until more of them bring no more answers. The table goes to the log and, with --csv PREFIX, to
PREFIX_knee.csv.
"""

from __future__ import annotations

import csv
import logging
from pathlib import Path
from typing import Any

import locust
from locust.env import Environment
from locust_load.knee import Counts, Step, is_past_knee, knee, step_between

_USERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_SETTLE_S = 1.0
_SPAWN_RATE = 100.0

_steps: list[Step] = []
_log = logging.getLogger("facegraph")


class Steps(locust.LoadTestShape):
    """So many seconds for each number of users; the first one of them does not count."""

    abstract = False

    def __init__(self) -> None:
        super().__init__()
        self._begin_s, self._counted_from_s = 0.0, 0.0
        self._before: Counts | None = None

    def tick(self) -> tuple[int, float] | None:
        """Say how many users there should be; None at the end. Locust asks about once a second."""
        now_s = self.get_run_time()
        if self._before is None:
            if now_s - self._begin_s >= _SETTLE_S:
                self._before, self._counted_from_s = self._counts(), now_s
        elif now_s - self._begin_s >= _SETTLE_S + self._options().step_s:
            seconds = now_s - self._counted_from_s
            _steps.append(step_between(_USERS[len(_steps)], seconds, self._before, self._counts()))
            self._before, self._begin_s = None, now_s
            if is_past_knee(_steps) or len(_steps) == len(_USERS):
                return None
        return _USERS[len(_steps)], _SPAWN_RATE

    def reset_time(self) -> None:
        """Begin again, as Locust asks when a test starts."""
        super().reset_time()
        self._begin_s, self._before = 0.0, None
        _steps.clear()

    def _counts(self) -> Counts:
        total = self._runner().stats.total
        return Counts(total.num_requests, total.num_failures, dict(total.response_times))

    def _options(self) -> Any:
        return self._runner().environment.parsed_options

    def _runner(self) -> Any:
        return self.runner


@locust.events.init_command_line_parser.add_listener
def _add_options(parser: Any) -> None:
    group = parser.add_argument_group("facegraph, steps")
    group.add_argument("--step-s", type=float, default=10.0, help="seconds that count in each step (10)")


@locust.events.quitting.add_listener
def _print_knee(environment: Environment, **_: Any) -> None:
    options = environment.parsed_options
    if not _steps or options is None:
        return
    for step in _steps:
        _log.info(
            "%3d users: %6.1f answers/s, p50 %g ms, p95 %g ms, failures %d",
            step.users,
            step.answers_per_s,
            step.p50_ms,
            step.p95_ms,
            step.failures,
        )
    at = knee(_steps)
    _log.info("knee: %d users, %.1f answers/s, p95 %g ms", at.users, at.answers_per_s, at.p95_ms)
    if not is_past_knee(_steps):
        _log.info("the most users still brought more: the knee may be farther up")
    if options.csv_prefix:
        with Path(f"{options.csv_prefix}_knee.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(Step._fields)
            writer.writerows(_steps)
