"""Regions of interest: where the landmark network looks, and how its answer gets back into the picture.

Outside the CUDA graph: how many regions there are depends on the picture.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from facegraph_server.contract import MAX_BATCH, MESH_SIZE_PX, VERTICES
from facegraph_server.detection import WEAK_DETECTION, Detections, box_iou

# MediaPipe's face_landmark graphs enlarge the detection's box, and the landmarks' box of the frame before, by 1.5.
# This detector draws large faces a little tighter than the one of those graphs: the factor was chosen so that the
# landmarks agree best with MediaPipe's own (see docs/detector.md).
DETECTION_SCALE = 1.5 * 1.1
LANDMARKS_SCALE = 1.5

RIGHT_EYE, LEFT_EYE = 0, 1  # key points of a detection
RIGHT_EYE_CORNER, LEFT_EYE_CORNER = 33, 263  # vertices of the mesh
TRACKED_IOU = 0.3
MOVED = 0.12
"""Part of its side by which a region may lie beside the detection. Detections and landmarks of still faces agree to
0.05 of it; a face that has moved further is looked for where it was detected."""

_FLATTEST, _DEEPEST_PX = 4.0, 1e5  # of a prior that can be a face: depth over width or height, largest coordinate
_LARGEST_WARP_PX = 32767  # OpenCV's limit of a side
ALIASING_FACTOR = 2.0


class Crops(NamedTuple):
    """What the landmark network gets.

    Attributes:
        crops: UINT8 [n,192,192,3] RGB, 1 <= n <= 16; one black crop where there is no face.
        roi: FP32 [n,4] centre x, centre y, side in px of the picture, clockwise rotation in radians.
        prior_index: INT32 [n], the row of the prior that a region continues, -1 for a new face.
        detection: FP32 [n], the detector's score; 1 for a face that goes on.
        face_count: how many rows hold a face: n, or 0.

    """

    crops: NDArray[np.uint8]
    roi: NDArray[np.float32]
    prior_index: NDArray[np.int32]
    detection: NDArray[np.float32]
    face_count: int


def crop_faces(image_rgb: NDArray[np.uint8], found: Detections, prior_px: NDArray[np.float32] | None = None) -> Crops:
    """Cut out the faces, upright: first those that go on from the frame before, then new ones.

    Args:
        image_rgb: UINT8 [H,W,3].
        found: this picture's detections; of more than 16 faces the largest are kept, weak detections last.
        prior_px: FP32 [n,V,3] landmarks of the frame before; a row that cannot be a face is none, see
            :func:`can_be_faces`.

    """
    roi, detection = roi_from_detections(found), found.score
    prior_index = np.full(len(roi), -1, np.int32)
    if prior_px is not None:
        alive = np.flatnonzero(can_be_faces(prior_px))
        known, tracked = _follow(prior_px[alive], found, roi)
        new = ~tracked
        roi = np.concatenate([known, roi[new]])
        prior_index = np.concatenate([alive.astype(np.int32), prior_index[new]])
        detection = np.concatenate([np.ones(len(alive), np.float32), detection[new]])
    if len(roi) == 0:
        blank = np.zeros((1, MESH_SIZE_PX, MESH_SIZE_PX, 3), np.uint8)
        return Crops(blank, np.zeros((1, 4), np.float32), np.full(1, -1, np.int32), np.zeros(1, np.float32), 0)
    if len(roi) > MAX_BATCH:
        best = np.sort(np.lexsort((-roi[:, 2], detection < WEAK_DETECTION))[:MAX_BATCH])
        roi, prior_index, detection = roi[best], prior_index[best], detection[best]
    return Crops(np.stack([_crop(image_rgb, r) for r in roi]), roi, prior_index, detection, len(roi))


def roi_from_detections(found: Detections) -> NDArray[np.float32]:
    """Return the regions [n,4] of detections: the box made square and enlarged, turned so that the eyes are level."""
    eyes = found.keypoints[:, LEFT_EYE] - found.keypoints[:, RIGHT_EYE]
    corners = found.box_xyxy.reshape(-1, 2, 2)
    side = (corners[:, 1] - corners[:, 0]).max(1) * DETECTION_SCALE
    return np.column_stack([corners.mean(1), side, np.arctan2(eyes[:, 1], eyes[:, 0])]).astype(np.float32)


def roi_from_landmarks(landmarks_px: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the regions [n,4] around landmarks [n,V,3]: their upright bounding square, enlarged."""
    eyes = landmarks_px[:, LEFT_EYE_CORNER, :2] - landmarks_px[:, RIGHT_EYE_CORNER, :2]
    angle = np.arctan2(eyes[:, 1], eyes[:, 0])
    turned = landmarks_px[..., :2] @ rotation(angle)  # row vectors: this turns back by the angle
    low, high = turned.min(1), turned.max(1)
    centre = np.einsum("nij,nj->ni", rotation(angle), (low + high) / 2)
    return np.column_stack([centre, (high - low).max(1) * LANDMARKS_SCALE, angle]).astype(np.float32)


def landmarks_in_picture(crop_landmarks: NDArray[np.float32], roi: NDArray[np.float32]) -> NDArray[np.float32]:
    """Map landmarks FP32 [n,468,3] in px of the crop into the picture; z gets the scale of x and y."""
    scale = roi[:, 2] / MESH_SIZE_PX
    centred = crop_landmarks * scale[:, None, None]
    centred[..., :2] -= roi[:, None, 2:3] / 2
    centred[..., :2] = centred[..., :2] @ rotation(roi[:, 3]).transpose(0, 2, 1) + roi[:, None, :2]
    return centred.reshape(-1, VERTICES, 3)


def rotation(angle: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """Return matrices [n,2,2] that turn column vectors clockwise (y points down) by ``angle`` [n] radians."""
    c, s = np.cos(angle), np.sin(angle)
    return np.asarray(np.stack([c, -s, s, c], -1).reshape(-1, 2, 2), np.float32)


def can_be_faces(landmarks_px: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Tell which rows of FP32 [n,V,3] can be a face: not all zero, no NaN or infinity, no absurd place or depth."""
    bounded = np.where(np.isfinite(landmarks_px), landmarks_px, np.float32(2 * _DEEPEST_PX))
    sensible = np.abs(bounded).max((1, 2), initial=0) <= _DEEPEST_PX
    extent = np.ptp(bounded, axis=1) if len(bounded) else np.empty((0, 3), np.float32)
    return np.asarray(sensible & (extent[:, :2].max(1) > 0) & (extent[:, 2] <= _FLATTEST * extent[:, :2].max(1)))


def _follow(
    prior_px: NDArray[np.float32], found: Detections, found_roi: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return the regions [n,4] of faces that go on, and which detections [d] belong to one of them.

    A region is that of the landmarks, which is steadier, or of a sure detection that it has fallen behind.
    """
    known = roi_from_landmarks(prior_px)
    if not len(known) or not len(found_roi):
        return known, np.zeros(len(found_roi), bool)
    boxes = np.concatenate([prior_px[..., :2].min(1), prior_px[..., :2].max(1)], axis=1)
    overlap = np.stack([box_iou(box, boxes) for box in found.box_xyxy])  # [d,n]
    nearest = overlap.argmax(0)
    belongs = (overlap.max(0) > TRACKED_IOU) & (found.score[nearest] >= WEAK_DETECTION)
    away = np.linalg.norm(found_roi[nearest, :2] - known[:, :2], axis=1)
    moved = belongs & (away > MOVED * known[:, 2])
    return np.where(moved[:, None], found_roi[nearest], known), (overlap > TRACKED_IOU).any(1)


def _crop(image_rgb: NDArray[np.uint8], roi: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Cut one upright 192x192 crop out of the picture; beyond its border the edge pixels go on, as in MediaPipe."""
    centre, side, angle = roi[:2].astype(np.float64), float(roi[2]), roi[3:4]
    if side > ALIASING_FACTOR * MESH_SIZE_PX or max(image_rgb.shape) > _LARGEST_WARP_PX:
        image_rgb, centre, side = _shrink_around(image_rgb, centre, side)
    to_crop = rotation(angle)[0].T.astype(np.float64) * (MESH_SIZE_PX / max(side, 1.0))
    matrix = np.column_stack([to_crop, MESH_SIZE_PX / 2 - to_crop @ centre])
    crop = cv2.warpAffine(
        image_rgb, matrix, (MESH_SIZE_PX, MESH_SIZE_PX), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE
    )
    return np.asarray(crop, np.uint8)


def _shrink_around(
    image_rgb: NDArray[np.uint8], centre: NDArray[np.float64], side: float
) -> tuple[NDArray[np.uint8], NDArray[np.float64], float]:
    """Cut the neighbourhood of a region out, and average a large one down: the bilinear warp must not skip pixels."""
    height, width = image_rgb.shape[:2]
    reach = side * 0.75  # a square turned by 45 degrees reaches 0.71 of its side from the centre
    x0, y0 = (int(v) for v in np.clip(np.floor(centre - reach), 0, (width - 2, height - 2)))
    x1, y1 = (int(v) for v in np.clip(np.ceil(centre + reach), (x0 + 2, y0 + 2), (width, height)))
    factor = max(side / (ALIASING_FACTOR * MESH_SIZE_PX), 1.0)
    size = (max(round((x1 - x0) / factor), 1), max(round((y1 - y0) / factor), 1))
    small = np.asarray(cv2.resize(image_rgb[y0:y1, x0:x1], size, interpolation=cv2.INTER_AREA), np.uint8)
    factor_xy = np.array([(x1 - x0) / size[0], (y1 - y0) / size[1]])
    # Pixel centres: index i of the shrunk picture lies at (i + 0.5) * factor - 0.5 of the piece.
    return small, (centre - (x0, y0) + 0.5) / factor_xy - 0.5, side / float(factor_xy.mean())
