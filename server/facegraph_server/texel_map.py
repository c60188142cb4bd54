"""Where each texel of the UV layout lies on the mesh, computed once for each texture size.

The map is kept on a grid of about 256 x 256 cells, whatever the texture's size: attributes of the vertices
(the place in the photo, depth, normal) are interpolated to the cells by one sparse product, and between the cells
linearly. They are linear inside a triangle anyway; only within a cell of a triangle's edge is the kink rounded off.
What varies slowly (coverage, colour match) is worked out on blocks of 2 x 2 cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np
from facegraph_client import canonical_face, rasterize
from numpy.typing import NDArray
from scipy import ndimage, sparse

_CELLS = 256
_EXTRAPOLATE_CELLS = 2.0  # the outermost cells are extended linearly so that the rim itself is exact


@dataclass(frozen=True, eq=False)
class TexelMap:
    """The UV layout on a grid of cells, each of step x step texels; row 0 is the texture's top.

    The canonical layout is its own mirror image, so flipping an array left to right mirrors the face.

    Attributes:
        step: side of a cell in texels.
        cells: side C of the grid, even; the grid covers the whole texture with C * step texels, at least its size.
        weights: FP32 CSR [C*C,468]: barycentric weights. Cells outside the layout continue its nearest cell.
        painted: FP32 [C/2,C/2], 1 for the blocks of the layout and those next to it, 0 for the padding further out.
        area_cells: area of the layout in cells.

    """

    step: int
    cells: int
    weights: sparse.csr_array
    painted: NDArray[np.float32]
    area_cells: float

    def interpolate(self, vertex_attributes: NDArray[np.float32]) -> NDArray[np.float32]:
        """Interpolate FP32 [468,K] vertex attributes to the cells' centres: FP32 [C,C,K]."""
        flat: NDArray[np.float32] = self.weights @ vertex_attributes
        return flat.reshape(self.cells, self.cells, vertex_attributes.shape[1])


@lru_cache(maxsize=8)
def texel_map(size_px: int) -> TexelMap:
    """Return the map for a texture of size_px x size_px texels (built in some 50 ms, then remembered)."""
    step = max(1, round(size_px / _CELLS))
    cells = 2 * -(-size_px // (2 * step))
    face = canonical_face()
    points = layout_points(cells)
    raster = rasterize(np.column_stack([points, np.zeros(len(points))]), face.triangles, (cells, cells))
    layout = raster.triangle >= 0
    distance, nearest = ndimage.distance_transform_edt(~layout, return_indices=True)
    triangle = raster.triangle[tuple(nearest)]
    corners = face.triangles[triangle]
    barycentric = np.where(
        (distance <= _EXTRAPOLATE_CELLS)[..., None],
        _barycentric(points[corners], np.indices((cells, cells))[::-1]),
        raster.barycentric[tuple(nearest)],
    )
    count = cells * cells
    weights = sparse.csr_array(
        (
            barycentric.astype(np.float32).ravel(),
            corners.astype(np.int32).ravel(),
            np.arange(0, 3 * count + 1, 3, dtype=np.int32),
        ),
        shape=(count, len(points)),
    )
    a, b, c = np.moveaxis(points[face.triangles], 1, 0)
    area = 0.5 * np.abs(_cross(b - a, c - a)).sum()
    painted = (distance <= _EXTRAPOLATE_CELLS).astype(np.float32)
    painted = painted.reshape(cells // 2, 2, cells // 2, 2).max((1, 3))
    painted = np.maximum(painted, painted[:, ::-1])  # the layout is symmetric to a cell; this makes it exact
    return TexelMap(step, cells, weights, painted, float(area))


@lru_cache(maxsize=8)
def layout_mask(size_px: int) -> NDArray[np.uint8]:
    """Return UINT8 [size_px,size_px], 255 in the UV layout and 0 outside: the polygon of the face oval, read-only."""
    fraction_bits = 8
    mask = np.zeros((size_px, size_px), np.uint8)
    oval = np.rint(layout_points(size_px)[_boundary_loop(canonical_face().triangles)] * 2**fraction_bits)
    cv2.fillPoly(mask, [oval.astype(np.int32)], 255, shift=fraction_bits)
    mask.setflags(write=False)
    return mask


def layout_points(size_px: int) -> NDArray[np.float64]:
    """Return FP64 [468,2]: the vertices in a texture of size_px texels, x right, y down, texel centres at integers."""
    return canonical_face().uv.astype(np.float64) * [size_px, -size_px] + [-0.5, size_px - 0.5]


def _boundary_loop(triangles: NDArray[np.int32]) -> list[int]:
    """Return the vertices of a disc's boundary in order: the edges that one triangle only has."""
    edges = {(int(a), int(b)) for corners in triangles for a, b in zip(corners, np.roll(corners, -1), strict=True)}
    following = {a: b for a, b in edges if (b, a) not in edges}
    loop = [next(iter(following))]
    while (vertex := following[loop[-1]]) != loop[0]:
        loop.append(vertex)
    return loop


def _barycentric(corners: NDArray[np.float64], at: NDArray[np.int64]) -> NDArray[np.float64]:
    """Barycentric weights [...,3] of the points at [2,...] in triangles [...,3,2]; negative outside."""
    a, b, c = np.moveaxis(corners, -2, 0)
    point = np.moveaxis(at, 0, -1) - a
    area = _cross(b - a, c - a)
    second, third = _cross(point, c - a) / area, _cross(b - a, point) / area
    return np.stack([1 - second - third, second, third], -1)


def _cross(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    product: NDArray[np.float64] = a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]
    return product
