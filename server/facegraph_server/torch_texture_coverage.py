"""How well a photo shows each part of the face, as torch functions of fixed shape.

Inside the CUDA graph. The arithmetic is that of ``texture_coverage``. Its depth raster draws the pixels of each
triangle; here every triangle meets every pixel of the raster, because how many pixels a triangle has is a value.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from facegraph_client import canonical_face
from torch import Tensor, nn
from torch.nn import functional

from facegraph_server.contract import VERTICES
from facegraph_server.texture_coverage import (
    _EDGE_ON_COSINE,
    _FEW_TEXELS,
    _FULL_COSINE,
    _NEAR_RIM,
    _RASTER_PX,
    _RIM,
    _STEEPEST,
    _TOLERANCE,
)

_RASTER_ORIGIN_PX = 2
_RASTER_SIDE_PX = _RASTER_PX + 2 * _RASTER_ORIGIN_PX + 2  # beyond the face's last pixel there are always empty ones
_NOTHING = 1e9  # depth of a pixel that no triangle covers

# As the rasteriser has them: what is thinner is not drawn, and a pixel on an edge belongs to both sides.
_AREA_EPSILON = 1e-9
_EDGE_EPSILON_PX = 1e-7

# The chamfer distance of OpenCV's DIST_L2 with a 3x3 mask (Borgefors, "Distance transformations in digital images",
# 1986): what a step costs along a row or a column, and what a diagonal one costs.
_STRAIGHT_STEP, _DIAGONAL_STEP = 0.955, 1.3693
_SWEEP_PX = 7
_SWEEPS = 2  # exact up to 14 steps of 0.955; from 1 + _RIM + _NEAR_RIM = 11.5 on, the distance makes no difference


class Surface(NamedTuple):
    """What is known of a face's triangles.

    Attributes:
        points: FP32 [468,3] landmarks, smaller z nearer.
        front: BOOL [898], whether a triangle faces the viewer.
        cosine: FP32 [468], see :func:`facegraph_server.texture_coverage.surface_cosine`.
        front_area: FP32 [], see :func:`facegraph_server.texture_coverage.front_area`.

    """

    points: Tensor
    front: Tensor
    cosine: Tensor
    front_area: Tensor


class SurfaceCoverage(nn.Module):
    """The functions of ``texture_coverage`` that need the mesh, with its constants as buffers."""

    triangles: Tensor
    vertex_triangles: Tensor
    step_cost: Tensor

    def __init__(self) -> None:
        super().__init__()
        triangles = canonical_face().triangles
        incidence = np.zeros((VERTICES, len(triangles)), np.float32)
        incidence[triangles, np.arange(len(triangles))[:, None]] = 1
        away = np.abs(np.arange(-_SWEEP_PX, _SWEEP_PX + 1))
        diagonal, longer = np.minimum.outer(away, away), np.maximum.outer(away, away)
        cost = _DIAGONAL_STEP * diagonal + _STRAIGHT_STEP * (longer - diagonal)
        self.register_buffer("triangles", torch.from_numpy(triangles.T.astype(np.int64).ravel()))
        self.register_buffer("vertex_triangles", torch.from_numpy(incidence))
        self.register_buffer("step_cost", torch.from_numpy(cost.astype(np.float32)))

    def surface(self, points: Tensor) -> Surface:
        """Measure the triangles of FP32 [468,3] landmarks."""
        a, b, c = self._corners(points)
        normals = torch.linalg.cross(b - a, c - a)
        vertex_normals = self.vertex_triangles @ normals
        cosine = -vertex_normals[:, 2] / vertex_normals.square().sum(1).sqrt().clamp(min=1e-12)
        facing = -normals[:, 2]
        return Surface(points, facing > 0, cosine, facing.clamp(min=0).sum() / 2)

    def coverage_of_cells(self, surface: Surface, cells: Tensor, size_wh: Tensor) -> tuple[Tensor, Tensor]:
        """Tell how well the photo shows each cell, and which cells lie at the silhouette.

        The same as :func:`facegraph_server.texture_coverage.coverage_of_cells`.

        Args:
            surface: see :meth:`surface`.
            cells: FP32 [4,N,N]: the points (x, y, z) and their cosine interpolated to the cells.
            size_wh: FP64 [2], the photo's width and height in px.

        Returns:
            FP32 [N,N] coverage in 0..1, and FP32 [N,N], 1 at the silhouette, 0 well inside.

        """
        x, y, z, cosine = cells
        points = surface.points
        origin = points[:, :2].amin(0)
        height_px = (points[:, :2].amax(0) - origin).amax().clamp(min=1)
        scale = _RASTER_PX / height_px
        flat = (points[:, :2] - origin) * scale + _RASTER_ORIGIN_PX
        depth = self._depth_raster(torch.cat([flat, points[:, 2:]], 1), surface.front)
        nearest = _least_of_neighbours(depth)  # what is close beside an occluder counts as hidden

        at = (cells[:2] - origin[:, None, None]) * scale + _RASTER_ORIGIN_PX
        at = at.clamp(0, _RASTER_SIDE_PX - 1)  # there the raster is empty, as it is further out
        column, row = at.round().to(torch.int64)
        in_front = nearest.reshape(-1)[row * _RASTER_SIDE_PX + column]
        rim = _sample_plane(self._from_rim(depth < _NOTHING), at)

        slope = (1 - cosine * cosine).clamp(min=0).sqrt() / cosine.clamp(min=1 / _STEEPEST)
        tolerance = _TOLERANCE * height_px + slope * (2 / scale)
        visible = (2 - (z - in_front) / tolerance).clamp(0, 1)
        width, height = size_wh.float()
        inside = torch.minimum(torch.minimum(x, width - 1 - x), torch.minimum(y, height - 1 - y))
        coverage = smoothstep((cosine - _EDGE_ON_COSINE) / (_FULL_COSINE - _EDGE_ON_COSINE))
        coverage = coverage * visible * smoothstep((rim - 1) / _RIM) * (inside * (scale / 2)).clamp(0, 1)
        smooth = _mean_of_neighbours(_least_of_neighbours(coverage))
        return smooth, 1 - smoothstep((rim - 1 - _RIM) / _NEAR_RIM)

    def _corners(self, points: Tensor) -> Tensor:
        """Return the triangles' corners, [3,898,3]: first, second and third."""
        return points.index_select(0, self.triangles).reshape(3, -1, 3)

    def _depth_raster(self, points: Tensor, front: Tensor) -> Tensor:
        """Draw the triangles marked in ``front``: FP32 [S,S], the smallest z at every pixel, 1e9 where there is none.

        The same pixels as :func:`facegraph_client.rasterize` covers, in spans too: one for each triangle and row.
        """
        x, y, z = self._corners(points).double().movedim(2, 0).transpose(1, 2)  # each [898,3]
        area = (x[:, 1] - x[:, 0]) * (y[:, 2] - y[:, 0]) - (y[:, 1] - y[:, 0]) * (x[:, 2] - x[:, 0])
        drawn = front & (area.abs() > _AREA_EPSILON)
        area = torch.where(drawn, area, torch.ones_like(area))
        slope_x = (_next(y) - _last(y)).mul(z).sum(1) / area
        slope_y = (_last(x) - _next(x)).mul(z).sum(1) / area
        at_zero = (_next(x) * _last(y) - _last(x) * _next(y)).mul(z).sum(1) / area

        row = torch.arange(_RASTER_SIDE_PX, dtype=torch.float64, device=points.device)
        left, right = _span_ends(x[:, None], y[:, None], row[:, None])
        start = (left - _EDGE_EPSILON_PX).clamp(0, _RASTER_SIDE_PX).ceil()  # [898,S]
        end = (right + _EDGE_EPSILON_PX).clamp(-1, _RASTER_SIDE_PX - 1).floor().masked_fill(~drawn[:, None], -1)
        at_start = slope_x[:, None] * start + slope_y[:, None] * row + at_zero[:, None]

        # Relative to the span's start: so FP32 holds even a sliver's depth, steep as it is, for its spans are short.
        column = row.float()
        along = column - start.float()[..., None]  # [898,S,S]
        covered = (along >= 0) & (column <= end.float()[..., None])
        depth = torch.addcmul(at_start.float()[..., None], along, slope_x.float()[:, None, None])
        return depth.masked_fill(~covered, _NOTHING).amin(0)

    def _from_rim(self, covered: Tensor) -> Tensor:
        """Return FP32 [S,S]: the chamfer distance of each pixel to the nearest one that is not covered."""
        distance = covered.float() * _NOTHING
        side = 2 * _SWEEP_PX + 1
        for _ in range(_SWEEPS):
            windows = functional.pad(distance, (_SWEEP_PX,) * 4).unfold(0, side, 1).unfold(1, side, 1)
            distance = (windows + self.step_cost).amin((-2, -1))
        return distance


def resolved(cells: Tensor, cell_px: Tensor) -> Tensor:
    """Return FP32 [C,C] in 0..1: 0 where the layout has far too few texels to hold what the photo shows.

    The same as :func:`facegraph_server.texture_coverage.resolved`.

    Args:
        cells: FP32 [2,C,C], the cells' places in the photo.
        cell_px: FP32 [], the usual distance between them.

    """
    across = cells.diff(dim=2).square().sum(0)
    down = cells.diff(dim=1).square().sum(0)
    square = torch.stack(
        [
            functional.pad(across, (1, 0)),
            functional.pad(across, (0, 1)),
            functional.pad(down, (0, 0, 1, 0)),
            functional.pad(down, (0, 0, 0, 1)),
        ]
    ).amax(0)
    return 1 - _mean_of_neighbours(smoothstep((square.sqrt() / cell_px - _FEW_TEXELS) / _FEW_TEXELS))


def smoothstep(x: Tensor) -> Tensor:
    """Rise smoothly from 0 at x <= 0 to 1 at x >= 1."""
    x = x.clamp(0, 1)
    return x * x * (3 - 2 * x)


def _span_ends(x: Tensor, y: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    """Where the line y = row enters and leaves each triangle; x and y are [898,1,3] corners, the row is [S,1]."""
    x_next, y_next = _next(x), _next(y)
    low_y, high_y = torch.minimum(y, y_next) - _EDGE_EPSILON_PX, torch.maximum(y, y_next) + _EDGE_EPSILON_PX
    crosses = (low_y <= row) & (row <= high_y)
    rise = y_next - y
    flat = rise.abs() <= _EDGE_EPSILON_PX
    along = ((row - y) / rise.masked_fill(flat, 1)).clamp(0, 1)
    at = x + along * (x_next - x)
    low, high = torch.where(flat, torch.minimum(x, x_next), at), torch.where(flat, torch.maximum(x, x_next), at)
    return low.masked_fill(~crosses, torch.inf).amin(-1), high.masked_fill(~crosses, -torch.inf).amax(-1)


def _next(corners: Tensor) -> Tensor:
    return corners.roll(-1, -1)


def _last(corners: Tensor) -> Tensor:
    return corners.roll(1, -1)


def _sample_plane(plane: Tensor, at: Tensor) -> Tensor:
    """Sample a square FP32 plane [S,S] bilinearly at FP32 [2,N,N] places inside it, to 1/32 px as OpenCV does."""
    side = len(plane)
    place = (at * 32).round() / 32
    low = place.floor().clamp(max=side - 2)
    x, y = place - low
    column, row = low.to(torch.int64)
    flat, index = plane.reshape(-1), row * side + column
    upper = torch.lerp(flat[index], flat[index + 1], x)
    lower = torch.lerp(flat[index + side], flat[index + side + 1], x)
    return torch.lerp(upper, lower, y)


def _least_of_neighbours(plane: Tensor) -> Tensor:
    """Return the least of each pixel and its 8 neighbours in a plane [N,N]."""
    return -functional.max_pool2d(-plane[None], 3, 1, 1)[0]


def _mean_of_neighbours(plane: Tensor) -> Tensor:
    """Return the mean of each pixel and its 8 neighbours in a plane [N,N], mirrored at the border."""
    return functional.avg_pool2d(functional.pad(plane[None], (1,) * 4, mode="reflect"), 3, 1)[0]
