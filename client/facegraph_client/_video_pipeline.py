"""A video file in, a video file out: every frame through a function, all else kept.

A thread decodes ahead, a pool of threads runs the function on several frames at a time, and the calling thread takes
the results in order and encodes them. Every queue is bounded, so memory does not grow with the length of the video.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from facegraph_client._errors import InputError, OutputError
from facegraph_client._files import _move, refuse_existing
from facegraph_client._provenance import append_xmp_box, marked_tags
from facegraph_client._pyav import pyav
from facegraph_client._read_ahead import ReadAhead
from facegraph_client._video_encoder import PRESETS, WORST_CRF, EncoderSettings, SegmentEncoder
from facegraph_client._video_errors import output_error
from facegraph_client._video_muxer import container_format, mux, streams_to_copy
from facegraph_client._video_reader import DecodedFrame, VideoReader, open_input
from facegraph_client._video_work_folder import State, WorkFolder

S = TypeVar("S", bound=State)

FrameTransform = Callable[[NDArray[np.uint8], S | None], tuple[NDArray[np.uint8], S | None]]
"""Takes a frame, UINT8 [H,W,3] RGB, upright and read-only, and the state of an earlier frame of the video (None before
there is one). Returns the new frame in the same shape, or the very array that it got where nothing changes, and its own
state: a tuple of arrays, or None. Several threads call it at a time."""

SEGMENT_FRAMES = 250
"""Frames between two points from which a killed run can go on, which are keyframes; x264 puts no more between two."""

_READ_AHEAD = 2
_JOB_VERSION = 1


@dataclass(frozen=True)
class VideoProgress:
    """How far the work is.

    Attributes:
        frames_done: of the whole video, those of an interrupted run included.
        frames_estimate: of the whole video, None where the file does not say.
        frames_per_s: of this run.
        remaining_s: at that speed, None where unknown.

    """

    frames_done: int
    frames_estimate: int | None
    frames_per_s: float
    remaining_s: float | None


@dataclass(frozen=True)
class VideoReport:
    """What became of a video.

    Attributes:
        target: the file that was written.
        frames: in it.
        resumed_frames: of them, taken over from an interrupted run.
        wall_s: what this run took.
        remarks: for the user: where the source is damaged, which streams could not be copied.

    """

    target: Path
    frames: int
    resumed_frames: int
    wall_s: float
    remarks: list[str] = field(default_factory=list)


def process_video(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    transform: FrameTransform[S],
    *,
    job: str = "",
    in_flight: int = 3,
    make_state: Callable[[Iterable[NDArray[np.generic]]], S] = tuple,  # type: ignore[assignment]
    overwrite: bool = False,
    resume: bool = False,
    preset: str = "veryfast",
    crf: int = 20,
    on_progress: Callable[[VideoProgress], None] | None = None,
) -> VideoReport:
    """Put every frame of a video through a function and write the result, marked as a composite (see ``_provenance``).

    Kept are: the number, times and durations of the frames; sound and subtitles, packet by packet; size, pixel aspect
    and colours (a pixel that the function leaves alone has, before encoding, its exact values); title, creation time
    and chapters. A rotated video is handed to the function, and stored, upright.

    Frame k gets the state of frame k - ``in_flight``, the newest that is sure to be there; frames 1 to ``in_flight``
    get that of frame 0, and frame 0 gets None. So the result does not depend on which thread is faster.

    Until all is done the target does not exist; what is finished lies in a folder beside it, see :func:`part_folder`.
    It is kept when the run is interrupted, by Ctrl-C or by an error, so that ``resume`` can go on with it.

    What can be decoded of a damaged file is kept; ``remarks`` say where it breaks.

    Args:
        source: a video file.
        target: to write; its suffix, .mp4, .mov or .mkv, says the container.
        transform: see :data:`FrameTransform`.
        job: what tells this transform from another one; ``resume`` refuses work that was begun with another ``job``.
        in_flight: how many frames the function works on at a time.
        make_state: makes a state of its arrays, for ``resume``; ``_make`` of a named tuple, for example.
        overwrite: replace the target, and discard what an interrupted run left.
        resume: go on with what an interrupted run left, if it left something.
        preset: x264's trade of time for size.
        crf: x264's quality, 0 (lossless) to 51.
        on_progress: called after every frame, in the calling thread.

    Raises:
        VideoError: the source cannot be read, or the target's container cannot take its sound.
        OutputError: the target exists, or it or the folder beside it cannot be written.
        InputError: an argument is out of range.
        SetupError: PyAV is not installed.
        Exception: what ``transform`` raises.

    """
    start = time.monotonic()
    source, target = Path(source), Path(target)
    _check_options(in_flight, preset, crf)
    _check_target(source, target, overwrite=overwrite)
    with VideoReader(source) as reader:
        with open_input(source) as container:
            remarks = [*reader.info.remarks, *streams_to_copy(container, target)[1]]
            tags = marked_tags(container.metadata)
        settings = EncoderSettings.of(reader.info, preset=preset, crf=crf)
        identity = {
            "version": _JOB_VERSION,
            "source": _identity(source),
            "transform": job,
            "in_flight": in_flight,
            "segment_frames": SEGMENT_FRAMES,
            "encoder": {name: str(value) for name, value in asdict(settings).items()},
            "libraries": str(pyav().library_versions),
        }
        with WorkFolder(target, identity, resume=resume, discard=overwrite) as work:
            resumed = len(work.pts())
            states = [None if arrays is None else make_state(arrays) for arrays in work.states()]
            progress = _Progress(resumed, reader.info.frames_estimate, on_progress)
            with ReadAhead(reader.frames(skip=resumed), _READ_AHEAD) as frames:
                _encode(frames, transform, reader, settings, work, states, in_flight, progress)
            temporary = work.path / target.name
            pts = work.pts()
            mux(
                temporary,
                target,
                source=source,
                settings=settings,
                start_pts=reader.info.start_pts,
                segments=work.segments(),
                pts=pts,
                # What a damaged file says of its end is about frames that are not there.
                end_pts=None if reader.damage else reader.info.end_pts,
                tags=tags,
            )
            _publish(temporary, target, overwrite=overwrite)
            work.delete()
        return VideoReport(target, len(pts), resumed, time.monotonic() - start, remarks + reader.damage)


def _encode(
    frames: Iterator[DecodedFrame],
    transform: FrameTransform[S],
    reader: VideoReader,
    settings: EncoderSettings,
    work: WorkFolder,
    states: Sequence[S | None],
    in_flight: int,
    progress: _Progress,
) -> None:
    done = progress.done
    last_states = deque(states, maxlen=in_flight)
    encoder: SegmentEncoder | None = None
    # closing: else an error here would leave the threads to the garbage collector.
    with closing(transformed(frames, transform, in_flight, first=done, states=states)) as results:
        for result in results:
            frame = result.frame
            encoder = encoder or SegmentEncoder(settings)
            stored = reader.converter.with_changes(frame.stored, frame.image_rgb, result.image_rgb)
            encoder.add(stored, frame.pts, frame.duration)
            last_states.append(result.state)
            done += 1
            if done % SEGMENT_FRAMES == 0:
                work.save(encoder.finish(), last_states)
                encoder = None
            progress.advance()
    if encoder is not None:
        work.save(encoder.finish(), last_states)


@dataclass(frozen=True)
class Transformed(Generic[S]):
    """A frame, what the function made of it (UINT8 [H,W,3]), and its state."""

    frame: DecodedFrame
    image_rgb: NDArray[np.uint8]
    state: S | None


def transformed(
    frames: Iterator[DecodedFrame],
    transform: FrameTransform[S],
    in_flight: int,
    *,
    first: int = 0,
    states: Sequence[S | None] = (),
) -> Generator[Transformed[S], None, None]:
    """Run a function on several frames at a time and yield the results in the order of the frames.

    Args:
        frames: at most ``in_flight`` of them are held, and one that is yielded.
        transform: see :data:`FrameTransform`.
        in_flight: how many frames to work on at a time.
        first: the number of the first frame in its video.
        states: of the ``in_flight`` frames before it, or of all frames where there are fewer.

    """
    known = dict(enumerate(states, first - len(states)))
    window: deque[tuple[DecodedFrame, Future[tuple[NDArray[np.uint8], S | None]]]] = deque()
    pool = ThreadPoolExecutor(in_flight, thread_name_prefix="facegraph-transform")
    try:
        for number, frame in enumerate(frames, first):
            finished = None
            if len(window) == in_flight:
                finished = _finished(window)
                known[number - in_flight] = finished.state
            before = max(number - in_flight, 0)
            if number == 0:
                state = None
            elif before in known:
                state = known[before]
            else:  # frame 0 is still in the window
                state = window[0][1].result()[1]
            known.pop(before - 1, None)
            window.append((frame, pool.submit(transform, frame.image_rgb, state)))
            if finished is not None:
                yield finished
            # A frame that was yielded is not held while the next one is waited for.
            del finished, frame
        while window:
            yield _finished(window)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _finished(window: deque[tuple[DecodedFrame, Future[tuple[NDArray[np.uint8], S | None]]]]) -> Transformed[S]:
    image_rgb, state = window[0][1].result()
    frame, _ = window.popleft()
    expected = frame.image_rgb
    if image_rgb.shape != expected.shape or image_rgb.dtype != expected.dtype:
        raise InputError(
            f"the transform returned {image_rgb.dtype.name.upper()} {list(image_rgb.shape)} for a frame UINT8"
            f" {list(expected.shape)}: return the frame in its own size"
        )
    return Transformed(frame, image_rgb, state)


class _Progress:
    def __init__(
        self, done: int, frames_estimate: int | None, listener: Callable[[VideoProgress], None] | None
    ) -> None:
        self.done = done
        self._resumed = done
        self._estimate = frames_estimate
        self._listener = listener
        self._start: float | None = None

    def advance(self) -> None:
        self.done += 1
        now = time.monotonic()
        if self._start is None:  # the first frame waits for what is only done once
            self._start = now
        if self._listener is None:
            return
        elapsed_s = now - self._start
        per_s = (self.done - self._resumed - 1) / elapsed_s if elapsed_s > 0 else 0.0
        left = None if self._estimate is None else max(self._estimate - self.done, 0)
        remaining_s = left / per_s if left is not None and per_s > 0 else None
        self._listener(VideoProgress(self.done, self._estimate, per_s, remaining_s))


def _check_options(in_flight: int, preset: str, crf: int) -> None:
    if in_flight < 1:
        raise InputError(f"in_flight is {in_flight}: let at least one frame be worked on at a time")
    if preset not in PRESETS:
        raise InputError(f"there is no x264 preset {preset!r}; choose one of {', '.join(PRESETS)}")
    if not 0 <= crf <= WORST_CRF:
        raise InputError(f"crf is {crf}: choose 0 (lossless) to {WORST_CRF} (worst); 18 to 24 is usual")


def _check_target(source: Path, target: Path, *, overwrite: bool) -> None:
    container_format(target)
    if target.exists() and source.exists() and target.samefile(source):
        raise OutputError(f"{target} is the video itself: choose another name for the result")
    refuse_existing([target], overwrite=overwrite)
    if not target.parent.is_dir():
        raise OutputError(f"cannot write {target}: the folder {target.parent} does not exist; create it first")


def _publish(temporary: Path, target: Path, *, overwrite: bool) -> None:
    try:
        if container_format(target) != "matroska":
            append_xmp_box(temporary)
        _move(temporary, target, overwrite=overwrite)
    except OSError as error:
        raise output_error(target, error) from error


def _identity(path: Path) -> dict[str, int]:
    status = path.stat()
    return {"bytes": status.st_size, "changed_ns": status.st_mtime_ns}
