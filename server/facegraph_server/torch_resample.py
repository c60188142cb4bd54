"""Detector views, face crops and texture samples from a frame in a fixed buffer, as torch functions of fixed shape.

Inside the CUDA graph. What OpenCV does in ``detector_views``, ``face_crop`` and ``texture`` is done here to the same
fixed-point rounding, so that both paths see the same pixels. How far a picture is averaged down depends on the frame
and on the face; one summed-area table makes that a fixed number of reads a pixel, whatever the factor.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from facegraph_server.contract import DETECTOR_SIZE_PX, MESH_SIZE_PX
from facegraph_server.detector_views import LAST_REDUCTION
from facegraph_server.face_crop import ALIASING_FACTOR

# OpenCV's fixed-point formats: 11 bits for the weights of a resize; for a warp, 10 bits of a coordinate, of which 5 are
# left to choose the weights of the four neighbours.
_RESIZE_ONE = 2048.0
_WARP_ONE = 1024.0
_WARP_STEPS = 32


class SummedArea(NamedTuple):
    """Sums of the pixels left of and above each corner between pixels.

    Attributes:
        sums: INT32 [(W+1)*(H+1),3], the corner (x, y) in row ``x * stride + y``. It may wrap around: differences of
            up to 8 megapixels are right all the same.
        stride: H+1.

    """

    sums: Tensor
    stride: int


def summed_area(frame_rgb: Tensor) -> SummedArea:
    """Sum up a frame, UINT8 [H,W,3].

    Along rows, then, transposed, along columns: both scans then run over neighbouring memory.
    """
    planes = frame_rgb.permute(2, 0, 1).to(torch.int32)
    along_x = functional.pad(planes.cumsum(2, dtype=torch.int32), (1, 0))
    along_y = functional.pad(along_x.transpose(1, 2).contiguous().cumsum(2, dtype=torch.int32), (1, 0))
    return SummedArea(along_y.permute(1, 2, 0).reshape(-1, 3), along_y.shape[2])


def render_views(table: SummedArea, size_wh: Tensor, views: Tensor) -> Tensor:
    """Scale each view to the detector's input, as :func:`facegraph_server.detector_views.render_views` does.

    Args:
        table: the frame's sums.
        size_wh: FP64 [2], width and height of the picture inside the frame's buffer.
        views: FP64 [V,3] left, top, side.

    Returns:
        UINT8 [V,192,192,3].

    """
    start, side = views[:, :2], views[:, 2:]
    scale = DETECTOR_SIZE_PX / side
    low = start.round().clamp(min=0)
    high = torch.minimum((start + side).round(), size_wh)
    target_low = ((low - start) * scale).round().clamp(0, DETECTOR_SIZE_PX - 1)
    target_high = torch.maximum(((high - start) * scale).round(), target_low + 1).clamp(max=DETECTOR_SIZE_PX)
    target, source = target_high - target_low, high - low
    factor = ((source / target).amin(1, keepdim=True) / LAST_REDUCTION).floor().clamp(min=1)
    blocks = (source / factor).floor()

    place = torch.arange(DETECTOR_SIZE_PX, dtype=torch.float64, device=views.device) - target_low[:, :, None]
    shown = (place >= 0) & (place < target[:, :, None])  # [V,2,192], x and y
    position = ((place + 0.5) * (1 / (target / blocks))[:, :, None] - 0.5).float()
    index = position.floor()
    weight = position - index
    last = (blocks - 1).float()[:, :, None]
    # OpenCV pins the weight at the left and right border and only the row at the upper and lower one.
    pinned = ((index < 0) | (index >= last))[:, :1]
    weight = torch.cat([weight[:, :1].masked_fill(pinned, 0), weight[:, 1:]], 1)
    pair = torch.stack([index, index + 1], 2)  # [V,2,2,192]
    pair = torch.minimum(pair.clamp(min=0), last[:, :, None])
    pair_weight = (torch.stack([1 - weight, weight], 2) * _RESIZE_ONE).round().to(torch.int32)

    edge = (low[:, :, None, None] + pair.double() * factor[:, :, None, None]).to(torch.int64)
    means = _block_means(table, edge, factor.to(torch.int64))  # [V,2,192,2,192,3], rows first
    a, b = pair_weight[:, 0, :, :, None], pair_weight[:, 1, :, :, None, None]
    rows = means[:, :, :, 0] * a[:, None, None, 0] + means[:, :, :, 1] * a[:, None, None, 1]
    mixed = ((b[:, 0] * (rows[:, 0] >> 4)) >> 16) + ((b[:, 1] * (rows[:, 1] >> 4)) >> 16)
    inside = shown[:, 1, :, None] & shown[:, 0, None, :]
    return (((mixed + 2) >> 2).clamp(0, 255) * inside[..., None]).to(torch.uint8)


def _block_means(table: SummedArea, low: Tensor, factor: Tensor) -> Tensor:
    """Return the rounded means of square blocks at all pairs of the columns and rows that start at ``low``.

    Args:
        table: the frame's sums.
        low: INT64 [V,2,2,192], x and y.
        factor: INT64 [V,1], side of the blocks.

    Returns:
        INT32 [V,2,192,2,192,3], rows first.

    """
    side = factor[:, :, None]
    x, y = (low[:, axis].clamp(min=0) for axis in (0, 1))
    x, y = x[:, None, None] * table.stride, y[..., None, None]
    x_end, y_end = x + (side * table.stride)[..., None, None], y + side[..., None, None]

    def at(column: Tensor, row: Tensor) -> Tensor:
        index = column + row
        return table.sums.index_select(0, index.reshape(-1)).reshape(*index.shape, 3)

    total = at(x_end, y_end) - at(x, y_end) - at(x_end, y) + at(x, y)
    factor = factor[:, :, None, None, None, None]
    mean = (total.float() * (1 / (factor * factor).double()).float()).round().to(torch.int32)
    return torch.where(factor == 2, (total + 2) >> 2, mean)  # noqa: PLR2004  OpenCV halves with this rounding


def crop_regions(table: SummedArea, size_wh: Tensor, roi: Tensor) -> Tensor:
    """Cut upright crops out of the picture, as :func:`facegraph_server.face_crop.crop_faces` does.

    Args:
        table: the frame's sums.
        size_wh: FP64 [2].
        roi: FP32 [N,4] centre x, centre y, side, rotation.

    Returns:
        UINT8 [N,192,192,3].

    """
    origin, cells, cell_px, inverse = _warp(size_wh, roi)
    steps = torch.arange(MESH_SIZE_PX, dtype=torch.float64, device=roi.device)
    along_x = (inverse[:, :, :1] * steps * _WARP_ONE).round()  # [N,2,192]
    along_y = ((inverse[:, :, 1:2] * steps + inverse[:, :, 2:]) * _WARP_ONE).round() + _WARP_ONE / _WARP_STEPS / 2
    place = ((along_y[:, :, :, None] + along_x[:, :, None, :]).to(torch.int64)) >> 5  # [N,2,192,192]
    index, step = place >> 5, (place & (_WARP_STEPS - 1)).to(torch.int32)
    last = (cells - 1).to(torch.int64)[:, :, None, None]
    first_cell = torch.minimum(index.clamp(min=0), last)
    second_cell = torch.minimum((index + 1).clamp(min=0), last)
    step = step * (second_cell > first_cell)  # both the same cell: the second has no weight, and no area below

    lines = torch.stack([first_cell, first_cell + 1, second_cell + 1], -1).double()
    lines = origin[:, :, None, None, None] + lines * cell_px[:, :, None, None, None]  # [N,2,192,192,3]
    lines = torch.minimum(lines, size_wh[None, :, None, None, None])
    means = _cell_means(table, lines, cell_px.prod(1).float())  # [N,192,192,2,2,3], rows first
    x, y = step[:, 0, :, :, None], step[:, 1, :, :, None]
    upper = means[..., 0, 0, :] * (_WARP_STEPS - x) + means[..., 0, 1, :] * x
    lower = means[..., 1, 0, :] * (_WARP_STEPS - x) + means[..., 1, 1, :] * x
    mixed = upper * (_WARP_STEPS - y) + lower * y
    return ((mixed + _WARP_STEPS * _WARP_STEPS // 2) >> 10).to(torch.uint8)


def _warp(size_wh: Tensor, roi: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return how crops read the picture: origin [N,2], cells [N,2], px a cell [N,2], crop-to-cell matrices [N,2,3]."""
    centre, side = roi[:, :2].double(), roi[:, 2:3].double()
    large = side > ALIASING_FACTOR * MESH_SIZE_PX
    reach = side * 0.75
    low = torch.minimum((centre - reach).floor().clamp(min=0), size_wh - 2)
    high = torch.minimum(torch.maximum((centre + reach).ceil(), low + 2), size_wh)
    shrunk = ((high - low) / (side / (ALIASING_FACTOR * MESH_SIZE_PX)).clamp(min=1)).round().clamp(min=1)

    origin = torch.where(large, low, torch.zeros_like(low))
    cells = torch.where(large, shrunk, size_wh.expand_as(shrunk))
    cell_px = torch.where(large, (high - low) / shrunk, torch.ones_like(shrunk))
    centre = torch.where(large, (centre - origin + 0.5) / cell_px - 0.5, centre)
    side = side / cell_px.mean(1, keepdim=True)

    scale = MESH_SIZE_PX / side.clamp(min=1)
    cosine, sine = roi[:, 3:].cos().double() * scale, roi[:, 3:].sin().double() * scale
    x, y = centre[:, :1], centre[:, 1:]
    offset_x = MESH_SIZE_PX / 2 - (cosine * x + sine * y)
    offset_y = MESH_SIZE_PX / 2 - (cosine * y - sine * x)
    # The inverse of [[cosine, sine, offset_x], [-sine, cosine, offset_y]].
    cosine, sine = cosine / (scale * scale), sine / (scale * scale)
    first = torch.cat([cosine, -sine, sine * offset_y - cosine * offset_x], 1)
    second = torch.cat([sine, cosine, -sine * offset_x - cosine * offset_y], 1)
    return origin, cells, cell_px, torch.stack([first, second], 1)


def _cell_means(table: SummedArea, lines: Tensor, area_px: Tensor) -> Tensor:
    """Return the rounded means of the 2x2 cells between three columns and three rows, at each pixel of each crop.

    A sum up to a fractional place is the linear mix of the sums at the corners around it: exact, since a pixel is flat.

    Args:
        table: the frame's sums.
        lines: FP64 [N,2,192,192,3] px, x and y.
        area_px: FP32 [N], area of a cell.

    Returns:
        INT32 [N,192,192,2,2,3], rows first.

    """
    below = lines.floor()
    part = (lines - below).float()
    corner = torch.stack([below, lines.ceil()], -1).to(torch.int64)  # [N,2,192,192,3,2]
    x = corner[:, 0, :, :, None, None] * table.stride
    y = corner[:, 1][..., None, None]
    index = x + y  # [N,192,192,3,2,3,2], rows first
    sums = table.sums.index_select(0, index.reshape(-1)).reshape(*index.shape, 3)
    # Relative to one corner the sums are small: FP32 holds them exactly.
    near = (sums - sums[:, :, :, :1, :1, :1, :1]).float()
    part_x, part_y = part[:, 0, :, :, None, None, :, None], part[:, 1, :, :, :, None, None]
    near = torch.lerp(near[..., 0, :], near[..., 1, :], part_x)  # [N,192,192,3,2,3,3]
    near = torch.lerp(near[:, :, :, :, 0], near[:, :, :, :, 1], part_y)  # [N,192,192,3,3,3]
    rows = near[:, :, :, 1:] - near[:, :, :, :-1]
    cells = rows[..., 1:, :] - rows[..., :-1, :]
    mean = cells / area_px[:, None, None, None, None, None]
    halved = (area_px == 4)[:, None, None, None, None, None]  # noqa: PLR2004  OpenCV halves with its own rounding
    return torch.where(halved, (mean + 0.5).floor(), mean.round()).to(torch.int32)


class Region(NamedTuple):
    """A part of the picture that is read by cells, each the mean of the pixels under it.

    Attributes:
        low: FP64 [2] px, the part's upper left corner.
        cells: FP64 [2], how many cells it has in x and y.
        cell_px: FP64 [2], a cell's width and height.

    """

    low: Tensor
    cells: Tensor
    cell_px: Tensor


def reduce_region(table: SummedArea, size_wh: Tensor, region: Region, most_cells: tuple[int, int]) -> Tensor:
    """Average a region down to its cells: OpenCV's INTER_AREA.

    Args:
        table: the frame's sums.
        size_wh: FP64 [2].
        region: no more cells than ``most_cells``.
        most_cells: width M and height N of the result.

    Returns:
        UINT8 [M,N,3], x first. What lies beyond the region's cells has no meaning.

    """
    index = torch.arange(max(most_cells) + 1, dtype=torch.float64, device=size_wh.device)
    line = region.low[:, None] + torch.minimum(index, region.cells[:, None]) * region.cell_px[:, None]
    line = torch.minimum(line, size_wh[:, None])
    below = line.floor()
    part = (line - below).float()
    below, above = below.to(torch.int64), line.ceil().to(torch.int64)
    columns, rows = most_cells[0] + 1, most_cells[1] + 1

    sums = table.sums.reshape(-1, table.stride, 3)
    left = sums.index_select(0, below[0, :columns])
    rest = (sums.index_select(0, above[0, :columns]) - left).float() * part[0, :columns, None, None]
    strip = left.diff(dim=0).float() + rest.diff(dim=0)  # [M,H+1,3]: sums of a strip, small enough for FP32
    upper, lower = strip.index_select(1, below[1, :rows]), strip.index_select(1, above[1, :rows])
    area_px = region.cell_px.prod().float()
    mean = torch.lerp(upper, lower, part[1, :rows, None]).diff(dim=1) / area_px
    halved = area_px == 4  # noqa: PLR2004  OpenCV halves with its own rounding
    return torch.where(halved, (mean + 0.5).floor(), mean.round()).clamp(0, 255).to(torch.uint8)


def sample_region(pixels: Tensor, region: Region, places: Tensor) -> Tensor:
    """Sample a reduced region bilinearly, to 1/32 cell as OpenCV does; beyond its border the last cells go on.

    Args:
        pixels: UINT8 [M,N,3], see :func:`reduce_region`.
        region: the same.
        places: FP32 [2,K,L], x and y in cells of the region, cell centres at integers.

    Returns:
        INT32 [K,L,3], 0..255.

    """
    most = 2.0**20  # keeps a place that is far outside within INT32
    place = (places.clamp(-most, most) * _WARP_STEPS).round().to(torch.int32)
    index, step = place >> 5, (place & (_WARP_STEPS - 1))[..., None]
    pair = torch.stack([index, index + 1], 1).clamp(min=0)  # [2,2,K,L]
    pair = torch.minimum(pair, (region.cells - 1).to(torch.int32)[:, None, None, None])
    columns, rows = pair[0] * pixels.shape[1], pair[1]
    flat = pixels.reshape(-1, 3)

    def at(x: int, y: int) -> Tensor:
        cell = columns[x] + rows[y]
        return flat.index_select(0, cell.reshape(-1)).reshape(*cell.shape, 3).to(torch.int32)

    upper = at(0, 0) * (_WARP_STEPS - step[0]) + at(1, 0) * step[0]
    lower = at(0, 1) * (_WARP_STEPS - step[0]) + at(1, 1) * step[0]
    mixed = upper * (_WARP_STEPS - step[1]) + lower * step[1]
    return (mixed + _WARP_STEPS * _WARP_STEPS // 2) >> 10
