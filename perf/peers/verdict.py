"""From timings to ratios and to a yes or no: pure functions."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from peers.timed_loop import Timing

OURS_GRPC, OURS_HTTP = "facegraph, gRPC", "facegraph, HTTP"
IN_PROCESS, IN_PROCESS_OPENCV = "MediaPipe in-process", "MediaPipe in-process, OpenCV decodes"
FASTAPI, PYTRITON = "MediaPipe, FastAPI", "MediaPipe, PyTriton"
GRADIO, GRADIO_DIRECT, GRADIO_CLIENT = (
    "MediaPipe, Gradio",
    "MediaPipe, Gradio past its queue",
    "MediaPipe, gradio_client",
)


class Load(NamedTuple):
    """One way to ask one candidate: ``concurrency`` counts connections, or processes of one that serves itself."""

    candidate: str
    concurrency: int


Rounds = Mapping[Load, Sequence[Timing]]
"""What every round measured; all loads have equally many, in the same order."""


class Spread(NamedTuple):
    """A median over rounds, with the least and the greatest of them."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


class Bar(NamedTuple):
    """A promise and what was measured: ``ratio`` at least, or at most, ``limit``."""

    promise: str
    ratio: Spread
    limit: float
    at_least: bool

    @property
    def is_met(self) -> bool:
        """Whether the median keeps the promise."""
        return self.ratio.median >= self.limit if self.at_least else self.ratio.median <= self.limit


def spread(values: Sequence[float]) -> Spread:
    """Return the median of at least one value, with the ends."""
    return Spread(statistics.median(values), min(values), max(values))


def round_by_round(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Return ours divided by theirs, each within its round: what slowed the machine then slowed both."""
    return spread([mine / other for mine, other in zip(ours, theirs, strict=True)])


def photos_per_s(rounds: Rounds, load: Load) -> list[float]:
    """Return the throughput of each round."""
    return [timing.photos_per_s for timing in rounds[load]]


def latency_ms(timing: Timing) -> float:
    """Return the mean over the photos of each one's median: a median over all would be that of one size of photo."""
    return statistics.mean(statistics.median(of_photo) for of_photo in timing.latency_ms if of_photo)


def latencies_ms(rounds: Rounds, load: Load) -> list[float]:
    """Return the latency of each round."""
    return [latency_ms(timing) for timing in rounds[load]]


def best(rounds: Rounds, candidate: str) -> Load:
    """Return the candidate's load with the highest median throughput."""
    loads = [load for load in rounds if load.candidate == candidate]
    return max(loads, key=lambda load: statistics.median(photos_per_s(rounds, load)))


def alone(candidate: str) -> Load:
    """Return the load that asks for one photo at a time."""
    return Load(candidate, 1)


def judge(rounds: Rounds) -> list[Bar]:
    """Compare with what is promised. In-process, the faster of the two decoders counts."""
    in_process = (IN_PROCESS, IN_PROCESS_OPENCV)
    two = max((Load(name, 2) for name in in_process), key=lambda load: statistics.median(photos_per_s(rounds, load)))
    one = min((alone(name) for name in in_process), key=lambda load: statistics.median(latencies_ms(rounds, load)))
    ours = photos_per_s(rounds, best(rounds, OURS_GRPC))

    def throughput_over(load: Load) -> Spread:
        return round_by_round(ours, photos_per_s(rounds, load))

    latency = round_by_round(latencies_ms(rounds, alone(OURS_GRPC)), latencies_ms(rounds, one))
    return [
        Bar("throughput over gRPC / two in-process MediaPipe processes", throughput_over(two), 1.0, at_least=True),
        Bar("latency over gRPC, one at a time / in-process MediaPipe", latency, 1.3, at_least=False),
        Bar(
            "throughput over gRPC / MediaPipe behind FastAPI",
            throughput_over(best(rounds, FASTAPI)),
            2.0,
            at_least=True,
        ),
        Bar(
            "throughput over gRPC / MediaPipe behind Gradio", throughput_over(best(rounds, GRADIO)), 3.0, at_least=True
        ),
    ]
