"""How well a photo shows each part of the face: not hidden, not seen edge-on, inside the picture."""

from __future__ import annotations

from functools import cache

import cv2
import numpy as np
from facegraph_client import canonical_face, rasterize
from numpy.typing import NDArray
from scipy import sparse

_RASTER_PX = 96  # longer side of the depth raster: 1.8 mm a pixel on an adult's face
_EDGE_ON_COSINE, _FULL_COSINE = 0.12, 0.75  # of the angle between surface and line of sight
_STEEPEST = 4.0
_TOLERANCE = 0.03  # of the face's height: landmarks are that uncertain in depth, and the nose stands out 4 times more
_FEW_TEXELS = 2.5  # times the usual number of photo pixels in a texel: from there on detail is lost
_RIM = 2.5  # raster pixels inside the silhouette that are never covered in full
_NEAR_RIM = 8.0  # and those that a landmark's error may put on the background


def surface_cosine(points: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return FP32 [468]: cosine between each vertex' normal and the direction to the viewer, negative if it faces away.

    Args:
        points: FP32 [468,3] landmarks, x right, y down, smaller z nearer.

    """
    normals = _vertex_triangles() @ _triangle_normals(points)
    length = np.sqrt(np.einsum("vk,vk->v", normals, normals))
    cosine: NDArray[np.float32] = -normals[:, 2] / np.maximum(length, 1e-12)
    return cosine


def front_area(points: NDArray[np.float32]) -> float:
    """Return the area, in the square of the points' unit, that the front-facing triangles cover in the picture."""
    return float(np.maximum(-_triangle_normals(points)[:, 2], 0).sum() / 2)


def coverage_of_cells(
    points: NDArray[np.float32], cells: NDArray[np.float32], image_wh: tuple[int, int]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Tell how well the photo shows each cell, and which cells lie at the silhouette.

    Args:
        points: FP32 [468,3] landmarks in px of the photo, smaller z nearer.
        cells: FP32 [N,N,4]: the points (x, y, z) and :func:`surface_cosine` interpolated to the cells.
        image_wh: width and height of the photo in px.

    Returns:
        FP32 [N,N] in 0..1, 1 where the photo shows a cell squarely, 0 where it does not show it; and FP32 [N,N],
        1 where landmarks a little off would show what is behind the head instead, falling to 0 some 15 mm inside.

    """
    x, y, z, cosine = cv2.split(cells)
    origin = points[:, :2].min(0)
    height_px = float(np.ptp(points[:, :2], axis=0).max())
    scale = _RASTER_PX / height_px
    raster_points = np.column_stack([(points[:, :2] - origin) * scale + 2, points[:, 2]])
    size = np.ceil(raster_points[:, :2].max(0)).astype(int) + 3
    # A triangle that faces away is behind one that does not, as far as a photo of a face goes.
    front = canonical_face().triangles[_triangle_normals(points)[:, 2] < 0]
    raster = rasterize(raster_points, front, (int(size[0]), int(size[1])))
    nearest = np.where(raster.triangle >= 0, raster.depth, np.float32(1e9))
    nearest = cv2.erode(nearest, np.ones((3, 3), np.uint8))  # what is close beside an occluder counts as hidden
    from_rim = cv2.distanceTransform((raster.triangle >= 0).astype(np.uint8), cv2.DIST_L2, 3)

    at_x, at_y = (x - origin[0]) * scale + 2, (y - origin[1]) * scale + 2
    in_front = cv2.remap(nearest, at_x, at_y, cv2.INTER_NEAREST, borderMode=cv2.BORDER_CONSTANT, borderValue=1e9)
    rim = cv2.remap(from_rim, at_x, at_y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT, borderValue=0)

    slope = np.sqrt(np.maximum(1 - cosine * cosine, 0)) / np.maximum(cosine, 1 / _STEEPEST)
    tolerance = _TOLERANCE * height_px + slope * np.float32(2 / scale)
    visible = np.clip(2 - (z - in_front) / tolerance, 0, 1)
    inside = np.minimum(np.minimum(x, image_wh[0] - 1 - x), np.minimum(y, image_wh[1] - 1 - y))
    coverage = smoothstep((cosine - _EDGE_ON_COSINE) / (_FULL_COSINE - _EDGE_ON_COSINE))
    coverage *= visible * smoothstep((rim - 1) / _RIM) * np.clip(inside * (scale / 2), 0, 1)
    # The least of a cell's neighbours, then smooth: no cell is trusted more than what it is blended with.
    smooth: NDArray[np.float32] = cv2.blur(cv2.erode(coverage, np.ones((3, 3), np.uint8)), (3, 3))
    return smooth, 1 - smoothstep((rim - 1 - _RIM) / _NEAR_RIM)


def resolved(cells: NDArray[np.float32], cell_px: float) -> NDArray[np.float32]:
    """Return FP32 [C,C] in 0..1: 0 where the layout has far too few texels to hold what the photo shows.

    An open mouth is the one such place: in the layout the lips are closed, and all that is between them is a line.

    Args:
        cells: FP32 [C,C,4], the cells' places in the photo first.
        cell_px: the usual distance between them.

    """
    x, y = cv2.extractChannel(cells, 0), cv2.extractChannel(cells, 1)
    across = (x[:, 1:] - x[:, :-1]) ** 2 + (y[:, 1:] - y[:, :-1]) ** 2
    down = (x[1:] - x[:-1]) ** 2 + (y[1:] - y[:-1]) ** 2
    square = np.zeros_like(x)
    for part, step in (
        (square[:, 1:], across),
        (square[:, :-1], across),
        (square[1:], down),
        (square[:-1], down),
    ):
        np.maximum(part, step, out=part)
    few = smoothstep((np.sqrt(square) / cell_px - _FEW_TEXELS) / _FEW_TEXELS)
    sufficient: NDArray[np.float32] = 1 - cv2.blur(few, (3, 3))
    return sufficient


def smoothstep(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rise smoothly from 0 at x <= 0 to 1 at x >= 1."""
    x = np.clip(x, 0, 1)
    return x * x * (3 - 2 * x)


def _triangle_normals(points: NDArray[np.float32]) -> NDArray[np.float32]:
    """FP32 [898,3]: outward normals, as long as twice the area. (x, -y, -z) is a rotation, so outward stays outward."""
    a, b, c = points[canonical_face().triangles.T]
    first, second = (b - a).T, (c - a).T
    normals: NDArray[np.float32] = np.stack(
        [
            first[1] * second[2] - first[2] * second[1],
            first[2] * second[0] - first[0] * second[2],
            first[0] * second[1] - first[1] * second[0],
        ],
        1,
    )
    return normals


@cache
def _vertex_triangles() -> sparse.csr_array:
    """FP32 CSR [468,898]: 1 where the triangle touches the vertex."""
    triangles = canonical_face().triangles
    owner = np.repeat(np.arange(len(triangles)), 3)
    ones = np.ones(len(owner), np.float32)
    shape = (len(canonical_face().vertices_cm), len(triangles))
    return sparse.csr_array((ones, (triangles.ravel(), owner)), shape=shape)
