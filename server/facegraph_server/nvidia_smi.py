"""What ``nvidia-smi`` says about the first GPU, and a thread that asks it again and again."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from types import TracebackType
from typing import NamedTuple

_READING = ("memory.used", "temperature.gpu", "utilization.gpu", "power.draw")
_IDENTITY = ("name", "driver_version", "memory.total", "power.limit", "clocks.max.sm")
_TIMEOUT_S = 10.0


class GpuReading(NamedTuple):
    """One sample; what the GPU does not report is None."""

    memory_mib: float | None
    temperature_c: float | None
    utilisation_percent: float | None
    power_w: float | None


class GpuIdentity(NamedTuple):
    """What results depend on: the GPU, its driver and its limits as found."""

    name: str
    driver: str
    memory_mib: float | None
    power_limit_w: float | None
    max_clock_mhz: float | None


def read_gpu() -> GpuReading | None:
    """Return a sample of the first visible GPU, or None where there is no ``nvidia-smi`` or no GPU."""
    row = _query(_READING)
    return None if row is None else GpuReading(*(_number(cell) for cell in row))


def identify_gpu() -> GpuIdentity | None:
    """Return what the first visible GPU is, or None where there is no ``nvidia-smi`` or no GPU."""
    row = _query(_IDENTITY)
    if row is None:
        return None
    name, driver, *numbers = row
    return GpuIdentity(name, driver, *(_number(cell) for cell in numbers))


class GpuSampler:
    """Sample the GPU in a thread for as long as the ``with`` block lasts; where there is no GPU, do nothing.

    Args:
        interval_s: from one sample to the next.

    """

    def __init__(self, interval_s: float = 0.2) -> None:
        self.readings: list[GpuReading] = []
        self._interval_s = interval_s
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> GpuSampler:
        """Start."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop."""
        self._end.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._end.is_set():
            reading = read_gpu()
            if reading is None:
                return
            self.readings.append(reading)
            self._end.wait(self._interval_s)


def parse_row(text: str) -> list[str] | None:
    """Return the cells of the first line of ``--format=csv,noheader,nounits``, or None where it has none."""
    lines = [line for line in text.splitlines() if line.strip()]
    return [cell.strip() for cell in lines[0].split(",")] if lines else None


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:  # [N/A], [Not Supported]
        return None


def _query(fields: tuple[str, ...]) -> list[str] | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    device = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"
    command = [program, f"--id={device}", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    row = parse_row(done.stdout)
    return row if row is not None and len(row) == len(fields) else None
