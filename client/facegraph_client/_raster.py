"""A small exact triangle rasteriser in NumPy: which triangle covers each pixel, and where in it.

It serves three purposes: the texel map of the UV layout, the visibility test of the texture, and the
preview's turned views. The work is one vectorised pass over all pixels of all triangles' bounding boxes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_AREA_EPSILON = 1e-9


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


def rasterize(vertices_px: NDArray[np.floating], triangles: NDArray[np.integer], size_wh: tuple[int, int]) -> Raster:
    """Rasterise triangles with a depth buffer; the smallest z wins. Both windings are drawn.

    Args:
        vertices_px: [V,3] x right, y down, z away from the viewer. Pixel (i, j) has its centre at x = i, y = j.
        triangles: [T,3] vertex indices.
        size_wh: width and height of the raster in px.

    """
    width, height = size_wh
    corners = np.asarray(vertices_px, np.float64)[triangles]  # [T,3,3]
    low = np.ceil(np.clip(corners[..., :2].min(1), 0, None)).astype(np.int64)
    high = np.floor(np.minimum(corners[..., :2].max(1), (width - 1, height - 1))).astype(np.int64)
    span = np.maximum(high - low + 1, 0)
    first, second, third = corners[:, 0, :2], corners[:, 1, :2], corners[:, 2, :2]
    area = _cross(second - first, third - first)
    count = span[:, 0] * span[:, 1] * (np.abs(area) > _AREA_EPSILON)

    owner = np.repeat(np.arange(len(corners)), count)
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    y, x = np.divmod(within, np.maximum(span[owner, 0], 1))
    points = np.stack([x, y], -1) + low[owner]  # candidate pixels

    b = _cross(points - first[owner], (third - first)[owner]) / area[owner]
    c = _cross((second - first)[owner], points - first[owner]) / area[owner]
    weights = np.stack([1 - b - c, b, c], -1)
    inside = (weights >= -_AREA_EPSILON).all(1)
    owner, points, weights = owner[inside], points[inside], weights[inside]
    depth = (weights * corners[owner, :, 2]).sum(1)

    far_to_near = np.argsort(-depth, kind="stable")  # of repeated indices, the last assignment stays
    flat = (points[:, 1] * width + points[:, 0])[far_to_near]
    raster = Raster(
        np.full(height * width, -1, np.int32),
        np.zeros((height * width, 3), np.float32),
        np.full(height * width, np.inf, np.float32),
    )
    raster.triangle[flat] = owner[far_to_near]
    raster.barycentric[flat] = weights[far_to_near]
    raster.depth[flat] = depth[far_to_near]
    return Raster(
        raster.triangle.reshape(height, width),
        raster.barycentric.reshape(height, width, 3),
        raster.depth.reshape(height, width),
    )


def _cross(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    return a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]
