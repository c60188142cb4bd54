"""When a live camera's frames are due, and which of them a client that is behind never sends."""

from __future__ import annotations

import math
from typing import NamedTuple

FRAME_RATE_HZ = 30.0


class DueFrame(NamedTuple):
    """A frame to send.

    Attributes:
        number: 0 for the camera's first.
        due_s: when the camera delivers it.
        skipped: how many frames before it were replaced by newer ones while the client was waiting for an answer.

    """

    number: int
    due_s: float
    skipped: int


class FrameClock:
    """A camera that started at ``start_s`` and keeps one frame: the newest.

    Args:
        start_s: any clock's reading; the other times are of the same clock.
        rate_hz: frames a second.

    """

    def __init__(self, start_s: float, rate_hz: float = FRAME_RATE_HZ) -> None:
        self._start_s, self._rate_hz = start_s, rate_hz
        self._last = -1

    def next_frame(self, now_s: float) -> DueFrame:
        """Return the newest frame that was not returned before, or the coming one, for which the caller then waits."""
        newest = math.floor((now_s - self._start_s) * self._rate_hz)
        number = max(newest, self._last + 1)
        skipped = number - self._last - 1
        self._last = number
        return DueFrame(number, self._start_s + number / self._rate_hz, skipped)

    def is_late(self, frame: DueFrame, answered_s: float) -> bool:
        """Say whether the next frame was there before this one's answer: the picture on the screen would stutter."""
        return answered_s > frame.due_s + 1 / self._rate_hz
