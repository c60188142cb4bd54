"""The face's UV texture from the pixels of a photo.

Outside the CUDA graph: the face's size in the photo, what is hidden and so the work are different for every face.

The canonical mesh is one disc whose only boundary is the face oval: the openings of the eyes and of the mouth are
closed by triangles, and these are painted with what the photo shows there (eyeballs, teeth). A texture has no holes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any, NamedTuple

import cv2
import numpy as np
from facegraph_client import InputError
from numpy.typing import NDArray

from facegraph_server.contract import TEXTURE_SIZE_RANGE_PX
from facegraph_server.geometry import mesh_landmarks
from facegraph_server.texel_map import TexelMap, layout_mask, texel_map
from facegraph_server.texture_coverage import coverage_of_cells, front_area, resolved, surface_cosine
from facegraph_server.texture_fill import Fill, doubt_background, plan_fill

_STRIP_BLOCKS = 8  # rows of blocks made at a time: the strip's buffers stay in the processor's cache
_FINEST_FOOTPRINT_PX = 1.5  # a texel wider than this in the photo is an average, not a sample
_UNMIXED = 0.995


class _Photo(NamedTuple):
    """The part of a photo around a face, perhaps reduced.

    Attributes:
        pixels: UINT8 [h,w,3].
        place_of: FP64 [2,5], the affine map from a cell's (x, y, z, cosine) to its place in the pixels.

    """

    pixels: NDArray[np.uint8]
    place_of: NDArray[np.float64]


def unwrap_texture(
    image_rgb: NDArray[np.uint8], landmarks_px: NDArray[np.floating[Any]], size_px: int
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Unwrap the face in a photo into the canonical UV layout.

    What the photo shows is sampled from its own pixels. What it hides (turned away, behind the nose, outside the
    picture) is filled from the face's mirror image, matched in colour at the seam, and what neither side shows is
    inpainted smoothly. Texels outside the layout continue its rim, so that mipmaps and bilinear sampling bleed no
    foreign colour in.

    Args:
        image_rgb: UINT8 [H,W,3], the upright photo.
        landmarks_px: [468,3] or [478,3] (irises are ignored), px of the photo, smaller z nearer; also outside it.
        size_px: side T of the texture in texels.

    Returns:
        The texture, UINT8 [T,T,3] RGB, row 0 on top (v = 1); and its coverage, UINT8 [T,T]: how well the photo showed
        each texel, visibility times viewing angle, 255 where squarely seen, 0 where filled and outside the layout.
        It is 0 between open lips too: the layout has no room for what is there (see :func:`resolved`).

    Raises:
        InputError: the size is out of range, or the landmarks are not finite or have no extent.

    """
    points = mesh_landmarks(landmarks_px).astype(np.float32)
    _check(points, size_px)
    grid = texel_map(size_px)
    cells = grid.interpolate(np.column_stack([points, surface_cosine(points)]))
    blocks = cv2.resize(cells, (grid.cells // 2, grid.cells // 2), interpolation=cv2.INTER_AREA)
    cell_px = float(np.sqrt(front_area(points) / grid.area_cells))

    coverage, near_rim = coverage_of_cells(points, blocks, (image_rgb.shape[1], image_rgb.shape[0]))
    coarse = _photo_around(image_rgb, points, 2 * cell_px)
    colours = _sample(coarse.pixels, cv2.transform(blocks, coarse.place_of)).astype(np.float32)
    coverage = doubt_background(colours, coverage, near_rim)
    fill = plan_fill(colours, coverage, grid.painted)
    fine = _photo_around(image_rgb, points, cell_px / grid.step)
    texture = _compose(fine.pixels, cv2.transform(cells, fine.place_of), fill, grid)
    if len(texture) != size_px:
        texture = cv2.resize(texture, (size_px, size_px), interpolation=cv2.INTER_AREA)

    coverage = cv2.resize(coverage * 255, cells.shape[:2], interpolation=cv2.INTER_LINEAR) * resolved(cells, cell_px)
    seen = cv2.resize(np.rint(coverage).astype(np.uint8), texture.shape[:2], interpolation=cv2.INTER_LINEAR)
    return texture, cv2.bitwise_and(seen, layout_mask(size_px))


def _check(points: NDArray[np.float32], size_px: int) -> None:
    low, high = TEXTURE_SIZE_RANGE_PX
    if not low <= size_px <= high:
        raise InputError(f"the texture size must be {low} to {high} texels, not {size_px}")
    if np.ptp(points[:, :2], axis=0).min() < 1 or front_area(points) < 1:
        raise InputError("the face is less than one pixel wide or high, so it has no texture; detect the face again")


def _photo_around(image_rgb: NDArray[np.uint8], points: NDArray[np.float32], footprint_px: float) -> _Photo:
    """Crop the face, and reduce it by averaging where one sample stands for more than its pixel."""
    height, width = image_rgb.shape[:2]
    reduction = max(1.0, footprint_px)
    margin = 2 + int(2 * reduction)
    left, top = np.clip(np.floor(points[:, :2].min(0)).astype(int) - margin, 0, (width - 1, height - 1))
    right, bottom = np.clip(
        np.ceil(points[:, :2].max(0)).astype(int) + margin + 1, (left + 1, top + 1), (width, height)
    )
    crop = image_rgb[top:bottom, left:right]
    scale = np.ones(2)
    if reduction > _FINEST_FOOTPRINT_PX:
        full = np.array([right - left, bottom - top])
        reduced = np.maximum(np.rint(full / reduction), 1).astype(int)
        crop = cv2.resize(crop, (int(reduced[0]), int(reduced[1])), interpolation=cv2.INTER_AREA)
        scale = reduced / full
    offset = (0.5 - np.array([left, top])) * scale - 0.5  # pixel centres lie at integers before and after
    return _Photo(crop, np.hstack([np.diag(scale), np.zeros((2, 2)), offset[:, None]]))


def _sample(pixels: NDArray[np.uint8], places: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Sample pixels bilinearly at FP32 [N,M,2] places; beyond the border the last pixels go on."""
    fixed, fraction = cv2.convertMaps(places, None, cv2.CV_16SC2)
    colours: NDArray[np.uint8] = cv2.remap(pixels, fixed, fraction, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    return colours


def _compose(pixels: NDArray[np.uint8], places: NDArray[np.float32], fill: Fill, grid: TexelMap) -> NDArray[np.uint8]:
    """Make the texture strip by strip: the spread colours everywhere, and the pixels wherever they have a share."""
    block = 2 * grid.step
    side = grid.cells * grid.step
    texture: NDArray[np.uint8] = cv2.resize(fill.spread, (side, side), interpolation=cv2.INTER_LINEAR)
    detailed = fill.photo + fill.mirror > 0
    for top in range(0, len(detailed), _STRIP_BLOCKS):
        rows = slice(top, min(top + _STRIP_BLOCKS, len(detailed)))
        used = np.flatnonzero(detailed[rows].any(0))
        if not len(used):
            continue
        # Symmetric about the middle, so that the strip's mirror image is the strip itself turned round.
        first = max(0, min(int(used[0]), len(detailed) - 1 - int(used[-1])) - 1)
        columns = slice(first, len(detailed) - first)
        sampled = _sample(pixels, _enlarge(places, _scaled(rows, 2), _scaled(columns, 2), grid.step))
        out = texture[_scaled(rows, block), _scaled(columns, block)]
        for begin, end, mixed in _runs((fill.photo[rows, columns] < _UNMIXED).any(0), _STRIP_BLOCKS):
            texels = slice(begin * block, end * block)
            if mixed:
                _mix(out[:, texels], sampled, texels, fill, (rows, slice(first + begin, first + end)), block)
            else:
                out[:, texels] = sampled[:, texels]
    return texture


def _mix(
    out: NDArray[np.uint8], sampled: NDArray[np.uint8], texels: slice, fill: Fill, part: tuple[slice, slice], block: int
) -> None:
    """Mix pixels, their mirror image and the spread colours (already in out) for some columns of a strip, into out."""
    pixels = sampled[:, texels]
    share = photo = _enlarge(fill.photo, *part, block)
    if fill.mirror[part].max() > 0:
        mirror = _enlarge(fill.mirror, *part, block)
        mirrored = cv2.flip(sampled[:, sampled.shape[1] - texels.stop : sampled.shape[1] - texels.start], 1)
        matched = cv2.multiply(mirrored, _enlarge(fill.gain, *part, block), dtype=cv2.CV_8U)
        pixels = cv2.blendLinear(pixels, matched, photo, mirror)
        share = photo + mirror
    cv2.blendLinear(pixels, out, share, 1 - share, dst=out)


def _enlarge(grid: NDArray[np.float32], rows: slice, columns: slice, step: int) -> NDArray[np.float32]:
    """Enlarge a part of a grid linearly, exactly as it would come out of enlarging the whole."""
    top, left = max(rows.start - 1, 0), max(columns.start - 1, 0)
    part = grid[top : rows.stop + 1, left : columns.stop + 1]
    if step > 1:
        size = (part.shape[1] * step, part.shape[0] * step)
        part = cv2.resize(part, size, interpolation=cv2.INTER_LINEAR)
    y, x = (rows.start - top) * step, (columns.start - left) * step
    height, width = (rows.stop - rows.start) * step, (columns.stop - columns.start) * step
    return part[y : y + height, x : x + width]


def _scaled(part: slice, factor: int) -> slice:
    return slice(part.start * factor, part.stop * factor)


def _runs(flags: NDArray[np.bool_], tile: int) -> Iterator[tuple[int, int, bool]]:
    """Cut flags into tiles and join neighbours that agree: (begin, end, whether any flag of the tiles is set)."""
    starts = np.arange(0, len(flags), tile)
    for value, run in groupby(
        zip(np.logical_or.reduceat(flags, starts), starts, strict=True), key=lambda pair: pair[0]
    ):
        begins = [int(start) for _, start in run]
        yield begins[0], min(begins[-1] + tile, len(flags)), bool(value)
