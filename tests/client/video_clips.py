"""Small clips, made with PyAV itself, and what the tests read back from a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
from numpy.typing import NDArray

SIZE_PX = (96, 64)
TIME_BASE = Fraction(1, 12800)
RATE = 25
EXACT = 4 | 0x40000 | 0x2000 | 0x4000
"""Flags of swscale: bicubic, accurate rounding, chroma at full resolution."""


def picture(number: int, size_px: tuple[int, int] = SIZE_PX) -> NDArray[np.uint8]:
    """A smooth picture, UINT8 [H,W,3], with the number (0 to 255) as bright and dark blocks at its top."""
    width, height = size_px
    y, x = np.mgrid[:height, :width]
    image = np.stack([60 + x * 120 // width, 60 + y * 120 // height, 110 + 40 * np.sin((x + 3 * number) / 9)], 2)
    for bit in range(8):
        image[:8, 8 * bit : 8 * bit + 8] = 220 if number >> (7 - bit) & 1 else 30
    return image.astype(np.uint8)


def number_of(image_rgb: NDArray[np.uint8]) -> int:
    """The number in a picture."""
    return sum(int(image_rgb[2:6, 8 * bit + 2 : 8 * bit + 6].mean() > 125) << (7 - bit) for bit in range(8))


def make_clip(
    path: Path,
    *,
    frames: int = 30,
    pts: Sequence[int] | None = None,
    size_px: tuple[int, int] = SIZE_PX,
    pixel_format: str = "yuv420p",
    time_base: Fraction = TIME_BASE,
    colours: Mapping[str, int] | None = None,
    codec: str = "libx264",
    audio: str | None = "aac",
    rotation: tuple[float, bool, bool] | None = None,
    aspect: Fraction | None = None,
    tags: Mapping[str, str] | None = None,
    crf: int = 12,
    sound_start_s: float = 0.0,
    options: Mapping[str, str] | None = None,
    pictures: Sequence[NDArray[np.uint8]] | None = None,
) -> list[int]:
    """Write a clip with a tone and return the times of its frames.

    Args:
        colours: of the codec context: ``color_range``, ``color_primaries``, ``color_trc``, ``colorspace``.
        rotation: degrees counter-clockwise, horizontal and vertical flip of the display matrix.
        pictures: the frames; without them those of :func:`picture`.
    """
    step = round(1 / (RATE * time_base))
    pts = list(pts) if pts is not None else [i * step for i in range(frames)]
    with av.open(
        str(path),
        "w",
        container_options={} if path.suffix == ".mkv" else {"video_track_timescale": str(time_base.denominator)},
    ) as container:
        container.metadata.update(tags or {})
        video = container.add_stream(codec, rate=RATE)
        context = video.codec_context
        context.width, context.height = size_px
        context.pix_fmt, context.time_base = pixel_format, time_base
        video.time_base = time_base
        if codec == "libx264":
            context.options = {"crf": str(crf), "preset": "veryfast", **(options or {})}
        if aspect:
            context.sample_aspect_ratio = aspect
        for name, value in (colours or {}).items():
            setattr(context, name, value)
        if rotation:
            video.set_display_rotation(*rotation)
        sound = container.add_stream(audio, rate=48000) if audio else None
        container.start_encoding()
        if sound is not None:
            _add_tone(container, sound, sound_start_s, float((pts[-1] + step) * time_base))
        for number, time in enumerate(pts):
            image = pictures[number] if pictures else picture(number, size_px)
            container.mux(video.encode(yuv_frame(image, pixel_format, colours or {}, time, time_base)))
        container.mux(video.encode(None))
    return pts


def yuv_frame(
    image: NDArray[np.uint8], pixel_format: str, colours: Mapping[str, int], pts: int, time_base: Fraction
) -> Any:
    rgb = av.VideoFrame.from_ndarray(image, "rgb24")
    rgb.colorspace = colours.get("colorspace", 5)
    frame = rgb.reformat(
        format=pixel_format,
        src_color_range=2,
        dst_color_range=colours.get("color_range", 1) or 1,
        interpolation=EXACT,
    )
    frame.pts, frame.time_base = pts, time_base
    return frame


def _add_tone(container: Any, stream: Any, start_s: float, end_s: float) -> None:
    samples = int(48000 * (end_s - start_s))
    tone = np.sin(np.arange(samples) * 2 * np.pi * 440 / 48000) * 0.4
    layout, kind = stream.codec_context.layout.name, stream.codec_context.format.name
    resampler = av.AudioResampler(
        format=kind, layout=layout, rate=48000, frame_size=stream.codec_context.frame_size or 1024
    )
    frame = av.AudioFrame.from_ndarray((tone * 32767).astype(np.int16)[None], format="s16", layout="mono")
    frame.sample_rate, frame.pts, frame.time_base = 48000, int(48000 * start_s), Fraction(1, 48000)
    for piece in (*resampler.resample(frame), *resampler.resample(None)):
        container.mux(stream.encode(piece))
    container.mux(stream.encode(None))


@dataclass(frozen=True)
class Clip:
    """What a file holds. Times are exact, in seconds."""

    times_s: list[Fraction]
    duration_s: Fraction
    images_rgb: list[NDArray[np.uint8]]
    planes: list[NDArray[np.uint8]]
    audio: list[tuple[Fraction, Fraction, bytes]]
    video_packets: list[tuple[Fraction, Fraction, bytes]]
    time_base: Fraction
    tags: dict[str, str]
    stream: dict[str, Any]
    rotation: int


def read_clip(path: Path) -> Clip:
    """Decode a file whole."""
    with av.open(str(path)) as container:
        video = container.streams.best("video")
        frames = list(container.decode(video))
        context = video.codec_context
        stream = {
            "size": (context.width, context.height),
            "format": context.pix_fmt,
            "colours": (context.color_range, context.color_primaries, context.color_trc, context.colorspace),
            "aspect": video.sample_aspect_ratio,
            "codec": context.name,
        }
        tags = dict(container.metadata)
        time_base = video.time_base
        # Matroska has no duration of a stream; the file's is that of the stream that ends last.
        duration_s = video.duration * time_base if video.duration else Fraction(container.duration, 1_000_000)
    return Clip(
        times_s=[frame.pts * frame.time_base for frame in frames],
        duration_s=duration_s,
        images_rgb=[
            frame.to_ndarray(
                format="rgb24", src_color_range=stream["colours"][0] or 1, dst_color_range=2, interpolation=EXACT
            )
            for frame in frames
        ],
        planes=[_planes(frame) for frame in frames],
        audio=_packets(path, "audio"),
        video_packets=_packets(path, "video"),
        time_base=time_base,
        tags=tags,
        stream=stream,
        rotation=frames[0].rotation,
    )


def _planes(frame: Any) -> NDArray[np.uint8]:
    """All planes' values in a row, for frames of 8 bits."""
    planes = [np.frombuffer(p, np.uint8).reshape(p.height, p.line_size)[:, : p.width] for p in frame.planes]
    return np.concatenate([plane.ravel() for plane in planes])


def _packets(path: Path, kind: str) -> list[tuple[Fraction, Fraction, bytes]]:
    with av.open(str(path)) as container:
        stream = container.streams.best(kind)
        if stream is None:
            return []
        return [
            (
                packet.pts * packet.time_base,
                (packet.pts if packet.dts is None else packet.dts) * packet.time_base,
                bytes(packet),
            )
            for packet in container.demux(stream)
            if packet.size
        ]


def traced(image_rgb: NDArray[np.uint8], state: Trace | None) -> tuple[NDArray[np.uint8], Trace]:
    """A transform whose result shows which state it got: a square as bright as that state's number."""
    image_rgb = image_rgb.copy()
    image_rgb[24:48, 24:48] = 0 if state is None else 20 + 4 * int(state.number)
    return image_rgb, Trace(np.array(number_of(image_rgb)), np.float32([[0.5, 0.25]]))


class Trace(NamedTuple):
    number: NDArray[np.int64]
    points: NDArray[np.float32]
