"""Time several ways to do one thing against each other, and count what each asks of the GPU."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

_WARM_UP_CALLS = 3
_LEAST_CALLS = 2

# Host calls of CUDA's runtime and driver, as torch's profiler names them.
_LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaLaunchCooperativeKernel")
_GRAPH_LAUNCHES = ("cudaGraphLaunch", "cuGraphLaunch")
_COPIES = ("cudaMemcpy", "cuMemcpy")
_FILLS = ("cudaMemset", "cuMemset")


class Timing(NamedTuple):
    """How long one call took.

    Attributes:
        median_ms: median of all calls.
        p99_ms: 99th percentile of all calls.
        spread: the slowest round's median over the fastest one's, minus 1: a difference below it is noise.
        calls_per_s: calls by the time that they took.
        calls: how many.

    """

    median_ms: float
    p99_ms: float
    spread: float
    calls_per_s: float
    calls: int


def alternate(
    ways: Mapping[str, Callable[[], object]],
    slice_s: float,
    *,
    rounds: int,
    concurrency: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Time several ways by turns, so that a clock that changes or a busy neighbour hits all of them alike.

    Every second round goes through them backwards. A call must have finished its work on the GPU when it returns.

    Args:
        ways: what to call, by name.
        slice_s: how long each is called in each round.
        rounds: how often.
        concurrency: how many threads call at once.
        clock: returns seconds.

    """
    for call in ways.values():
        for _ in range(_WARM_UP_CALLS):
            call()
    times_s: dict[str, list[list[float]]] = {name: [] for name in ways}
    took_s = dict.fromkeys(ways, 0.0)
    for i in range(rounds):
        for name in list(ways)[:: 1 if i % 2 == 0 else -1]:
            start = clock()
            times_s[name].append(_call_for(ways[name], slice_s, concurrency, clock))
            took_s[name] += clock() - start
    return {name: _summarise(times_s[name], took_s[name]) for name in ways}


def _call_for(call: Callable[[], object], slice_s: float, concurrency: int, clock: Callable[[], float]) -> list[float]:
    """Call again and again until the time is over; return the seconds of each call."""
    times_s: list[float] = []
    lock = threading.Lock()
    end = clock() + slice_s

    def work(_: int = 0) -> None:
        own: list[float] = []
        while len(own) < _LEAST_CALLS or clock() < end:
            start = clock()
            call()
            own.append(clock() - start)
        with lock:
            times_s.extend(own)

    if concurrency == 1:
        work()
    else:
        with ThreadPoolExecutor(concurrency) as pool:
            list(pool.map(work, range(concurrency)))
    return times_s


def _summarise(rounds_s: list[list[float]], took_s: float) -> Timing:
    medians = [float(np.median(times)) for times in rounds_s]
    all_s = np.concatenate([np.asarray(times, np.float64) for times in rounds_s])
    return Timing(
        median_ms=float(np.median(all_s)) * 1000,
        p99_ms=float(np.quantile(all_s, 0.99)) * 1000,
        spread=max(medians) / min(medians) - 1,
        calls_per_s=len(all_s) / took_s,
        calls=len(all_s),
    )


class HostCalls(NamedTuple):
    """What the host asked of the GPU, per call of the function that was watched."""

    kernel_launches: float
    graph_launches: float
    copies: float
    fills: float


def count_host_calls(events: Mapping[str, int], calls: int) -> HostCalls:
    """Sort the profiler's events.

    Args:
        events: how often each name was seen.
        calls: how many calls of the function they belong to.

    """

    def count(prefixes: tuple[str, ...]) -> float:
        return sum(number for name, number in events.items() if name.startswith(prefixes)) / calls

    return HostCalls(count(_LAUNCHES), count(_GRAPH_LAUNCHES), count(_COPIES), count(_FILLS))


def watch_host_calls(call: Callable[[], object], *, calls: int = 3) -> HostCalls:
    """Count launches and copies of a function with torch's profiler; all 0 on a CPU."""
    import torch  # noqa: PLC0415  (this module's arithmetic needs no torch)

    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities):  # the profiler's own start-up makes calls
        call()
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(calls):
            call()
    averages: Any = profiler.key_averages()
    return count_host_calls({event.key: event.count for event in averages}, calls)
