"""What takes the place of the parts of a face that the photo does not show.

The mirrored half of the face first, its colours matched to this half by a smooth field; then, where neither half is
seen, colours that spread smoothly from what is known. Everything here lives on the texel map's blocks, B a side: the
detail comes from the photo's pixels and their mirror image, which :class:`Fill` says how to mix.
"""

from __future__ import annotations

from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from facegraph_server.texture_coverage import smoothstep

_TRUSTED = 0.35  # coverage from which the photo's own pixels are used unmixed
_SEEN = 0.2  # coverage below which they give way to inpainting where the mirror image is no help
_MATCH_BLOCKS = 32  # side of the grid of the colour match: far coarser than eyes and brows
_LEVEL = 10.0  # added before the logarithm: in the dark the match is a difference, in the light a ratio
_STRONGEST_MATCH = 0.9  # logarithm of the largest gain: a face lit from one side has about 0.7
_SURE = 0.5  # coverage above which colours are the face's own
_DEPARTURE = (
    30.0  # difference of a channel, 0..255, from which a colour at the silhouette is doubted; twice that refuses it
)
_DOUBTED = 0.4  # share below which a colour is not spread over its surroundings; from twice that it is in full


class Fill(NamedTuple):
    """What the texture is mixed of, on the blocks. The shares are 0..1; what they leave is that of the spread colours.

    Attributes:
        photo: FP32 [B,B] share of the photo's own pixels, 1 where the photo shows the block well.
        mirror: FP32 [B,B] share of their mirror image.
        gain: FP32 [B,B,3] by what to multiply the mirror image so that its colours go on with those of this side.
        spread: UINT8 [B,B,3] colours that spread from what is known, also into the padding.

    """

    photo: NDArray[np.float32]
    mirror: NDArray[np.float32]
    gain: NDArray[np.float32]
    spread: NDArray[np.uint8]


def doubt_background(
    colours: NDArray[np.float32], coverage: NDArray[np.float32], near_rim: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return the coverage, FP32 [B,B], less where colours at the silhouette do not go on with those of the face.

    The landmarks of a jaw or a turned cheek are often some millimetres outside the face: what they show is background.

    Args:
        colours: FP32 [B,B,3], the photo's colours in the UV layout, 0..255.
        coverage: FP32 [B,B] in 0..1.
        near_rim: FP32 [B,B], 1 at the silhouette, 0 well inside.

    """
    sure = smoothstep((coverage - _SURE) / (1 - _SURE)) * (1 - near_rim)
    if sure.max() < _SURE:
        return coverage
    face_colours = push_pull(_three(sure) * colours, sure)
    departure = cv2.absdiff(colours, face_colours).max(2)
    doubted: NDArray[np.float32] = coverage * (1 - near_rim * smoothstep(departure / _DEPARTURE - 1))
    return doubted


def plan_fill(colours: NDArray[np.float32], coverage: NDArray[np.float32], painted: NDArray[np.float32]) -> Fill:
    """Plan the fill of a face from its colours and coverage on the blocks.

    Args:
        colours: FP32 [B,B,3], the photo's colours in the UV layout, 0..255.
        coverage: FP32 [B,B] in 0..1.
        painted: FP32 [B,B], 1 where the block belongs to the layout or touches it, 0 in the padding further out.

    """
    trusted = smoothstep(coverage / _TRUSTED) * painted
    mirror_trusted = trusted[:, ::-1]
    mirror_share = (1 - trusted) * mirror_trusted  # the mirror image of the padding is padding, so 0 there
    # A half-seen part is still the best there is when its mirror image is no better.
    half_seen = (painted - trusted - mirror_share) * smoothstep(coverage / _SEEN)

    mirrored = cv2.flip(colours, 1)
    gain = _matching_gain(colours, mirrored, trusted * mirror_trusted)
    # Only what is well known is a source of colours: beside the silhouette the photo may show background.
    share = trusted + mirror_share
    source = smoothstep((share - _DOUBTED) / _DOUBTED)
    if source.max() > 0:
        known = _three(trusted) * colours + _three(mirror_share) * gain * mirrored
        spread = push_pull(known * _three(source / np.maximum(share, _DOUBTED)), source)
    else:  # the photo has nothing better
        spread = push_pull(_three(painted) * colours, painted)
    return Fill(trusted + half_seen, mirror_share, gain, cv2.convertScaleAbs(spread))


def push_pull(values: NDArray[np.float32], weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Spread known values smoothly over unknown ones: average into ever coarser grids, then fill each from the next.

    Source: Gortler et al., "The Lumigraph", 1996, section 3.4.

    Args:
        values: FP32 [N,M,3], each already multiplied by its weight.
        weights: FP32 [N,M] in 0..1, 0 where the value is unknown.

    """
    height, width = weights.shape
    if max(height, width) <= 1:
        return values / _three(np.maximum(weights, 1e-12))
    half = ((width + 1) // 2, (height + 1) // 2)
    coarse_weights = cv2.resize(weights, half, interpolation=cv2.INTER_AREA)
    # A quarter known is enough to be taken at its word; less leaves room for the next coarser grid.
    raised = np.minimum(4.0, 1 / np.maximum(coarse_weights, 1e-12)).astype(np.float32)
    coarse_values = cv2.resize(values, half, interpolation=cv2.INTER_AREA).reshape(half[1], half[0], -1)
    coarse = push_pull(coarse_values * _three(raised), coarse_weights * raised)
    spread = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_LINEAR).reshape(values.shape)
    filled: NDArray[np.float32] = values + _three(1 - weights) * spread
    return filled


def _matching_gain(
    colours: NDArray[np.float32], mirrored: NDArray[np.float32], both_seen: NDArray[np.float32]
) -> NDArray[np.float32]:
    """FP32 [B,B,3]: by what to multiply the mirrored colours so that they continue the seen ones."""
    size = (min(_MATCH_BLOCKS, len(colours)),) * 2
    weights = cv2.resize(both_seen, size, interpolation=cv2.INTER_AREA)
    seen, mirror = (
        cv2.resize(side * _three(both_seen), size, interpolation=cv2.INTER_AREA) for side in (colours, mirrored)
    )
    level = _three(_LEVEL * weights + np.float32(1e-6))
    ratio = np.clip(np.log((seen + level) / (mirror + level)), -_STRONGEST_MATCH, _STRONGEST_MATCH)
    field = np.exp(cv2.GaussianBlur(push_pull(ratio * _three(weights), weights), (0, 0), 0.7))
    gain: NDArray[np.float32] = cv2.resize(field, colours.shape[1::-1], interpolation=cv2.INTER_LINEAR)
    return gain


def _three(plane: NDArray[np.float32]) -> NDArray[np.float32]:
    """Repeat [N,M] as [N,M,3]: products of equal shapes are several times faster than broadcast ones."""
    repeated: NDArray[np.float32] = cv2.merge([plane, plane, plane])
    return repeated
