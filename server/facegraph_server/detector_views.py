"""Square views of a picture for the face detector: the whole picture letterboxed, and tiles where faces may be small.

Outside the CUDA graph: the number and the places of the views depend on the picture's shape.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from facegraph_server.contract import DETECTOR_SIZE_PX, MAX_BATCH

# Measured (see docs/detector.md): the network is reliable from faces of 14 px height in its input.
_LANDSCAPE_RATIO = 1.2
"""From this ratio of width to height on, the letterboxed whole alone misses faces of 8 % of the height."""

_FINE_TILE = 0.4
"""Side of a tile in the fine search, as a part of the picture's short side."""

_FINE_OVERLAP = 0.1
"""Least overlap of neighbouring tiles, as a part of the short side: more than the largest face left to the tiles."""


LAST_REDUCTION = 1.7
"""Pixels are averaged first where bilinear scaling would shrink by more than about twice this factor."""


class View(NamedTuple):
    """A square of the picture, in px of the picture: left, top, side."""

    left: float
    top: float
    side: float


def whole_view(width_px: int, height_px: int) -> View:
    """Return the smallest square around the whole picture."""
    side = max(width_px, height_px)
    return View((width_px - side) / 2, (height_px - side) / 2, side)


def choose_views(width_px: int, height_px: int, *, fine: bool) -> list[View]:
    """Choose the squares in which the detector looks.

    The whole picture always comes first. A landscape picture adds squares of its height, so that a face of 8 % of the
    height spans the same number of detector pixels as in a square picture. ``fine`` adds overlapping tiles for faces
    down to 3 % of the height. At most 16 views: one detector batch.
    """
    views = [whole_view(width_px, height_px)]
    if fine:
        columns, rows, side = _fine_grid(width_px, height_px)
    elif width_px >= _LANDSCAPE_RATIO * height_px:
        columns, rows, side = min(math.ceil(width_px / height_px), MAX_BATCH - 1), 1, float(height_px)
    else:
        return views
    for top in _starts(height_px, side, rows):
        views.extend(View(left, top, side) for left in _starts(width_px, side, columns))
    return views


def _fine_grid(width_px: int, height_px: int) -> tuple[int, int, float]:
    """Return columns, rows and side of the smallest tiles that cover the picture with the least overlap."""
    short_side = min(width_px, height_px)
    overlap = _FINE_OVERLAP * short_side
    side = _FINE_TILE * short_side
    while True:
        columns, rows = (max(math.ceil((length - overlap) / (side - overlap)), 1) for length in (width_px, height_px))
        if columns * rows < MAX_BATCH:
            return columns, rows, min(side, short_side)  # a panorama's tiles are as high as it is
        side *= 1.02


def _starts(length: float, side: float, count: int) -> list[float]:
    """Spread ``count`` intervals of ``side`` evenly over ``length``."""
    if count == 1:
        return [(length - side) / 2]
    return [i * (length - side) / (count - 1) for i in range(count)]


def render_views(image_rgb: NDArray[np.uint8], views: list[View]) -> NDArray[np.uint8]:
    """Scale each view to the detector's input; what lies outside the picture is black.

    Args:
        image_rgb: UINT8 [H,W,3].
        views: the squares, see :func:`choose_views`.

    Returns:
        UINT8 [len(views),192,192,3].

    """
    height, width = image_rgb.shape[:2]
    batch = np.zeros((len(views), DETECTOR_SIZE_PX, DETECTOR_SIZE_PX, 3), np.uint8)
    for target, view in zip(batch, views, strict=True):
        scale = DETECTOR_SIZE_PX / view.side
        left, right = max(round(view.left), 0), min(round(view.left + view.side), width)
        top, bottom = max(round(view.top), 0), min(round(view.top + view.side), height)
        x0, x1 = _inside((left - view.left) * scale, (right - view.left) * scale)
        y0, y1 = _inside((top - view.top) * scale, (bottom - view.top) * scale)
        target[y0:y1, x0:x1] = _scale(image_rgb[top:bottom, left:right], (x1 - x0, y1 - y0))
    return batch


def _scale(piece_rgb: NDArray[np.uint8], size_wh: tuple[int, int]) -> NDArray[np.uint8]:
    """Scale a piece of the picture. The last step is bilinear: it keeps small faces crisper than averaging would."""
    height, width = piece_rgb.shape[:2]
    if (factor := int(min(width / size_wh[0], height / size_wh[1]) / LAST_REDUCTION)) > 1:
        # Whole blocks only: averaging by a whole number is several times faster than by a fraction.
        whole = piece_rgb[: height // factor * factor, : width // factor * factor]
        blocks = (width // factor, height // factor)
        piece_rgb = np.asarray(cv2.resize(whole, blocks, interpolation=cv2.INTER_AREA), np.uint8)
    return np.asarray(cv2.resize(piece_rgb, size_wh, interpolation=cv2.INTER_LINEAR), np.uint8)


def _inside(low: float, high: float) -> tuple[int, int]:
    """Round an interval to whole px of the detector's input: within it, and never empty."""
    start = min(max(round(low), 0), DETECTOR_SIZE_PX - 1)
    return start, min(max(round(high), start + 1), DETECTOR_SIZE_PX)
