"""Ask for the same photos over and over for some seconds, in several threads; check the answers after the clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ask = Callable[[bytes], NDArray[np.float32]]
"""Take a photo's bytes, return landmarks FP32 [F,468,3] in its pixels."""


class Timing(NamedTuple):
    """What one run measured.

    Attributes:
        photos_per_s: all threads together.
        latency_ms: each call's time, in lists by photo.
        wrong: how many answers were not near the reference.

    """

    photos_per_s: float
    latency_ms: list[list[float]]
    wrong: int


def timed_loop(
    asks: Sequence[Ask],
    photos: Sequence[bytes],
    references_px: Sequence[NDArray[np.float32]],
    *,
    seconds: float,
    tolerance: float,
) -> Timing:
    """Run one thread for each of ``asks``.

    Args:
        asks: what each thread calls, again and again.
        photos: what they ask for in turn; the threads begin at different ones.
        references_px: for each photo the landmarks FP32 [1,468,3] that an answer has to be near.
        seconds: how long to begin new calls.
        tolerance: the mean distance from the reference, in widths of the face, from which an answer is wrong.

    Raises:
        Exception: whatever a call raised, in the thread that raised it first.

    """
    calls: list[list[tuple[int, float, NDArray[np.float32]]]] = [[] for _ in asks]
    rates: list[float] = []
    failed: list[Exception] = []
    start_together = threading.Barrier(len(asks))

    def work(number: int) -> None:
        ask, mine = asks[number], calls[number]
        try:
            start_together.wait()
            begin = end = time.perf_counter()
            i = number
            while end - begin < seconds and not failed:
                photo = i % len(photos)
                start = time.perf_counter()
                answer = ask(photos[photo])
                end = time.perf_counter()
                mine.append((photo, (end - start) * 1000, answer))
                i += 1
            rates.append(len(mine) / (end - begin))
        except Exception as error:  # raised again in the caller's thread
            failed.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(asks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]

    latency_ms: list[list[float]] = [[] for _ in photos]
    wrong = 0
    for photo, milliseconds, answer in (call for mine in calls for call in mine):
        latency_ms[photo].append(milliseconds)
        wrong += not is_near(answer, references_px[photo], tolerance)
    return Timing(sum(rates), latency_ms, wrong)


def is_near(landmarks_px: NDArray[np.float32], reference_px: NDArray[np.float32], tolerance: float) -> bool:
    """Say whether landmarks FP32 [F,468,3] are those of the reference [F,468,3], x and y within a part of its width."""
    if landmarks_px.shape != reference_px.shape:
        return False
    distance_px = np.linalg.norm(landmarks_px[..., :2] - reference_px[..., :2], axis=-1).mean(axis=1)
    return bool((distance_px <= tolerance * np.ptp(reference_px[..., 0], axis=1)).all())
