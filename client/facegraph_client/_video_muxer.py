"""Putting the finished file together: the new video, and all else of the old file as it was."""

from __future__ import annotations

import heapq
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facegraph_client._errors import VideoError
from facegraph_client._pyav import pyav
from facegraph_client._video_encoder import CODEC, EncoderSettings, Segment, decoding_times
from facegraph_client._video_errors import output_error
from facegraph_client._video_reader import main_video_stream, open_input

CONTAINERS = {".mp4": "mp4", ".m4v": "mp4", ".mov": "mov", ".mkv": "matroska"}
"""By the target's suffix. A suffix is looked up in lower case."""

_MOVIE_UNITS_PER_S = 1000
_KEPT_TYPES = ("audio", "subtitle")
_OF_THE_OLD_CONTAINER = {"major_brand", "minor_version", "compatible_brands", "encoder"}


def container_format(target: Path) -> str:
    """Return FFmpeg's name of the container that the target's suffix stands for.

    Raises:
        VideoError: there is none.

    """
    try:
        return CONTAINERS[target.suffix.lower()]
    except KeyError:
        raise VideoError(
            f"{target.name}: the suffix says what container to write; choose one of {', '.join(CONTAINERS)}"
        ) from None


def streams_to_copy(container: Any, target: Path) -> tuple[list[Any], list[str]]:
    """Choose the sound and subtitle streams to copy.

    Returns:
        The streams, and remarks on those that are left out.

    Raises:
        VideoError: the target's container does not take the sound as it is.

    """
    supported = _probe(target)
    copied, remarks = [], []
    main_video = main_video_stream(container, target.name)
    for stream in container.streams:
        name = stream.codec_context.name if stream.codec_context is not None else "unknown"
        if stream.type == "audio" and not stream.codec_context.sample_rate:
            remarks.append("a sound stream without sound is left out")
        elif stream.type in _KEPT_TYPES and stream.codec_context is not None and supported(stream):
            copied.append(stream)
        elif stream.type == "audio":
            raise VideoError(
                f"{target.suffix} does not take the sound as it is ({name}): choose"
                f" {' or '.join(_takers(stream, target))}"
            )
        elif stream.type == "subtitle":
            remarks.append(f"subtitles in {name} are left out: {target.suffix} does not take them")
        elif stream.index != main_video.index:
            remarks.append(f"a stream of {stream.type} is left out")
    return copied, remarks


def mux(
    temporary: Path,
    target: Path,
    *,
    source: Path,
    settings: EncoderSettings,
    start_pts: int,
    segments: Iterable[Segment],
    pts: NDArray[np.int64],
    end_pts: int | None,
    tags: Mapping[str, str],
) -> None:
    """Write the finished file.

    Args:
        temporary: where it is written.
        target: the name that it gets, for its suffix and for messages.
        source: the file that sound, subtitles, chapters and metadata are copied from.
        settings: of the encoder that made the segments.
        start_pts: see :class:`VideoInfo`; sound and subtitles are shifted alike.
        segments: in order.
        pts: INT64 [n], the times of display of all their packets, in their order.
        end_pts: when the last frame ends, None where only its own duration says so.
        tags: metadata to add.

    Raises:
        OutputError: the file cannot be written.

    """
    av = pyav()
    dts, durations = decoding_times(pts), _durations(pts, end_pts)
    with open_input(source) as old:
        copied, _ = streams_to_copy(old, target)
        try:
            with av.open(
                f"file:{temporary}", "w", format=container_format(target), container_options=_options(target, settings)
            ) as new:
                video = new.add_stream(CODEC, rate=settings.frame_rate)
                settings.apply(video.codec_context)
                video.time_base = settings.time_base
                _copy_metadata(old, main_video_stream(old, str(source)), new, video, tags)
                outputs = {stream.index: _copied_stream(new, stream) for stream in copied}
                new.start_encoding()
                packets = [_video_packets(segments, dts, durations, video, settings.time_base)]
                if copied:
                    packets.append(_copied_packets(old, copied, outputs, start_pts * settings.time_base))
                for _, packet in heapq.merge(*packets, key=lambda timed: timed[0]):
                    new.mux_one(packet)
        except (av.error.FFmpegError, OSError) as error:
            raise output_error(target, error) from error


def _probe(target: Path) -> Callable[[Any], bool]:
    """Return what tells whether the target's container takes a stream."""
    av = pyav()

    def supported(stream: Any) -> bool:
        # Only the muxer itself knows all its rules, and says so when it writes its header.
        try:
            with av.open(io.BytesIO(), "w", format=container_format(target)) as container:
                container.add_stream_from_template(stream, opaque=True)
                container.start_encoding()
        except (av.error.FFmpegError, ValueError):
            return False
        return True

    return supported


def _takers(stream: Any, target: Path) -> list[str]:
    takers = [suffix for suffix in CONTAINERS if _probe(target.with_suffix(suffix))(stream)]
    return takers or ["a file whose sound is AAC"]


def _options(target: Path, settings: EncoderSettings) -> dict[str, str]:
    if container_format(target) == "matroska":
        return {}
    units_per_s = settings.time_base.denominator
    # The movie's own clock, milliseconds if nobody says otherwise, says when a track starts.
    movie_units_per_s = units_per_s * -(-_MOVIE_UNITS_PER_S // units_per_s)
    options = {"movflags": "+faststart", "movie_timescale": str(movie_units_per_s)}
    if settings.time_base.numerator == 1:  # else the muxer takes a multiple of it
        options["video_track_timescale"] = str(units_per_s)
    return options


def _copy_metadata(old: Any, old_video: Any, new: Any, video: Any, tags: Mapping[str, str]) -> None:
    new.metadata.update({k: v for k, v in old.metadata.items() if k.lower() not in _OF_THE_OLD_CONTAINER})
    for name, value in tags.items():
        for spelling in [k for k in new.metadata if k.lower() == name.lower()]:
            del new.metadata[spelling]
        new.metadata[name] = value
    video.metadata.update({k: v for k, v in old_video.metadata.items() if k.lower() in ("language", "title")})
    new.set_chapters(old.chapters())


def _copied_stream(new: Any, stream: Any) -> Any:
    output = new.add_stream_from_template(stream, opaque=True)
    output.time_base = stream.time_base
    output.disposition = stream.disposition
    output.metadata.update(stream.metadata)
    return output


def _durations(pts: NDArray[np.int64], end_pts: int | None) -> NDArray[np.int64]:
    """Return how long each frame is shown, until the next one; 0 for the last one where that is unknown.

    What a file says of single frames is no use: in an MP4 it is the time between packets, which are in another order.
    """
    order = np.argsort(pts)
    durations = np.zeros_like(pts)
    durations[order[:-1]] = np.diff(pts[order])
    if end_pts is not None:
        durations[order[-1]] = max(end_pts - int(pts[order[-1]]), 0)
    return durations


def _video_packets(
    segments: Iterable[Segment],
    dts: NDArray[np.int64],
    durations: NDArray[np.int64],
    video: Any,
    time_base: Fraction,
) -> Iterator[tuple[Fraction, Any]]:
    av = pyav()
    number = 0
    for segment in segments:
        stops = np.cumsum(segment.sizes)
        for i, stop in enumerate(stops.tolist()):
            packet = av.Packet(segment.data[stop - int(segment.sizes[i]) : stop].tobytes())
            packet.time_base = time_base
            packet.pts, packet.dts = int(segment.pts[i]), int(dts[number])
            packet.duration = int(durations[number] or segment.durations[i])
            packet.is_keyframe = bool(segment.keyframes[i])
            packet.stream = video
            yield packet.dts * time_base, packet
            number += 1


def _copied_packets(
    old: Any, copied: list[Any], outputs: Mapping[int, Any], start_s: Fraction
) -> Iterator[tuple[Fraction, Any]]:
    """Yield the packets of the streams to copy; where the file breaks off, they end."""
    time_s = Fraction(0)
    packets = old.demux(copied)
    while True:
        try:
            packet = next(packets, None)
        except pyav().error.FFmpegError:
            return
        if packet is None:
            return
        if packet.dts is None:
            packet.dts = packet.pts
        if packet.size == 0 or packet.dts is None:  # a flush, or nothing that could be placed
            continue
        shift = round(start_s / packet.time_base)
        packet.dts -= shift
        if packet.pts is not None:
            packet.pts -= shift
        time_s = max(time_s, packet.dts * packet.time_base)
        packet.stream = outputs[packet.stream_index]
        yield time_s, packet
