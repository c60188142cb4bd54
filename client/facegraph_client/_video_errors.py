"""How the video functions tell what went wrong, and where in the video."""

from __future__ import annotations

from pathlib import Path

from facegraph_client._errors import OutputError


def output_error(path: Path, error: Exception) -> OutputError:
    """Return the error to raise where ``path`` could not be written, for an ``OSError`` or one of FFmpeg's."""
    if isinstance(error, FileNotFoundError) and not path.parent.exists():
        return OutputError(f"cannot write {path}: the folder {path.parent} does not exist; create it first")
    reason = getattr(error, "strerror", None) or str(error)
    return OutputError(f"cannot write {path}: {reason}; free some space or choose a place that can be written to")


def clock(time_s: float) -> str:
    """Return a position in a video as people read it: ``1:02:03.5``, ``2:03.5``."""
    minutes, seconds = divmod(round(max(time_s, 0.0), 1), 60)
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours}:{minutes:02d}:{seconds:04.1f}" if hours else f"{minutes}:{seconds:04.1f}"
