"""What takes the place of the parts of a face that the photo does not show, as torch functions of fixed shape.

Inside the CUDA graph. The arithmetic is that of ``texture_fill``, whose terms are used here.
"""

from __future__ import annotations

from typing import NamedTuple

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from facegraph_server.texture_fill import (
    _DEPARTURE,
    _DOUBTED,
    _LEVEL,
    _MATCH_BLOCKS,
    _SEEN,
    _STRONGEST_MATCH,
    _SURE,
    _TRUSTED,
)
from facegraph_server.torch_texture_coverage import smoothstep

_MATCH_SIGMA, _MATCH_TAPS = 0.7, 7  # as many taps as OpenCV takes for this sigma


class TorchFill(NamedTuple):
    """What the texture is mixed of, see :class:`facegraph_server.texture_fill.Fill`.

    Attributes:
        photo: FP32 [B,B].
        mirror: FP32 [B,B].
        gain: FP32 [3,B,B].
        spread: FP32 [3,B,B], whole numbers 0..255.

    """

    photo: Tensor
    mirror: Tensor
    gain: Tensor
    spread: Tensor


class TextureFill(nn.Module):
    """The functions of ``texture_fill`` for one size of the blocks' grid, with its constants as buffers.

    Args:
        painted: FP32 [B,B], 1 where the block belongs to the layout or touches it.

    """

    painted: Tensor
    match_blur: Tensor

    def __init__(self, painted: NDArray[np.float32]) -> None:
        super().__init__()
        blocks = len(painted)
        self._match_blocks = min(_MATCH_BLOCKS, blocks)
        self.register_buffer("painted", torch.from_numpy(painted.copy()))
        # Blurring each column of the identity gives the blur as a matrix, with what happens at the border.
        identity = np.eye(self._match_blocks, dtype=np.float32)
        blur = cv2.GaussianBlur(identity, (1, _MATCH_TAPS), _MATCH_SIGMA)
        self.register_buffer("match_blur", torch.from_numpy(blur))
        for source, target in {
            (blocks, self._match_blocks),
            *_halvings(blocks),
            *_halvings(self._match_blocks),
        }:
            if source % target:
                matrix = torch.from_numpy(area_weights(source, target, np.arange(source)))
                self.register_buffer(_area_name(source, target), matrix.float())

    def doubt_background(self, colours: Tensor, coverage: Tensor, near_rim: Tensor) -> Tensor:
        """Return the coverage, FP32 [B,B], less where colours at the silhouette do not go on with those of the face.

        The same as :func:`facegraph_server.texture_fill.doubt_background`.

        Args:
            colours: FP32 [3,B,B], 0..255.
            coverage: FP32 [B,B] in 0..1.
            near_rim: FP32 [B,B], 1 at the silhouette.

        """
        sure = smoothstep((coverage - _SURE) / (1 - _SURE)) * (1 - near_rim)
        departure = (colours - self._push_pull(sure * colours, sure)).abs().amax(0)
        doubted = coverage * (1 - near_rim * smoothstep(departure / _DEPARTURE - 1))
        return torch.where(sure.amax() < _SURE, coverage, doubted)

    def plan_fill(self, colours: Tensor, coverage: Tensor) -> TorchFill:
        """Plan the fill of a face, as :func:`facegraph_server.texture_fill.plan_fill` does.

        Args:
            colours: FP32 [3,B,B], 0..255.
            coverage: FP32 [B,B] in 0..1.

        """
        trusted = smoothstep(coverage / _TRUSTED) * self.painted
        mirror_trusted = trusted.flip(1)
        mirror_share = (1 - trusted) * mirror_trusted
        half_seen = (self.painted - trusted - mirror_share) * smoothstep(coverage / _SEEN)

        mirrored = colours.flip(2)
        gain = self._matching_gain(colours, mirrored, trusted * mirror_trusted)
        share = trusted + mirror_share
        source = smoothstep((share - _DOUBTED) / _DOUBTED)
        known = (trusted * colours + mirror_share * gain * mirrored) * (source / share.clamp(min=_DOUBTED))
        nothing_known = source.amax() <= 0
        weights = torch.where(nothing_known, self.painted, source)
        spread = self._push_pull(torch.where(nothing_known, self.painted * colours, known), weights)
        return TorchFill(trusted + half_seen, mirror_share, gain, spread.abs().round().clamp(max=255))

    def _matching_gain(self, colours: Tensor, mirrored: Tensor, both_seen: Tensor) -> Tensor:
        """FP32 [3,B,B]: by what to multiply the mirrored colours so that they continue the seen ones."""
        planes = torch.cat([colours * both_seen, mirrored * both_seen, both_seen[None]])
        planes = self._reduce(planes, self._match_blocks)
        seen, mirror, weights = planes[:3], planes[3:6], planes[6]
        level = _LEVEL * weights + 1e-6
        ratio = ((seen + level) / (mirror + level)).log().clamp(-_STRONGEST_MATCH, _STRONGEST_MATCH)
        field = self.match_blur @ self._push_pull(ratio * weights, weights) @ self.match_blur.T
        return enlarge(field.exp(), len(both_seen))

    def _push_pull(self, values: Tensor, weights: Tensor) -> Tensor:
        """Spread known values smoothly, as :func:`facegraph_server.texture_fill.push_pull` does.

        Args:
            values: FP32 [K,N,N], each already multiplied by its weight.
            weights: FP32 [N,N] in 0..1.

        """
        return self._fill_from_coarser(torch.cat([values, weights[None]]))

    def _fill_from_coarser(self, planes: Tensor) -> Tensor:
        """Spread the first K of [K+1,N,N] planes; the last one is their weight."""
        values, weights = planes[:-1], planes[-1]
        side = len(weights)
        if side <= 1:
            return values / weights.clamp(min=1e-12)
        coarse = self._reduce(planes, (side + 1) // 2)
        coarse = coarse / coarse[-1].clamp(min=0.25)  # a quarter known is taken at its word
        return torch.addcmul(values, 1 - weights, enlarge(self._fill_from_coarser(coarse), side))

    def _reduce(self, planes: Tensor, side: int) -> Tensor:
        """Average planes [K,N,N] down to a smaller side: OpenCV's INTER_AREA."""
        source = planes.shape[-1]
        if source % side == 0:
            return functional.avg_pool2d(planes, source // side)
        matrix = self.get_buffer(_area_name(source, side))
        return matrix @ planes @ matrix.T


def enlarge(planes: Tensor, side: int) -> Tensor:
    """Enlarge planes [K,N,N] linearly to a side: OpenCV's INTER_LINEAR."""
    if planes.shape[-1] == side:
        return planes
    return functional.interpolate(planes[None], size=(side, side), mode="bilinear", align_corners=False)[0]


def area_weights(source: int, target: int, index: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return FP64 [target,N]: the share that source pixels have in each target pixel when a row is averaged down.

    Args:
        source: pixels of the row.
        target: pixels that it is averaged down to.
        index: INT64 [N] or [target,N], which source pixels.

    """
    scale = source / target
    low = np.arange(target)[:, None] * scale
    overlap = np.minimum(low + scale, index + 1) - np.maximum(low, index)
    weights: NDArray[np.float64] = np.maximum(overlap, 0) / scale
    return weights


def _halvings(side: int) -> list[tuple[int, int]]:
    """Return the steps (from, to) in which a side is halved down to 1."""
    return [] if side <= 1 else [(side, (side + 1) // 2), *_halvings((side + 1) // 2)]


def _area_name(source: int, target: int) -> str:
    return f"area_{source}_{target}"
