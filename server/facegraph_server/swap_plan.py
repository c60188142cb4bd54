"""How much of the source a swap shows at each place of the face, and in which light.

Everything here lives on planes of the UV layout, where source and target lie on each other whatever their pose: what
follows costs the same for every size of frame and face.
"""

from __future__ import annotations

from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from facegraph_server.swap_layout import PLANE_PX, forehead_rows, skin_zone, source_share
from facegraph_server.texture_coverage import smoothstep

_LIGHT = 0.1  # of the layout's side: detail finer than that is the source's, what is coarser is the target's light
_LEVEL = 12.0  # added to both sides of the ratio: in the dark the match is a difference, not a gain that lifts noise
_STRONGEST_GAIN = 3.0
_KNOWN = 0.2  # coverage of a texel or its mirror image from which the source knows it
_HAIR = (1.6, 3.2)  # standard deviations from the skin's colours: surely skin below the first, hair above the second
_LEAST_DEVIATION = 8.0  # of a channel, 0..255: even skin has some


class SwapPlan(NamedTuple):
    """How to show the source's texture on the target's mesh.

    Attributes:
        share: FP32 [P,P] in 0..1: the source's share at each place of the layout; what is left is the target's.
        gain: FP32 [P,P,3]: by what to multiply the source's colours, each raised by ``level`` before and lowered after.
        level: see ``gain``.

    """

    share: NDArray[np.float32]
    gain: NDArray[np.float32]
    level: float


def plan_swap(
    source_rgb: NDArray[np.uint8],
    coverage: NDArray[np.uint8],
    target_rgb: NDArray[np.uint8],
    target_seen: NDArray[np.float32],
) -> SwapPlan:
    """Plan the swap of one face.

    Args:
        source_rgb: UINT8 [P,P,3] the source's colours in the UV layout.
        coverage: UINT8 [P,P] how well the source's photo showed them.
        target_rgb: UINT8 [P,P,3] the target's colours in the UV layout.
        target_seen: FP32 [P,P] in 0..1, 0 where the frame does not show this part of the target's face.

    """
    source, target = source_rgb.astype(np.float32), target_rgb.astype(np.float32)
    known = np.maximum(coverage, coverage[:, ::-1]).astype(np.float32) / 255  # the texture fills from the mirror image
    share = source_share() * smoothstep(known / _KNOWN)
    share = share * hairless(source) * hairless(target)
    weight = share * target_seen + np.float32(1e-3)
    lit, own = (_smooth(colours, weight) for colours in (target, source))
    gain = np.minimum((lit + _LEVEL) / (own + _LEVEL), _STRONGEST_GAIN)
    return SwapPlan(share, gain.astype(np.float32), _LEVEL)


def hairless(colours: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return FP32 [P,P]: 0 where hair hangs over the forehead, 1 elsewhere.

    Hair is what departs from the colours of the skin between eyes and mouth. Above a strand everything counts as hair.

    Args:
        colours: FP32 [P,P,3] in the UV layout.

    """
    half = (PLANE_PX // 2, PLANE_PX // 2)  # strands are coarser than that
    smooth = cv2.blur(cv2.resize(colours, half, interpolation=cv2.INTER_AREA), (3, 3))
    skin = smooth[skin_zone()[::2, ::2]]
    deviation = np.maximum(skin.std(0), _LEAST_DEVIATION).astype(np.float32)
    away = cv2.absdiff(smooth, np.broadcast_to(np.median(skin, axis=0), smooth.shape).astype(np.float32)) / deviation
    departure = np.maximum(np.maximum(away[..., 0], away[..., 1]), away[..., 2])
    hair = forehead_rows()[::2] * smoothstep((departure - _HAIR[0]) / (_HAIR[1] - _HAIR[0]))
    upwards = 1 - np.maximum.accumulate(hair[::-1], axis=0)[::-1]
    soft = cv2.blur(cv2.erode(upwards, np.ones((3, 3), np.uint8)), (5, 5))
    return np.asarray(cv2.resize(soft, (PLANE_PX, PLANE_PX), interpolation=cv2.INTER_LINEAR), np.float32)


def _smooth(colours: NDArray[np.float32], weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """Average colours [P,P,3] over the neighbourhood, by weight."""
    coarse_px = PLANE_PX // 8
    small = cv2.resize(weight, (coarse_px, coarse_px), interpolation=cv2.INTER_AREA)
    weighted = cv2.resize(colours * weight[..., None], (coarse_px, coarse_px), interpolation=cv2.INTER_AREA)
    sigma = _LIGHT * coarse_px
    total = np.maximum(cv2.GaussianBlur(small, (0, 0), sigma), 1e-6)
    mean = cv2.GaussianBlur(weighted, (0, 0), sigma) / total[..., None]
    smooth: NDArray[np.float32] = cv2.resize(mean, (PLANE_PX, PLANE_PX), interpolation=cv2.INTER_LINEAR)
    return smooth
