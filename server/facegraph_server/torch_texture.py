"""The face's UV texture as a torch function of fixed shape: the twin of ``texture``.

Inside the CUDA graph. What ``texture`` leaves out because the face does not need it (strips without detail, triangles
that face away, a photo that need not be reduced) is computed here all the same and masked, so the work is the same for
every face, and the memory that of the largest.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from facegraph_server.contract import DEFAULT_TEXTURE_SIZE_PX
from facegraph_server.texel_map import layout_mask, texel_map
from facegraph_server.texture import _FINEST_FOOTPRINT_PX
from facegraph_server.torch_resample import Region, SummedArea, reduce_region, sample_region, summed_area
from facegraph_server.torch_texture_coverage import SurfaceCoverage, resolved
from facegraph_server.torch_texture_fill import TextureFill, TorchFill, area_weights, enlarge

_MOST_COORDINATE_PX = 1e6  # what is not a number, or further away, must not become an address
_BUFFER_CELLS = 2  # for each sample, along a side; a face just too small to be reduced has some 1.7 pixels for each


class FaceUnwrapper(nn.Module):
    """Unwraps faces of a frame: a :data:`facegraph_server.torch_frame.TextureFunction`.

    The constants of the default size are buffers, so that a CUDA graph may keep their addresses. Those of any other
    size are made for each call.
    """

    def __init__(self) -> None:
        super().__init__()
        self.default = SizedUnwrapper(DEFAULT_TEXTURE_SIZE_PX)

    def forward(self, frame: Tensor, size_wh: Tensor, landmarks: Tensor, size_px: int) -> tuple[Tensor, Tensor]:
        """Unwrap the faces of a frame, see :func:`facegraph_server.texture.unwrap_texture`.

        Nothing is refused: landmarks without extent, or that are not numbers, give a texture without meaning.

        Args:
            frame: UINT8 [H,W,3], a buffer that holds the photo in its upper left corner.
            size_wh: INT32 [2], the photo's width and height.
            landmarks: FP32 [n,468,3] px of the photo, smaller z nearer; n at least 1.
            size_px: side T of the textures in texels. Only T = 1024 can be captured.

        Returns:
            UINT8 [n,T,T,3] textures and UINT8 [n,T,T] coverage.

        """
        if size_px == DEFAULT_TEXTURE_SIZE_PX:
            return self.default(frame, size_wh, landmarks)  # type: ignore[no-any-return]
        return SizedUnwrapper(size_px).to(frame.device)(frame, size_wh, landmarks)  # type: ignore[no-any-return]


class SizedUnwrapper(nn.Module):
    """Unwraps faces into textures of one size.

    Args:
        size_px: side T of the textures in texels.

    """

    corners: Tensor
    weights: Tensor
    mask: Tensor
    area_index: Tensor
    area_weight: Tensor

    def __init__(self, size_px: int) -> None:
        super().__init__()
        grid = texel_map(size_px)
        self.size_px, self._step, self._cells, self._area_cells = size_px, grid.step, grid.cells, grid.area_cells
        self._side = grid.cells * grid.step
        self.coverage = SurfaceCoverage()
        self.fill = TextureFill(grid.painted)
        self.register_buffer("corners", torch.from_numpy(grid.weights.indices.astype(np.int64)))
        self.register_buffer("weights", torch.from_numpy(grid.weights.data.reshape(-1, 3).copy()))
        self.register_buffer("mask", torch.from_numpy(layout_mask(size_px).copy()))
        scale = self._side / size_px
        taps = np.floor(np.arange(size_px) * scale)[:, None].astype(np.int64) + np.arange(3)
        self.register_buffer("area_index", torch.from_numpy(np.minimum(taps, self._side - 1)))
        self.register_buffer("area_weight", torch.from_numpy(area_weights(self._side, size_px, taps)).float())

    def forward(self, frame: Tensor, size_wh: Tensor, landmarks: Tensor) -> tuple[Tensor, Tensor]:
        """Unwrap the faces of a frame, see :meth:`FaceUnwrapper.forward`."""
        photo, table = size_wh.double(), summed_area(frame)
        known = landmarks.nan_to_num(0.0).clamp(-_MOST_COORDINATE_PX, _MOST_COORDINATE_PX)
        made = [self._unwrap(table, photo, points) for points in known]
        texture, coverage = zip(*made, strict=True)
        return torch.stack(texture), torch.stack(coverage)

    def _unwrap(self, table: SummedArea, size_wh: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
        """Unwrap one face, FP32 [468,3]."""
        surface = self.coverage.surface(points)
        attributes = torch.cat([points, surface.cosine[:, None]], 1)
        flat = (attributes.index_select(0, self.corners).reshape(-1, 3, 4) * self.weights[..., None]).sum(1)
        cells = flat.T.reshape(4, self._cells, self._cells)
        blocks = functional.avg_pool2d(cells, 2)
        cell_px = (surface.front_area.double().clamp(min=1) / self._area_cells).sqrt()

        coverage, near_rim = self.coverage.coverage_of_cells(surface, blocks, size_wh)
        colours = _sample_photo(table, size_wh, points, 2 * cell_px, blocks[:2], self._cells // 2)
        coverage = self.fill.doubt_background(colours, coverage, near_rim)
        fill = self.fill.plan_fill(colours, coverage)
        pixels = _sample_photo(table, size_wh, points, cell_px / self._step, cells[:2], self._side)
        texture = self._average(self._compose(pixels, fill))

        shown = enlarge(coverage[None] * 255, self._cells)[0] * resolved(cells[:2], cell_px.float())
        seen = enlarge(shown.round()[None], self.size_px)[0].round().to(torch.uint8)
        return texture.permute(1, 2, 0).to(torch.uint8), seen & self.mask

    def _compose(self, pixels: Tensor, fill: TorchFill) -> Tensor:
        """Mix the pixels FP32 [3,S,S], their mirror image and the spread colours: FP32 [3,S,S], whole numbers."""
        shares = enlarge(torch.stack([fill.photo, fill.mirror]), self._side)
        photo, mirror = shares[0], shares[1]
        share = photo + mirror
        matched = (pixels.flip(2) * enlarge(fill.gain, self._side)).round().clamp(max=255)
        mixed = ((pixels * photo + matched * mirror) / share.clamp(min=1e-5)).round()
        spread = enlarge(fill.spread, self._side).round()
        return torch.lerp(spread, mixed, share).round().clamp(0, 255)

    def _average(self, texture: Tensor) -> Tensor:
        """Average FP32 [3,S,S] down to [3,T,T]: the cells cover a little more than the texture's texels."""
        if self._side == self.size_px:
            return texture
        down = (texture[:, self.area_index] * self.area_weight[:, :, None]).sum(2)
        return (down[:, :, self.area_index] * self.area_weight).sum(3).round()


def _sample_photo(
    table: SummedArea, size_wh: Tensor, points: Tensor, footprint_px: Tensor, places: Tensor, side: int
) -> Tensor:
    """Sample the photo around a face, reduced by averaging where one sample stands for more than its pixel.

    Args:
        table: the frame's sums.
        size_wh: FP64 [2].
        points: FP32 [468,3] landmarks.
        footprint_px: FP64 [], side of what a sample stands for.
        places: FP32 [2,N,N] px of the photo, enlarged linearly to the samples.
        side: S, samples a side.

    Returns:
        FP32 [3,S,S], whole numbers 0..255.

    """
    width, height = len(table.sums) // table.stride - 1, table.stride - 1
    most = min(width, _BUFFER_CELLS * side), min(height, _BUFFER_CELLS * side)
    region = _region(size_wh, points, footprint_px, most)
    low, cell_px = region.low[:, None, None], region.cell_px[:, None, None]
    cells = ((places.double() + 0.5 - low) / cell_px - 0.5).float()  # pixel centres lie at integers before and after
    pixels = reduce_region(table, size_wh, region, most)
    return sample_region(pixels, region, enlarge(cells, side)).permute(2, 0, 1).float()


def _region(size_wh: Tensor, points: Tensor, footprint_px: Tensor, most_cells: tuple[int, int]) -> Region:
    """Return the part of the photo around a face, in cells as large as a sample where that is larger than a pixel."""
    around, footprint_px = points[:, :2].double(), footprint_px.clamp(min=1)
    margin = 2 + (2 * footprint_px).floor()
    low = torch.minimum((around.amin(0).floor() - margin).clamp(min=0), size_wh - 1)
    high = torch.minimum(torch.maximum(around.amax(0).ceil() + margin + 1, low + 1), size_wh)
    full = high - low
    reduction = torch.where(footprint_px > _FINEST_FOOTPRINT_PX, footprint_px, torch.ones_like(footprint_px))
    cells = (full / reduction).round().clamp(min=1)
    cells = torch.stack([cell.clamp(max=most) for cell, most in zip(cells, most_cells, strict=True)])
    return Region(low, cells, full / cells)
