"""A small exact triangle rasteriser in NumPy: which triangle covers each pixel, and where in it.

It serves three purposes: the texel map of the UV layout, the visibility test of the texture, and the
preview's turned views. Triangles are cut into spans (one per pixel row) and spans into pixels, each in one vectorised
pass, so the work is that of the covered pixels and not of the bounding boxes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_AREA_EPSILON = 1e-9
_EDGE_EPSILON_PX = 1e-7
_NEXT, _LAST = [1, 2, 0], [2, 0, 1]  # the corners after each corner


class Raster(NamedTuple):
    """The nearest triangle at every pixel.

    Attributes:
        triangle: INT32 [H,W], index of the triangle, -1 where there is none.
        barycentric: FP32 [H,W,3], weights of the triangle's corners, 0 where there is none.
        depth: FP32 [H,W], interpolated z, +inf where there is none.

    """

    triangle: NDArray[np.int32]
    barycentric: NDArray[np.float32]
    depth: NDArray[np.float32]


def rasterize(
    vertices_px: NDArray[np.floating[Any]], triangles: NDArray[np.integer[Any]], size_wh: tuple[int, int]
) -> Raster:
    """Rasterise triangles, of both windings, with a depth buffer: the smallest z wins, at equal z the later triangle.

    Args:
        vertices_px: [V,3] x right, y down, z away from the viewer. Pixel (i, j) has its centre at x = i, y = j.
        triangles: [T,3] vertex indices.
        size_wh: width and height of the raster in px.

    """
    width, height = size_wh
    corners = np.asarray(vertices_px, np.float64)[triangles]  # [T,3,3]
    x, y, z = corners[..., 0], corners[..., 1], corners[..., 2]
    area = (x[:, 1] - x[:, 0]) * (y[:, 2] - y[:, 0]) - (y[:, 1] - y[:, 0]) * (x[:, 2] - x[:, 0])
    drawn = np.abs(area) > _AREA_EPSILON
    area = np.where(drawn, area, 1.0)
    # The weight of corner k at (x, y) is gradient_x[k] x + gradient_y[k] y + offset[k].
    gradient_x = (y[:, _NEXT] - y[:, _LAST]) / area[:, None]
    gradient_y = (x[:, _LAST] - x[:, _NEXT]) / area[:, None]
    offset = (x[:, _NEXT] * y[:, _LAST] - x[:, _LAST] * y[:, _NEXT]) / area[:, None]

    top = np.ceil(np.clip(y.min(1) - _EDGE_EPSILON_PX, 0, height)).astype(np.int64)
    bottom = np.floor(np.clip(y.max(1) + _EDGE_EPSILON_PX, -1, height - 1)).astype(np.int64)
    owner, row = _expand(top, (bottom - top + 1) * drawn)  # the spans
    left, right = _span_ends(x[owner], y[owner], row)
    start = np.ceil(np.clip(left - _EDGE_EPSILON_PX, 0, width)).astype(np.int64)
    end = np.floor(np.clip(right + _EDGE_EPSILON_PX, -1, width - 1)).astype(np.int64)
    span, column = _expand(start, end - start + 1)  # the pixels
    owner, row = owner[span], row[span]

    z_x, z_y, z_offset = (np.einsum("tk,tk->t", plane, z) for plane in (gradient_x, gradient_y, offset))
    depth = z_x[owner] * column + z_y[owner] * row + z_offset[owner]
    flat = row * width + column
    nearest = np.full(height * width, np.inf)
    np.minimum.at(nearest, flat, depth)
    front = np.flatnonzero(depth == nearest[flat])
    flat, owner, column, row = flat[front], owner[front], column[front], row[front]

    triangle = np.full(height * width, -1, np.int32)
    barycentric = np.zeros((height * width, 3), np.float32)
    triangle[flat] = owner  # of repeated indices, the last assignment stays
    barycentric[flat] = gradient_x[owner] * column[:, None] + gradient_y[owner] * row[:, None] + offset[owner]
    return Raster(
        triangle.reshape(height, width),
        barycentric.reshape(height, width, 3),
        nearest.astype(np.float32).reshape(height, width),
    )


def _expand(start: NDArray[np.int64], count: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """List start[i], start[i] + 1, … (count[i] of them) for each i in turn, with the index i that each belongs to."""
    count = np.maximum(count, 0)
    owner = np.repeat(np.arange(len(count)), count)
    first = np.cumsum(count) - count
    return owner, np.arange(len(owner)) + (start - first)[owner]


def _span_ends(
    x: NDArray[np.float64], y: NDArray[np.float64], row: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Where the line y = row enters and leaves each triangle; x and y are [N,3] corners."""
    x_next, y_next = x[:, _NEXT], y[:, _NEXT]
    level = row[:, None]
    crosses = (np.minimum(y, y_next) - _EDGE_EPSILON_PX <= level) & (level <= np.maximum(y, y_next) + _EDGE_EPSILON_PX)
    rise = y_next - y
    flat = np.abs(rise) <= _EDGE_EPSILON_PX
    along = np.clip((level - y) / np.where(flat, 1.0, rise), 0, 1)
    at = x + along * (x_next - x)
    low = np.where(flat, np.minimum(x, x_next), at)
    high = np.where(flat, np.maximum(x, x_next), at)
    return np.where(crosses, low, np.inf).min(1), np.where(crosses, high, -np.inf).max(1)
