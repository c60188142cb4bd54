"""Put the source's face, a UV texture, onto a face in a frame.

Outside the CUDA graph: the face's size in the frame, and so the work, are different for every face.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import cv2
import numpy as np
from facegraph_client import InputError, canonical_face, rasterize
from numpy.typing import NDArray

from facegraph_server.swap_layout import INNER_LIPS, PLANE_PX
from facegraph_server.swap_plan import SwapPlan, plan_swap
from facegraph_server.swap_selection import KEPT
from facegraph_server.texel_map import texel_map
from facegraph_server.texture_coverage import surface_cosine

_RASTER_PX = 112  # longer side of the raster that tells which texel each pixel shows; between its points it is linear
_FEATHER = 0.04  # of the face's longer side: inside its outline the swap fades in over this width
_LIP_FEATHER = 0.006
_FINEST_FOOTPRINT = 1.4  # texels a pixel; from there on the texture is averaged down first
_LEAST_SIZE_PX = 16.0
_LEAST_SHARE = 1 / 512  # a share that changes no pixel


class _View(NamedTuple):
    """Where a face lies in the frame.

    Attributes:
        rows: rows of the frame around the face.
        columns: columns of the frame.
        place: FP32 [h,w,2], where in the UV layout each of these pixels lies, 0..1 from the top left.
        inside: FP32 [h,w] in 0..1: rises from 0 at the face's outline.

    """

    rows: slice
    columns: slice
    place: NDArray[np.float32]
    inside: NDArray[np.float32]


def swap_faces(
    frame_rgb: NDArray[np.uint8],
    landmarks_px: NDArray[np.float32],
    source_index: NDArray[np.int32],
    textures_rgb: NDArray[np.uint8],
    coverages: NDArray[np.uint8],
) -> NDArray[np.uint8]:
    """Return the frame with its faces swapped, those that are further away first.

    Args:
        frame_rgb: UINT8 [H,W,3].
        landmarks_px: FP32 [F,468,3] of its faces.
        source_index: INT32 [F], see :func:`facegraph_server.swap_selection.select_sources`.
        textures_rgb: UINT8 [S,T,T,3] of the sources.
        coverages: UINT8 [S,T,T] likewise.

    Raises:
        InputError: there is no source, or its texture and coverage do not belong together.

    """
    if len(textures_rgb) == 0:
        raise InputError("the source shows no face: choose a photo in which it is larger, sharper or less turned away")
    if textures_rgb.shape[1] != textures_rgb.shape[2] or coverages.shape != textures_rgb.shape[:3]:
        raise InputError(
            f"TEXTURE {list(textures_rgb.shape)} and COVERAGE {list(coverages.shape)} must be [S,T,T,3] and [S,T,T] as"
            " face_reconstruction returns them"
        )
    frame = frame_rgb.copy()
    for face in np.argsort(np.ptp(landmarks_px[..., 0], axis=1), kind="stable"):
        source = source_index[face]
        if source != KEPT:
            swap_face(frame, landmarks_px[face], textures_rgb[source], coverages[source])
    return frame


def swap_face(
    frame_rgb: NDArray[np.uint8],
    landmarks_px: NDArray[np.float32],
    texture_rgb: NDArray[np.uint8],
    coverage: NDArray[np.uint8],
) -> None:
    """Swap one face in place. Pixels outside its outline are not touched.

    The target keeps its mouth's interior, its eyes, its hair and its light; the source gives the rest.

    Args:
        frame_rgb: UINT8 [H,W,3], writable.
        landmarks_px: FP32 [468,3] of the target.
        texture_rgb: UINT8 [T,T,3] of the source, see :func:`facegraph_server.texture.unwrap_texture`.
        coverage: UINT8 [T,T] likewise.

    """
    view = _look(landmarks_px, (frame_rgb.shape[1], frame_rgb.shape[0]))
    if view is None:
        return
    target = frame_rgb[view.rows, view.columns]
    size_px = float(np.ptp(landmarks_px[:, :2], axis=0).max())
    plane = (PLANE_PX, PLANE_PX)
    unwrapped, seen = _unwrap(target, landmarks_px, (view.columns.start, view.rows.start))
    plan = plan_swap(
        cv2.resize(texture_rgb, plane, interpolation=cv2.INTER_AREA),
        cv2.resize(coverage, plane, interpolation=cv2.INTER_AREA),
        unwrapped,
        seen,
    )
    source = _sample(_reduced(texture_rgb, size_px), view.place)
    share = _sample(plan.share, view.place) * view.inside
    share *= 1 - _mouth(landmarks_px, view, size_px)
    lit = _in_light(source, _sample(plan.gain, view.place), plan)
    share[share < _LEAST_SHARE] = 0
    # Where the share is 0 the mix is the target's pixel, to the bit.
    target[...] = cv2.blendLinear(lit, np.ascontiguousarray(target), share, 1 - share)


def _look(landmarks_px: NDArray[np.float32], frame_wh: tuple[int, int]) -> _View | None:
    """Find the texel of each pixel of the face; None where the frame shows nothing of it."""
    low = np.maximum(np.floor(landmarks_px[:, :2].min(0)).astype(int) - 1, 0)
    high = np.minimum(np.ceil(landmarks_px[:, :2].max(0)).astype(int) + 2, frame_wh)
    if (high - low).min() < 2:  # noqa: PLR2004
        return None
    scale = min(1.0, _RASTER_PX / float(np.ptp(landmarks_px[:, :2], axis=0).max()))
    size = np.maximum(np.ceil((high - low) * scale).astype(int), 1)
    factor = size / (high - low)
    points = np.column_stack([(landmarks_px[:, :2] - low + 0.5) * factor - 0.5, landmarks_px[:, 2]])
    face = canonical_face()
    raster = rasterize(points, face.triangles, (int(size[0]), int(size[1])))
    drawn = raster.triangle >= 0
    corners = face.triangles[np.maximum(raster.triangle, 0)]
    layout = np.column_stack([face.uv[:, 0], 1 - face.uv[:, 1]])
    place = np.einsum("hwk,hwkc->hwc", raster.barycentric, layout[corners]).astype(np.float32)
    place = _continued(place, drawn)
    full = (int(high[0] - low[0]), int(high[1] - low[1]))
    outline = cv2.resize(drawn.astype(np.float32), full, interpolation=cv2.INTER_LINEAR)
    # The margin of a pixel around the face is 0; where the frame cuts the face off there is none, and no feather.
    depth = cv2.distanceTransform((outline > 0.5).astype(np.uint8), cv2.DIST_L2, 5)  # noqa: PLR2004
    width = _FEATHER * float(np.ptp(landmarks_px[:, :2], axis=0).max())
    inside = np.clip((depth - 1) / max(width, 1.0), 0, 1)
    return _View(
        slice(int(low[1]), int(high[1])),
        slice(int(low[0]), int(high[0])),
        cv2.resize(place, full, interpolation=cv2.INTER_LINEAR),
        inside * inside * (3 - 2 * inside),
    )


def _continued(place: NDArray[np.float32], drawn: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Continue the places two points beyond the outline, so that interpolation at the rim meets no foreign value."""
    for _ in range(2):
        weight = drawn.astype(np.float32)
        near = cv2.blur(weight, (3, 3))
        spread = cv2.blur(place * weight[..., None], (3, 3)) / np.maximum(near, 1e-6)[..., None]
        place = np.where(drawn[..., None], place, spread)
        drawn = near > 0
    return place


def _unwrap(
    piece_rgb: NDArray[np.uint8], landmarks_px: NDArray[np.float32], origin_xy: tuple[int, int]
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Return the target's colours in the UV layout, UINT8 [P,P,3], and FP32 [P,P] how far they are seen."""
    grid = texel_map(PLANE_PX)
    points = np.column_stack([landmarks_px[:, :2] - np.array(origin_xy, np.float32), surface_cosine(landmarks_px)])
    cells = grid.interpolate(points.astype(np.float32))
    extent = float(np.ptp(landmarks_px[:, :2], axis=0).max())
    if extent > 2 * PLANE_PX:
        scale = 2 * PLANE_PX / extent
        height, width = piece_rgb.shape[:2]
        size = (max(round(width * scale), 1), max(round(height * scale), 1))
        piece_rgb = np.asarray(cv2.resize(piece_rgb, size, interpolation=cv2.INTER_AREA), np.uint8)
        cells[..., :2] = (cells[..., :2] + 0.5) * [size[0] / width, size[1] / height] - 0.5
    height, width = piece_rgb.shape[:2]
    x, y, cosine = cv2.split(cells)
    colours = cv2.remap(piece_rgb, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    within = (x > -1) & (x < width) & (y > -1) & (y < height)
    return np.asarray(colours, np.uint8), (np.clip(cosine, 0, 1) * within).astype(np.float32)


def _reduced(texture_rgb: NDArray[np.uint8], size_px: float) -> NDArray[np.uint8]:
    """Average the texture down to about the resolution at which the face is shown: bilinear sampling would flicker."""
    reduction = math.ceil(len(texture_rgb) / max(size_px, _LEAST_SIZE_PX) / _FINEST_FOOTPRINT)
    if reduction <= 1:
        return texture_rgb
    side = len(texture_rgb) // reduction  # by a whole number, which is several times faster
    return np.asarray(cv2.resize(texture_rgb, (side, side), interpolation=cv2.INTER_AREA), np.uint8)


def _sample(plane: NDArray[Any], place: NDArray[np.float32]) -> NDArray[Any]:
    """Sample a plane of the UV layout bilinearly at places 0..1 from its top left."""
    at = place * np.float32(len(plane)) - np.float32(0.5)
    return np.asarray(cv2.remap(plane, at, None, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE))


def _mouth(landmarks_px: NDArray[np.float32], view: _View, size_px: float) -> NDArray[np.float32]:
    """Return FP32 [h,w]: 1 between the target's lips. In the layout they are closed: the source has nothing there."""
    fraction_bits = 4
    origin = (view.columns.start, view.rows.start)
    contour = np.rint((landmarks_px[list(INNER_LIPS), :2] - np.array(origin, np.float32)) * 2**fraction_bits)
    mouth = np.zeros(view.inside.shape, np.uint8)
    cv2.fillPoly(mouth, [contour.astype(np.int32)], 255, lineType=cv2.LINE_AA, shift=fraction_bits)
    soft = cv2.GaussianBlur(mouth, (0, 0), max(_LIP_FEATHER * size_px, 0.5))
    return np.asarray(soft, np.float32) / np.float32(255)


def _in_light(source: NDArray[np.uint8], gain: NDArray[np.float32], plan: SwapPlan) -> NDArray[np.uint8]:
    """Show the source's colours in the target's light: (colour + level) * gain - level."""
    lit = cv2.multiply(source, gain, dtype=cv2.CV_32F)
    return np.asarray(cv2.convertScaleAbs(np.maximum(lit + (gain - 1) * np.float32(plan.level), 0)), np.uint8)
