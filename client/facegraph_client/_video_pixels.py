"""Frames between FFmpeg's planes and RGB: upright, in the video's own colours, and exact where nothing changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facegraph_client._pyav import pyav

# Code points of ITU-T H.273, which FFmpeg uses as they are; its ranges are its own.
MATRIX_RGB, MATRIX_BT709, MATRIX_UNSPECIFIED, MATRIX_BT601 = 0, 1, 2, 5
RANGE_LIMITED, RANGE_FULL = 1, 2
HDR_TRANSFERS = {16: "PQ", 18: "HLG"}

_HD_HEIGHT_PX = 720
"""From this height on, a video that does not say its matrix is taken for BT.709, below for BT.601, as players do."""
_PLANAR_420, _PLANAR_444 = ("yuv420p", "yuvj420p"), ("yuv444p", "yuvj444p")
"""8 bits, a plane a component, taken by x264 as they are. The j stands for full range."""
_EXACT = 0x2 | 0x40000 | 0x2000 | 0x4000
"""Flags of swscale that PyAV has no names for: bilinear, accurate rounding, chroma of full resolution in and out."""
_SMALLEST_BOX_PX = 16


@dataclass(frozen=True)
class Colours:
    """How a video's numbers stand for colours: FFmpeg's range (0 unspecified), the rest as in ITU-T H.273."""

    value_range: int
    primaries: int
    transfer: int
    matrix: int


@dataclass(frozen=True)
class Orientation:
    """What makes a stored frame upright: rows and columns exchanged first, then mirrored."""

    transpose: bool = False
    mirror_x: bool = False
    mirror_y: bool = False

    @classmethod
    def of(cls, frame: Any) -> Orientation:
        """Read a decoded frame's display matrix, to the nearest quarter turn."""
        matrix = side_data(frame).get("DISPLAYMATRIX")
        if matrix is None:
            return cls()
        # QuickTime's row vectors: x' = a x + c y, y' = b x + d y, with y down.
        a, b, _, c, d = np.frombuffer(matrix, np.int32)[:5].tolist()
        if abs(b) + abs(c) > abs(a) + abs(d):
            return cls(transpose=True, mirror_x=c < 0, mirror_y=b < 0)
        return cls(transpose=False, mirror_x=a < 0, mirror_y=d < 0)

    def apply(self, plane: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the upright view of [H,W]."""
        if self.transpose:
            plane = plane.T
        return plane[:: -1 if self.mirror_y else 1, :: -1 if self.mirror_x else 1]


def encoded_format(pixel_format: str, width_px: int, height_px: int, *, full: bool) -> str:
    """Choose the pixel format to encode: 4:2:0, which every player shows, where the video and its size allow it.

    4:2:0 halves both sides, so odd sizes are stored as 4:4:4 instead of being cropped or padded; a 4:4:4 video stays
    one. More than 8 bits, and layouts that are not planar, become 8-bit planar.

    Args:
        pixel_format: FFmpeg's name, of the stored frames.
        width_px: of the upright frame.
        height_px: of the upright frame.
        full: the values use the full range.

    """
    if pixel_format in _PLANAR_444 or (pixel_format in _PLANAR_420 and width_px % 2 == height_px % 2 == 0):
        return pixel_format
    return ("yuvj" if full else "yuv") + ("444p" if width_px % 2 or height_px % 2 else "420p")


class PixelConverter:
    """Converts the frames of one video. A thread may use the methods that read and another one those that write.

    Args:
        colours: of the video; its matrix must not be RGB.
        pixel_format: of the frames that are encoded, see :func:`encoded_format`.
        width_px: of the upright frames.
        height_px: of the upright frames.
        orientation: of the stored frames.

    """

    def __init__(
        self, colours: Colours, pixel_format: str, width_px: int, height_px: int, orientation: Orientation
    ) -> None:
        self._pixel_format = pixel_format
        self._size_px = (width_px, height_px)
        self._orientation = orientation
        matrix = colours.matrix
        if matrix == MATRIX_UNSPECIFIED:
            matrix = MATRIX_BT709 if min(width_px, height_px) >= _HD_HEIGHT_PX else MATRIX_BT601
        self._matrix = matrix
        self._range = colours.value_range or (RANGE_FULL if pixel_format.startswith("yuvj") else RANGE_LIMITED)
        reformatter = pyav().video.reformatter.VideoReformatter
        # One for each conversion: each keeps its tables for as long as the sizes stay.
        self._to_planar, self._to_rgb, self._to_yuv = reformatter(), reformatter(), reformatter()

    def upright(self, frame: Any) -> Any:
        """Return a decoded frame upright and in the format to encode; the same frame where it is so already."""
        width_px, height_px = self._size_px[::-1] if self._orientation.transpose else self._size_px
        if (frame.format.name, frame.width, frame.height) != (self._pixel_format, width_px, height_px):
            is_rgb = frame.format.is_rgb
            frame = self._to_planar.reformat(
                _tagged(frame, MATRIX_RGB if is_rgb else self._matrix),
                width=width_px,
                height=height_px,
                format=self._pixel_format,
                src_color_range=RANGE_FULL if is_rgb else self._range,
                dst_colorspace=self._matrix,
                dst_color_range=self._range,
                threads=1,
            )
        if self._orientation == Orientation():
            return frame
        turned = self._new_frame()
        for target, source in zip(_planes(turned), _planes(frame), strict=True):
            target[...] = self._orientation.apply(source)
        return turned

    def rgb(self, upright: Any) -> NDArray[np.uint8]:
        """Return the upright frame as UINT8 [H,W,3] RGB, read-only.

        It is FFmpeg's fast conversion, a fraction of the exact one's time and one level too dark on average; what
        :meth:`with_changes` adds is a difference, in which that cancels out.
        """
        converted = self._to_rgb.reformat(
            _tagged(upright, self._matrix),
            format="rgb24",
            src_color_range=self._range,
            dst_color_range=RANGE_FULL,
            threads=1,
        )
        image: NDArray[np.uint8] = converted.to_ndarray()
        image.flags.writeable = False
        return image

    def with_changes(self, upright: Any, before_rgb: NDArray[np.uint8], after_rgb: NDArray[np.uint8]) -> Any:
        """Carry what changed from one RGB image to another over to the frame that the first one came from.

        It is the difference of the two that is added, so a pixel that did not change keeps its values exactly, and
        what the conversion rounds away cancels out.

        Args:
            upright: from :meth:`upright`; it is not written to, for decoders refer to their frames.
            before_rgb: UINT8 [H,W,3], from :meth:`rgb` of that frame.
            after_rgb: UINT8 [H,W,3].

        """
        box = changed_box(before_rgb, after_rgb)
        if box is None:
            return upright
        x0, y0, x1, y1 = box
        before, after = (self._yuv(image[y0:y1, x0:x1]) for image in (before_rgb, after_rgb))
        changed = self._new_frame()
        for target, source, old, new in zip(
            _planes(changed), _planes(upright), _planes(before), _planes(after), strict=True
        ):
            target[...] = source
            step_y, step_x = (y1 - y0) // old.shape[0], (x1 - x0) // old.shape[1]
            part = target[y0 // step_y : y0 // step_y + old.shape[0], x0 // step_x : x0 // step_x + old.shape[1]]
            part[...] = (part + (new.astype(np.int16) - old)).clip(0, 255)
        return changed

    def encodable(self, image_rgb: NDArray[np.uint8]) -> Any:
        """Return an RGB image, UINT8 [H,W,3], as a frame to encode."""
        return self._yuv(image_rgb)

    def _yuv(self, image_rgb: NDArray[np.uint8]) -> Any:
        frame = pyav().VideoFrame.from_ndarray(np.ascontiguousarray(image_rgb), format="rgb24")
        return self._to_yuv.reformat(
            _tagged(frame, self._matrix),
            format=self._pixel_format,
            src_color_range=RANGE_FULL,
            dst_color_range=self._range,
            interpolation=_EXACT,
            threads=1,
        )

    def _new_frame(self) -> Any:
        return pyav().VideoFrame(*self._size_px, self._pixel_format)


def side_data(frame: Any) -> dict[str, bytes]:
    """Return a decoded frame's side data by FFmpeg's names for its kinds."""
    # PyAV's mapping fails to iterate; it can be indexed.
    return {(data := frame.side_data[i]).type.name: bytes(data) for i in range(len(frame.side_data))}


def changed_box(before: NDArray[np.uint8], after: NDArray[np.uint8]) -> tuple[int, int, int, int] | None:
    """Return a box around all pixels that differ, xyxy, with even corners; None if none does.

    It may be some pixels larger than need be.
    """
    height_px, width_px = before.shape[:2]
    # Rows as words of up to 8 bytes: it is several times faster than byte by byte.
    word = next(kind for kind in (np.uint64, np.uint32, np.uint16, np.uint8) if width_px * 3 % kind().nbytes == 0)
    rows_before, rows_after = (
        np.ascontiguousarray(image).reshape(height_px, -1).view(word) for image in (before, after)
    )
    differs = rows_before != rows_after
    rows = np.flatnonzero(differs.any(1))
    if not len(rows):
        return None
    words = np.flatnonzero(differs[rows[0] : rows[-1] + 1].any(0)) * word().nbytes
    y0, y1 = _grown(int(rows[0]), int(rows[-1]) + 1, height_px)
    x0, x1 = _grown(int(words[0]) // 3, -(-(int(words[-1]) + word().nbytes) // 3), width_px)
    return x0, y0, x1, y1


def _grown(start: int, stop: int, size: int) -> tuple[int, int]:
    """Widen a range to even bounds and to what the scaler takes, within the picture."""
    start = max(0, min(start, size - _SMALLEST_BOX_PX)) & ~1
    stop = max(stop, start + _SMALLEST_BOX_PX)
    return start, min(stop + stop % 2, size)


def _tagged(frame: Any, matrix: int) -> Any:
    """Set the matrix that the scaler reads from the frame; PyAV's own arguments know only some of them."""
    frame.colorspace = matrix
    return frame


def _planes(frame: Any) -> list[NDArray[np.uint8]]:
    """Return views of the planes, [H,W] each."""
    return [
        np.frombuffer(plane, np.uint8).reshape(plane.height, plane.line_size)[:, : plane.width]
        for plane in frame.planes
    ]
