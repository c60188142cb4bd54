"""Which parts of the UV layout a swap takes from the source: constant planes, drawn once.

Eyes and gaze, the hair and the outer rim stay the target's. Everything is in the layout, so it follows the target's
expression: where an eye closes, the plane's hole closes with it.
"""

from __future__ import annotations

from functools import cache
from typing import TypeVar

import cv2
import numpy as np
from numpy.typing import NDArray

from facegraph_server.texel_map import layout_mask, layout_points
from facegraph_server.texture_coverage import smoothstep

_Kind = TypeVar("_Kind", bound=np.generic)

PLANE_PX = 128
"""Side of the planes."""

# Vertices of MediaPipe's canonical face: the contours that its face_mesh_connections lists as eyes and inner lips.
RIGHT_EYE = (33, 7, 163, 144, 145, 153, 154, 155, 133, 173, 157, 158, 159, 160, 161, 246)
LEFT_EYE = (362, 382, 381, 380, 374, 373, 390, 249, 263, 466, 388, 387, 386, 385, 384, 398)
INNER_LIPS = (78, 95, 88, 178, 87, 14, 317, 402, 318, 324, 308, 415, 310, 311, 312, 13, 82, 81, 80, 191)
_BROW_TOPS = (105, 334)
_FOREHEAD_TOP = 10
_NOSE_TIP, _UPPER_LIP, _CHEEKS = 4, 0, (50, 280)

_RIM = 0.07  # of the layout's side: over this width the source fades in from the face oval
_BROW_MARGIN = 0.03  # of the layout's side: brows are dark like hair, and some lie above their vertices
_FOREHEAD_RISE = (0.15, 0.7)  # from the top of the forehead to the brows: where the source starts and is there in full


@cache
def source_share() -> NDArray[np.float32]:
    """Return FP32 [P,P] in 0..1: the share of the source; 0 at the rim, high on the forehead and in the eyes."""
    inside = layout_mask(PLANE_PX)
    share = smoothstep(cv2.distanceTransform(inside, cv2.DIST_L2, 5) / np.float32(_RIM * PLANE_PX))
    rows = np.arange(PLANE_PX, dtype=np.float32)
    top, brows = _row(_FOREHEAD_TOP), _row(*_BROW_TOPS)
    start, full = _FOREHEAD_RISE
    share *= smoothstep(((rows - top) / (brows - top) - start) / (full - start))[:, None]
    eyes = np.zeros_like(inside)
    for contour in (RIGHT_EYE, LEFT_EYE):
        cv2.fillPoly(eyes, [_polygon(contour)], 255)
    # A little more than the opening: lashes belong to the target's lids.
    eyes = cv2.dilate(eyes, np.ones((3, 3), np.uint8))
    share *= 1 - cv2.GaussianBlur(eyes, (0, 0), PLANE_PX / 170).astype(np.float32) / 255
    return _read_only(share)


@cache
def skin_zone() -> NDArray[np.bool_]:
    """Return BOOL [P,P]: between eyes and mouth, where every face shows skin and nothing else."""
    zone = np.zeros((PLANE_PX, PLANE_PX), bool)
    left, right = (round(float(layout_points(PLANE_PX)[vertex, 0])) for vertex in _CHEEKS)
    zone[round(_row(*_CHEEKS)) : round(_row(_UPPER_LIP)), left:right] = True
    return _read_only(zone)


@cache
def forehead_rows() -> NDArray[np.float32]:
    """Return FP32 [P,1] in 0..1: 1 on the forehead, where hair may hang, 0 from a little above the brows on."""
    rows = np.arange(PLANE_PX, dtype=np.float32)
    return _read_only(smoothstep((_row(*_BROW_TOPS) - rows) / np.float32(_BROW_MARGIN * PLANE_PX) - 1)[:, None])


def _row(*vertices: int) -> float:
    return float(layout_points(PLANE_PX)[list(vertices), 1].mean())


def _polygon(contour: tuple[int, ...]) -> NDArray[np.int32]:
    return np.asarray(np.rint(layout_points(PLANE_PX)[list(contour)]), np.int32)


def _read_only(array: NDArray[_Kind]) -> NDArray[_Kind]:
    array.setflags(write=False)
    return array
