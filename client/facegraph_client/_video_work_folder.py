"""The work folder of an unfinished video: encoded segments on disk, so that a run that was killed can go on.

Beside ``out.mp4`` lies ``out.mp4.facegraph-part`` while it is made::

    job.json      what is being done; a run with other settings must not go on with it
    00000.npz     a segment: its packets, their times, and the states that the next frames start from
    00001.npz
    out.mp4       the result while it is put together

A segment appears under its name only when it is complete, and every segment is encoded by an encoder of its own. So
what is on disk is always a beginning of what an uninterrupted run writes, and the rest is the same whether it follows
at once or after a crash. The folder goes away once the result has moved to its name, which is the last step.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import IO, TypeVar
from zipfile import BadZipFile

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from facegraph_client._errors import FaceGraphError, OutputError
from facegraph_client._files import write_files
from facegraph_client._video_encoder import Segment
from facegraph_client._video_errors import output_error

try:
    import fcntl
except ImportError:  # Windows: two runs for one target are not told apart there
    fcntl = None  # type: ignore[assignment]

T = TypeVar("T")
State = tuple[NDArray[np.generic], ...]
"""What a frame hands on, as arrays."""

_SUFFIX = ".facegraph-part"
_JOB = "job.json"
_LOCK = "lock"


def part_folder(target: Path) -> Path:
    """Return where an unfinished run for this target keeps what is done; it exists only if there is such a run."""
    return target.with_name(target.name + _SUFFIX)


class WorkFolder:
    """The segments that are done, of one target. Close it, or use it in a ``with`` block, to let another run have it.

    Args:
        target: the file to make.
        job: what identifies the work, JSON values; only a run with an equal one goes on.
        resume: go on with what is there.
        discard: without ``resume``, delete what an earlier run left instead of refusing.

    Raises:
        OutputError: another run is at work on this target; an earlier run left something and neither ``resume`` nor
            ``discard`` is given; what it left belongs to another job; the folder cannot be written.

    """

    def __init__(self, target: Path, job: Mapping[str, object], *, resume: bool, discard: bool) -> None:
        self.path = part_folder(target)
        self._lock: IO[bytes] | None = None
        job = json.loads(json.dumps(job))
        try:
            self.path.mkdir(exist_ok=True)
            self._take_lock()
            self._check_what_is_left(target, job, resume=resume, discard=discard)
            if not self.count:
                (self.path / _JOB).write_text(json.dumps(job, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            self.close()
            raise output_error(target, error) from error
        except FaceGraphError:
            self.close()
            raise

    def __enter__(self) -> WorkFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the folder; delete it where it holds no segment. It can be called again."""
        if self._lock is not None:
            if not self._segments():
                self.delete()
            self._lock.close()
            self._lock = None

    def delete(self) -> None:
        """Delete the folder and all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)

    @property
    def count(self) -> int:
        """How many segments are done."""
        return len(self._segments())

    def pts(self) -> NDArray[np.int64]:
        """Return the times of display of all packets that are done, INT64 [n], in decoding order."""
        times = [self._load(path, _pts) for path in self._segments()]
        return np.concatenate(times) if times else np.empty(0, np.int64)

    def states(self) -> list[State | None]:
        """Return the states that were saved with the last segment."""
        return self._load(self._segments()[-1], _states) if self.count else []

    def segments(self) -> Iterator[Segment]:
        """Yield the segments in order; one is in memory at a time."""
        for path in self._segments():
            yield self._load(path, _segment)

    def save(self, segment: Segment, states: Sequence[State | None]) -> None:
        """Add a segment.

        Args:
            segment: the next one.
            states: those of its last frames, which the frames after it start from.

        Raises:
            OutputError: it cannot be written, for example because the disk is full.

        """
        arrays: dict[str, NDArray[np.generic]] = {field.name: getattr(segment, field.name) for field in fields(Segment)}
        arrays["state_lengths"] = np.array([-1 if state is None else len(state) for state in states], np.int64)
        for i, state in enumerate(states):
            arrays |= {f"state_{i}_{j}": np.asarray(array) for j, array in enumerate(state or ())}
        content = BytesIO()
        np.savez(content, **arrays)
        write_files({self.path / f"{self.count:05d}.npz": content.getvalue()}, overwrite=True)

    def _load(self, path: Path, read: Callable[[NpzFile], T]) -> T:
        try:
            # Opened here, for NumPy leaves a file open that it finds damaged.
            with path.open("rb") as content, np.load(content, allow_pickle=False) as file:
                return read(file)
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise OutputError(f"{path} is damaged ({error}): delete the folder {self.path} and start again") from error

    def _segments(self) -> list[Path]:
        return sorted(self.path.glob("?????.npz"))

    def _take_lock(self) -> None:
        self._lock = (self.path / _LOCK).open("wb")
        if fcntl is not None:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                self._lock.close()
                self._lock = None
                raise OutputError(
                    f"another run is at work in {self.path}: wait for its end, or choose another target"
                ) from error

    def _check_what_is_left(self, target: Path, job: Mapping[str, object], *, resume: bool, discard: bool) -> None:
        if self.count and not resume and not discard:
            raise OutputError(
                f"an earlier run left {self.path} with a part of {target.name}: go on with it (on the command line:"
                " --resume), start again (--overwrite), or delete that folder"
            )
        before: object = None
        with suppress(OSError, ValueError):
            before = json.loads((self.path / _JOB).read_text(encoding="utf-8"))
        if self.count and resume and before != job:
            differences = _differences(before, job)
            raise OutputError(
                f"{self.path} is from another job, its {differences} differ: repeat the call that was interrupted, or"
                " delete that folder"
            )
        keep = {self.path / _LOCK, *([self.path / _JOB, *self._segments()] if resume else [])}
        for path in self.path.iterdir():
            if path not in keep:
                path.unlink()


def _pts(file: NpzFile) -> NDArray[np.int64]:
    pts: NDArray[np.int64] = file["pts"]
    return pts


def _segment(file: NpzFile) -> Segment:
    return Segment(**{field.name: file[field.name] for field in fields(Segment)})


def _states(file: NpzFile) -> list[State | None]:
    lengths = file["state_lengths"].tolist()
    return [
        None if length < 0 else tuple(file[f"state_{i}_{j}"] for j in range(length)) for i, length in enumerate(lengths)
    ]


def _differences(before: object, job: Mapping[str, object]) -> str:
    if not isinstance(before, dict):
        return "settings"
    return ", ".join(sorted(name for name in {*before, *job} if before.get(name) != job.get(name)))
