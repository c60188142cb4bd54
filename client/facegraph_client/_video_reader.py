"""Video files as they come in: upright RGB frames with their times, and what the rest of the pipeline must keep."""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facegraph_client._errors import VideoError
from facegraph_client._pyav import pyav
from facegraph_client._video_errors import clock
from facegraph_client._video_pixels import (
    HDR_TRANSFERS,
    MATRIX_BT709,
    MATRIX_RGB,
    RANGE_FULL,
    RANGE_LIMITED,
    Colours,
    Orientation,
    PixelConverter,
    encoded_format,
    side_data,
)

_UNSPECIFIED_TRANSFER = 2
_STORED_BITS = 8
_FALLBACK_RATE = Fraction(25)
_NOT_VIDEOS = re.compile(r"tty|image2|.*_pipe")
"""Texts and single pictures, which FFmpeg shows as videos."""
_BROADCAST_FORMATS = {"mpegts", "mpeg"}
"""Their clock starts anywhere, hours from 0; players begin at the first frame."""


@dataclass(frozen=True)
class VideoInfo:
    """What a video is.

    Attributes:
        width_px: of the upright frames.
        height_px: of the upright frames.
        frame_rate: average, frames a second; the frames' own times may vary.
        time_base: seconds that one unit of a frame's time stands for.
        frames_estimate: from the file's header or its duration, None where neither says.
        sample_aspect_ratio: of the upright frames' pixels, width to height, None where the file does not say.
        pixel_format: to encode, FFmpeg's name.
        colours: to carry over.
        orientation: of the stored frames.
        end_pts: when the last frame ends, in ``time_base``, None where the file does not say.
        start_pts: what is taken off every time of a broadcast recording, in ``time_base``; else 0.
        remarks: what of it an 8-bit progressive H.264 stream does not keep, for the user.

    """

    width_px: int
    height_px: int
    frame_rate: Fraction
    time_base: Fraction
    frames_estimate: int | None
    sample_aspect_ratio: Fraction | None
    pixel_format: str
    colours: Colours
    orientation: Orientation
    end_pts: int | None
    start_pts: int
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class DecodedFrame:
    """One frame.

    Attributes:
        pts: when it is shown, in the video's time base.
        duration: how long, in the same unit, 0 where unknown.
        stored: upright, in the format to encode.
        image_rgb: UINT8 [H,W,3], upright, read-only.

    """

    pts: int
    duration: int
    stored: Any
    image_rgb: NDArray[np.uint8]


class VideoReader:
    """Reads one video file from its first frame to its last. One thread at a time.

    Args:
        path: of the video.

    Raises:
        VideoError: the file is missing, no video, has no video stream or no frame that can be decoded, or is HDR.
        SetupError: PyAV is not installed.

    """

    info: VideoInfo
    damage: list[str]
    """What was found wrong with the file so far, for the user."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._container = open_input(self._path)
        self._closed = False
        self.damage = []
        try:
            self._stream = main_video_stream(self._container, str(self._path))
            # Not frame threads: with them a damaged packet takes good frames before it along.
            self._stream.thread_type = "SLICE"
            self._packets = 0
            self._undecodable = 0
            self._last_pts: int | None = None
            self._decoded = self._decode()
            first = next(self._decoded, None)
            if first is None:
                raise VideoError(f"{self._path} has no frame that can be decoded: is the file complete?")
            self.info = video_info(self._container, self._stream, first, str(self._path))
            self._first: Any | None = first
        except BaseException:
            self._container.close()
            raise
        info = self.info
        self.converter = PixelConverter(
            info.colours, info.pixel_format, info.width_px, info.height_px, info.orientation
        )

    def __enter__(self) -> VideoReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. It can be called again."""
        if not self._closed:
            self._closed = True
            self._decoded.close()
            self._container.close()

    def frames(self, skip: int = 0) -> Iterator[DecodedFrame]:
        """Yield the frames in the order in which they are shown, once.

        A packet that cannot be decoded is left out; where the file breaks off the frames end. ``damage`` says so.

        Args:
            skip: how many to decode but leave out at the beginning.

        """
        for index, frame in enumerate(self._all()):
            pts = self._pts(frame)
            if index >= skip:
                upright = self.converter.upright(frame)
                yield DecodedFrame(pts, frame.duration or 0, upright, self.converter.rgb(upright))
        self._note_damage()

    def _all(self) -> Generator[Any, None, None]:
        if self._first is not None:
            first, self._first = self._first, None
            yield first
        yield from self._decoded

    def _decode(self) -> Generator[Any, None, None]:
        ffmpeg_error = pyav().error.FFmpegError
        packets = self._container.demux(self._stream)
        while True:
            try:
                packet = next(packets, None)
            except ffmpeg_error as error:
                self._note(f"cannot be read on ({error.strerror})")
                packet = None
            if packet is None or packet.size == 0:
                break
            self._packets += 1
            try:
                frames = packet.decode()
            except ffmpeg_error:  # players go on with the next packet, and so do we
                self._undecodable += 1
                continue
            yield from frames
        with suppress(ffmpeg_error):
            yield from self._stream.decode(None)

    def _pts(self, frame: Any) -> int:
        """Return the frame's time; where the file has none, or one that goes back, the next that is possible."""
        pts = frame.pts if frame.pts is not None else frame.dts
        last = self._last_pts
        if pts is None:
            step = frame.duration or max(1, round(1 / (self.info.frame_rate * self.info.time_base)))
            pts = self.info.start_pts if last is None else last + self.info.start_pts + step
        pts -= self.info.start_pts
        self._last_pts = pts if last is None else max(pts, last + 1)
        return self._last_pts

    def _note_damage(self) -> None:
        if self.damage:
            return
        missing = self._stream.frames - self._packets
        if missing > 0:
            self._note(f"is cut off, {missing + self._undecodable} frames short")
        elif self._undecodable:
            self._note(f"has {self._undecodable} packets that cannot be decoded; they are left out")

    def _note(self, what: str) -> None:
        at_s = 0.0 if self._last_pts is None else float(self._last_pts * self.info.time_base)
        self.damage.append(f"{self._path} {what}; the last good frame is at {clock(at_s)}")


def open_input(path: Path) -> Any:
    """Open a media file for reading.

    Raises:
        VideoError: it is missing, unreadable, a folder or no media file.

    """
    av = pyav()
    not_a_video = f"{path} is not a video, or its beginning is damaged: give a file that a player opens"
    try:
        # file: keeps a name with a colon from being taken for an address.
        container = av.open(f"file:{path}", metadata_errors="replace")
    except FileNotFoundError as error:
        raise VideoError(f"{path} does not exist: check the name") from error
    except IsADirectoryError as error:
        raise VideoError(f"{path} is a folder: name a video in it") from error
    except (av.error.InvalidDataError, av.error.EOFError) as error:
        raise VideoError(
            f"{path} is not a video, or its beginning is damaged: give a file that a player opens"
        ) from error
    except (av.error.FFmpegError, ValueError) as error:  # ValueError: a NUL in the name
        raise VideoError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if _NOT_VIDEOS.fullmatch(container.format.name):
        container.close()
        raise VideoError(not_a_video)
    return container


def main_video_stream(container: Any, name: str) -> Any:
    """Return the stream that a player shows; cover pictures are none.

    Raises:
        VideoError: there is none.

    """
    pictures = pyav().stream.Disposition.attached_pic
    streams = [stream for stream in container.streams.video if not stream.disposition & pictures]
    if not streams:
        raise VideoError(f"{name} has no video stream: give a video, not a sound file")
    best = container.streams.best("video")
    chosen = best if best in streams else streams[0]
    if chosen.codec_context is None:
        raise VideoError(f"{name} is in a video format that this FFmpeg does not know: convert it to H.264 first")
    return chosen


def video_info(container: Any, stream: Any, first: Any, name: str) -> VideoInfo:
    """Return what a video is.

    Args:
        container: open.
        stream: of it, see :func:`main_video_stream`.
        first: its first frame; what it says goes before what the container says.
        name: for messages.

    Raises:
        VideoError: it is HDR.

    """
    colours = _colours(first, name)
    orientation = Orientation.of(first)
    width_px, height_px = first.width, first.height
    ratio: Fraction | None = stream.sample_aspect_ratio or None
    if orientation.transpose:
        width_px, height_px, ratio = height_px, width_px, 1 / ratio if ratio else None
    rate = Fraction(stream.average_rate or stream.guessed_rate or _FALLBACK_RATE)
    formats = set(container.format.name.split(","))
    start_pts = 0
    if formats & _BROADCAST_FORMATS:
        starts_s = [s.start_time * s.time_base for s in container.streams if s.start_time is not None]
        start_pts = round(min(starts_s, default=Fraction(0)) / stream.time_base)
    end_pts = None
    if "mp4" in formats and stream.duration:  # other containers do not know it of a single stream
        end_pts = (stream.start_time or 0) + stream.duration
    return VideoInfo(
        width_px=width_px,
        height_px=height_px,
        frame_rate=rate,
        time_base=stream.time_base,
        frames_estimate=_frames_estimate(container, stream, rate),
        sample_aspect_ratio=ratio,
        pixel_format=encoded_format(first.format.name, width_px, height_px, full=colours.value_range == RANGE_FULL),
        colours=colours,
        orientation=orientation,
        end_pts=end_pts,
        start_pts=start_pts,
        remarks=tuple(_remarks(first)),
    )


def _remarks(first: Any) -> Iterator[str]:
    if first.width % 2 or first.height % 2:
        yield f"{first.width}x{first.height} is an odd size; it is stored as 4:4:4, which some players do not show"
    if first.interlaced_frame:
        yield "the video is interlaced; it is stored as whole frames, so players will not smooth its lines"
    if any(component.is_alpha for component in first.format.components):
        yield "the video has transparency, which is left out"
    if (bits := max(component.bits for component in first.format.components)) > _STORED_BITS:
        yield f"the video has {bits} bits a colour; it is stored with {_STORED_BITS}"


def _colours(first: Any, name: str) -> Colours:
    colours = Colours(first.color_range, first.color_primaries, first.color_trc, first.colorspace)
    hdr = HDR_TRANSFERS.get(colours.transfer)
    if "DOVI_METADATA" in side_data(first) and colours.transfer == _UNSPECIFIED_TRANSFER:
        hdr = "Dolby Vision"
    if hdr:
        raise VideoError(
            f"{name} is HDR ({hdr}); shown as SDR its colours would be washed out. Convert it to SDR first, with a"
            " video editor or ffmpeg's filters zscale and tonemap"
        )
    if first.format.is_rgb:
        return replace(colours, matrix=MATRIX_BT709, value_range=RANGE_LIMITED)
    if colours.matrix == MATRIX_RGB:  # planes of YUV that claim to be RGB
        colours = replace(colours, matrix=MATRIX_BT709)
    if first.format.name.startswith("yuvj"):
        return replace(colours, value_range=RANGE_FULL)
    return colours


def _frames_estimate(container: Any, stream: Any, rate: Fraction) -> int | None:
    if stream.frames:
        return int(stream.frames)
    if stream.duration:
        return max(1, int(stream.duration * stream.time_base * rate))
    if container.duration:
        return max(1, round(Fraction(container.duration, 1_000_000) * rate))
    return None
