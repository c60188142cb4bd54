"""Live video: always the newest frame, and the ones that came meanwhile are dropped."""

from __future__ import annotations

import os
import re
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from facegraph_client._errors import InputError, VideoError
from facegraph_client._files import _move, refuse_existing
from facegraph_client._provenance import append_xmp_box, marked_tags
from facegraph_client._pyav import pyav
from facegraph_client._video_encoder import CODEC, EncoderSettings
from facegraph_client._video_errors import output_error
from facegraph_client._video_muxer import container_format
from facegraph_client._video_pipeline import FrameTransform
from facegraph_client._video_pixels import PixelConverter
from facegraph_client._video_reader import VideoInfo, main_video_stream, video_info
from facegraph_client._video_work_folder import State

S = TypeVar("S", bound=State)
T = TypeVar("T")

STDIN = "-"
_SCHEMES = re.compile(r"(rtsp|rtsps|rtmp|srt|udp|tcp)://")
_LOW_LATENCY = {"fflags": "nobuffer", "flags": "low_delay"}
_CAMERA_MODE = {"input_format": "mjpeg", "video_size": "1280x720", "framerate": "30"}
"""Most cameras give 30 frames/s of this size, and as MJPEG only. One that does not know it gives what it likes."""
_CLOCK = Fraction(1, 90_000)
_CLOSE_TIMEOUT_S = 1.0


def is_live(source: str) -> bool:
    """Return whether a source is live: a stream's address, a camera's number, or ``-`` for the standard input."""
    return source == STDIN or source.isdecimal() or bool(_SCHEMES.match(source))


@dataclass(frozen=True)
class LiveFrame:
    """One frame of a live source.

    Attributes:
        image_rgb: UINT8 [H,W,3], upright, read-only.
        number: of the frame in the source, from 0; the numbers between two that were taken were dropped.
        arrival_s: when it was decoded, :func:`time.monotonic`.

    """

    image_rgb: NDArray[np.uint8]
    number: int
    arrival_s: float


class LiveReader:
    """Decodes a live source in a thread and keeps only the newest frame. Iterate over it; it ends with the source.

    Args:
        source: ``rtsp://…`` or another stream's address, a camera's number, or ``-`` for the standard input (MPEG-TS,
            Matroska or another container that can be read without going back).
        timeout_s: how long to wait for the first frame, and for the next one.

    Raises:
        VideoError: the source cannot be opened, sends no video within the timeout, or is HDR.
        SetupError: PyAV is not installed.

    """

    info: VideoInfo
    received: int
    """How many frames were decoded so far."""
    taken: int
    """How many of them were handed out."""

    def __init__(self, source: str, *, timeout_s: float = 10.0) -> None:
        self._source = source
        self._name = "the standard input" if source == STDIN else source
        self._timeout_s = timeout_s
        self.received = self.taken = 0
        self._changed = threading.Condition()
        self._newest: tuple[Any, int, float] | None = None
        self._info: VideoInfo | None = None
        self._end: BaseException | None = None
        self._ended = self._stop = False
        pyav()  # so that it is here that a missing package is told
        self._thread = threading.Thread(target=self._run, name="facegraph-live", daemon=True)
        self._thread.start()
        try:
            self.info = self._wait(lambda: self._info)
        except BaseException:
            self.close()
            raise
        info = self.info
        self._converter = PixelConverter(
            info.colours, info.pixel_format, info.width_px, info.height_px, info.orientation
        )

    def __enter__(self) -> LiveReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[LiveFrame]:
        """Yield the newest frame that was not yielded yet, as soon as there is one.

        Raises:
            VideoError: the source broke off, or sent nothing within the timeout.

        """
        while True:
            try:
                frame, number, arrival_s = self._wait(lambda: self._newest, take=True)
            except _EndOfSourceError:
                return
            yield LiveFrame(self._converter.rgb(self._converter.upright(frame)), number, arrival_s)

    @property
    def dropped(self) -> int:
        """How many frames came and were replaced by a newer one before they were taken."""
        return self.received - self.taken - (self._newest is not None)

    def close(self) -> None:
        """Stop reading. A read that blocks, as of a terminal, is left to the end of the program."""
        self._stop = True
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _wait(self, ready: Callable[[], T | None], *, take: bool = False) -> T:
        with self._changed:
            self._changed.wait_for(lambda: ready() is not None or self._ended, self._timeout_s)
            value = ready()
            if value is not None:
                if take:
                    self._newest = None
                    self.taken += 1
                return value
        if self._end is not None:
            raise self._end
        if self._ended:
            raise _EndOfSourceError(f"{self._name} ended before its first frame")
        raise VideoError(
            f"{self._name} sent no frame for {self._timeout_s:g} s: is it running, and reachable from here?"
        )

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            with _open_live(self._source, self._name, self._timeout_s) as container:
                stream = main_video_stream(container, self._name)
                stream.thread_type = "SLICE"  # frame threads hold frames back
                for frame in _decoded(container, stream):
                    self._offer(container, stream, frame)
                    if self._stop:
                        return
        except BaseException as raised:
            error = raised
            if isinstance(raised, pyav().error.FFmpegError):
                error = VideoError(f"{self._name} broke off: {raised.strerror}")
        finally:
            with self._changed:
                self._end, self._ended = error, True
                self._changed.notify_all()

    def _offer(self, container: Any, stream: Any, frame: Any) -> None:
        with self._changed:
            if self._info is None:
                self._info = video_info(container, stream, frame, self._name)
            self._newest = (frame, self.received, time.monotonic())
            self.received += 1
            self._changed.notify_all()


class _EndOfSourceError(VideoError):
    """The source has no more frames."""


@dataclass(frozen=True)
class LiveResult:
    """A frame that was worked on.

    Attributes:
        image_rgb: UINT8 [H,W,3].
        number: of the frame in the source, from 0.
        dropped: how many frames were dropped so far.
        latency_ms: from its arrival to this result.

    """

    image_rgb: NDArray[np.uint8]
    number: int
    dropped: int
    latency_ms: float


@dataclass(frozen=True)
class LiveReport:
    """What became of a live source: frames that were worked on, those that were dropped, and the time it took."""

    frames: int
    dropped: int
    wall_s: float
    median_latency_ms: float


def process_live(
    source: str,
    transform: FrameTransform[S],
    *,
    target: str | os.PathLike[str] | None = None,
    on_result: Callable[[LiveResult], None] | None = None,
    stop: threading.Event | None = None,
    timeout_s: float = 10.0,
    overwrite: bool = False,
    preset: str = "superfast",
    crf: int = 23,
) -> LiveReport:
    """Put the newest frame of a live source through a function, again and again, until the source ends or Ctrl-C.

    One frame is worked on at a time, so that none is older than it need be. Each gets the state of the one before.

    Args:
        source: see :class:`LiveReader`.
        transform: as for :func:`process_video`.
        target: record the results in this file, without sound; .mp4, .mov or .mkv. It appears when the run ends, by
            Ctrl-C too, and is marked as a composite.
        on_result: called with every result, in the calling thread.
        stop: ends the run when it is set.
        timeout_s: see :class:`LiveReader`.
        overwrite: replace the target.
        preset: x264's trade of time for size.
        crf: x264's quality, 0 (lossless) to 51.

    Raises:
        VideoError: the source cannot be opened or breaks off; what was recorded until then is kept.
        OutputError: the target exists or cannot be written.
        InputError: there is neither ``target`` nor ``on_result``.
        Exception: what ``transform`` raises.

    """
    if target is None and on_result is None:
        raise InputError("the results would be lost: give a target to record to, or on_result")
    if target is not None:  # before a camera is switched on
        target = Path(target)
        container_format(target)
        refuse_existing([target], overwrite=overwrite)
    start = time.monotonic()
    latencies_ms: list[float] = []
    with LiveReader(source, timeout_s=timeout_s) as reader:
        recorder = None if target is None else _Recorder(target, reader.info, preset, crf, overwrite=overwrite)
        try:
            state: S | None = None
            for frame in reader:
                image_rgb, state = transform(frame.image_rgb, state)
                latencies_ms.append((time.monotonic() - frame.arrival_s) * 1e3)
                if recorder is not None:
                    recorder.add(image_rgb, frame.arrival_s)
                if on_result is not None:
                    on_result(LiveResult(image_rgb, frame.number, reader.dropped, latencies_ms[-1]))
                if stop is not None and stop.is_set():
                    break
        except KeyboardInterrupt:  # it is how a live run ends
            pass
        finally:
            if recorder is not None:
                recorder.finish()
        return LiveReport(
            frames=len(latencies_ms),
            dropped=reader.dropped,
            wall_s=time.monotonic() - start,
            median_latency_ms=float(np.median(latencies_ms)) if latencies_ms else 0.0,
        )


class _Recorder:
    """Writes frames with the times at which they came, in fragments, so that a file that was cut off plays too."""

    def __init__(self, target: Path, info: VideoInfo, preset: str, crf: int, *, overwrite: bool) -> None:
        container = container_format(target)
        self._target, self._overwrite = target, overwrite
        self._temporary = target.with_name(f".facegraph-{secrets.token_hex(8)}{target.suffix}")
        self._converter = PixelConverter(
            info.colours, info.pixel_format, info.width_px, info.height_px, info.orientation
        )
        settings = replace(EncoderSettings.of(info, preset=preset, crf=crf), time_base=_CLOCK)
        options = {} if container == "matroska" else {"movflags": "+frag_keyframe+empty_moov"}
        self._av = pyav()
        try:
            self._container = self._av.open(f"file:{self._temporary}", "w", format=container, container_options=options)
            self._stream = self._container.add_stream(CODEC, rate=info.frame_rate)
            settings.apply(self._stream.codec_context)
            self._stream.codec_context.options |= {"tune": "zerolatency"}
            self._stream.time_base = _CLOCK
            self._container.metadata.update(marked_tags({}))
            self._container.start_encoding()
        except (self._av.error.FFmpegError, OSError) as error:
            raise output_error(target, error) from error
        self._start_s: float | None = None
        self._last_pts = -1

    def add(self, image_rgb: NDArray[np.uint8], time_s: float) -> None:
        if self._start_s is None:
            self._start_s = time_s
        frame = self._converter.encodable(image_rgb)
        self._last_pts = frame.pts = max(self._last_pts + 1, round((time_s - self._start_s) / _CLOCK))
        frame.time_base = _CLOCK
        self._mux(self._stream.encode(frame))

    def finish(self) -> None:
        try:
            if self._start_s is None:
                self._container.close()
                return
            self._mux(self._stream.encode(None))
            self._container.close()
            if container_format(self._target) != "matroska":
                append_xmp_box(self._temporary)
            _move(self._temporary, self._target, overwrite=self._overwrite)
        except (self._av.error.FFmpegError, OSError) as error:
            raise output_error(self._target, error) from error
        finally:
            self._temporary.unlink(missing_ok=True)

    def _mux(self, packets: list[Any]) -> None:
        try:
            self._container.mux(packets)
        except (self._av.error.FFmpegError, OSError) as error:
            raise output_error(self._target, error) from error


def _open_live(source: str, name: str, timeout_s: float) -> Any:
    av = pyav()
    timeout = (timeout_s, timeout_s)
    try:
        if source == STDIN:
            return av.open("pipe:0", options=_LOW_LATENCY, metadata_errors="replace")
        if source.isdecimal():
            return _open_camera(int(source), timeout)
        transport = {"rtsp_transport": "tcp"} if source.startswith("rtsp") else {}
        return av.open(source, options=_LOW_LATENCY | transport, timeout=timeout, metadata_errors="replace")
    except (av.error.FFmpegError, OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise VideoError(f"{name} cannot be opened as a live source ({reason}): {_advice(source)}") from error


def _open_camera(number: int, timeout: tuple[float, float]) -> Any:
    av = pyav()
    if sys.platform == "linux":
        file, kind = f"/dev/video{number}", "v4l2"
    elif sys.platform == "darwin":
        file, kind = f"{number}:none", "avfoundation"
    else:
        raise VideoError("cameras are read on Linux and macOS; elsewhere pipe one in, with - as the source")
    if kind == "v4l2" and not os.path.exists(file):
        raise VideoError(f"there is no camera {number} ({file} does not exist): see ls /dev/video*")
    with suppress(av.error.FFmpegError):
        return av.open(file, format=kind, options=_LOW_LATENCY | _CAMERA_MODE, timeout=timeout)
    return av.open(file, format=kind, options=_LOW_LATENCY, timeout=timeout)


def _advice(source: str) -> str:
    if source == STDIN:
        return "pipe in MPEG-TS or Matroska, for example ffmpeg -f mpegts -"
    if source.isdecimal():
        return "is another program using the camera, and may you read it?"
    return "check the address, and that the camera or server is running"


def _decoded(container: Any, stream: Any) -> Iterator[Any]:
    """Yield the frames of a live source; what arrived damaged is left out."""
    damaged = pyav().error.InvalidDataError
    for packet in container.demux(stream):
        try:
            frames = packet.decode()
        except damaged:
            continue
        yield from frames
