"""H.264 encoding: the settings that keep a video's look, and segments that can be encoded apart from each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facegraph_client._pyav import pyav
from facegraph_client._video_pixels import Colours
from facegraph_client._video_reader import VideoInfo

CODEC = "libx264"
PRESETS = ("ultrafast", "superfast", "veryfast", "faster", "fast", "medium", "slow", "slower", "veryslow")
WORST_CRF = 51


@dataclass(frozen=True)
class EncoderSettings:
    """All that an H.264 encoder is told: equal settings give streams that can follow one another."""

    width_px: int
    height_px: int
    pixel_format: str
    time_base: Fraction
    frame_rate: Fraction
    sample_aspect_ratio: Fraction | None
    colours: Colours
    preset: str
    crf: int

    @classmethod
    def of(cls, info: VideoInfo, *, preset: str, crf: int) -> EncoderSettings:
        """Return the settings for a video's frames."""
        return cls(
            width_px=info.width_px,
            height_px=info.height_px,
            pixel_format=info.pixel_format,
            time_base=info.time_base,
            frame_rate=info.frame_rate,
            sample_aspect_ratio=info.sample_aspect_ratio,
            colours=info.colours,
            preset=preset,
            crf=crf,
        )

    def apply(self, context: Any) -> None:
        """Set up a codec context of :data:`CODEC` that is not open yet."""
        context.width, context.height = self.width_px, self.height_px
        context.pix_fmt = self.pixel_format
        context.time_base = self.time_base
        context.framerate = self.frame_rate
        if self.sample_aspect_ratio is not None:
            context.sample_aspect_ratio = self.sample_aspect_ratio
        context.color_range = self.colours.value_range
        context.color_primaries = self.colours.primaries
        context.color_trc = self.colours.transfer
        context.colorspace = self.colours.matrix
        context.options = {"preset": self.preset, "crf": str(self.crf)}
        context.thread_type = "FRAME"  # PyAV's default, slices, costs x264 compression
        context.flags |= pyav().codec.context.Flags.global_header.value


@dataclass(frozen=True)
class Segment:
    """Consecutive frames, encoded so that they can be decoded without the ones before, in decoding order.

    Attributes:
        data: UINT8, all packets one after the other.
        sizes: INT64 [n], bytes of each packet.
        pts: INT64 [n].
        durations: INT64 [n].
        keyframes: BOOL [n].

    """

    data: NDArray[np.uint8]
    sizes: NDArray[np.int64]
    pts: NDArray[np.int64]
    durations: NDArray[np.int64]
    keyframes: NDArray[np.bool_]


class SegmentEncoder:
    """Encodes the frames of one segment. Its memory is the encoder's and the segment's packets."""

    def __init__(self, settings: EncoderSettings) -> None:
        self._settings = settings
        self._context = pyav().CodecContext.create(CODEC, "w")
        settings.apply(self._context)
        self._packets: list[Any] = []
        self._durations: dict[int, int] = {}

    def add(self, frame: Any, pts: int, duration: int) -> None:
        """Encode the next frame.

        Args:
            frame: in the settings' size and format.
            pts: when it is shown, greater than the one before.
            duration: how long, 0 where unknown.

        """
        frame.pts = pts
        frame.time_base = self._settings.time_base
        frame.pict_type = pyav().video.frame.PictureType.NONE  # else x264 repeats the source's choice of keyframes
        self._durations[pts] = duration
        self._packets += self._context.encode(frame)

    def finish(self) -> Segment:
        """Return the segment; the encoder is done then."""
        self._packets += self._context.encode(None)
        return _segment(self._packets, self._durations)


def decoding_times(pts: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Return decoding times for packets whose times of display are known.

    They are the sorted times of display, later packets by as many places as the deepest reordering needs; in front of
    the first the same distances go on. So they increase, and no frame is shown before it is decoded.

    Args:
        pts: INT64 [n], all different, in decoding order.

    """
    coded = np.asarray(pts, np.int64)
    shown = np.sort(coded)
    # Packet i may take the place of a frame that is shown no later than itself.
    delay = int((np.arange(len(coded)) - np.searchsorted(shown, coded)).max(initial=0))
    lead = shown[:delay] - shown[delay] if delay else shown[:0]
    return np.concatenate([shown[0] + lead, shown[: len(coded) - delay]]) if delay else shown


def _segment(packets: Sequence[Any], durations: dict[int, int]) -> Segment:
    return Segment(
        data=np.frombuffer(b"".join(bytes(packet) for packet in packets), np.uint8),
        sizes=np.array([packet.size for packet in packets], np.int64),
        pts=np.array([packet.pts for packet in packets], np.int64),
        durations=np.array([durations[packet.pts] for packet in packets], np.int64),
        keyframes=np.array([packet.is_keyframe for packet in packets], np.bool_),
    )
