"""From the detector's decoded candidates to one detection per face.

Outside the CUDA graph: how many candidates survive depends on the picture.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from facegraph_server.contract import DETECTOR_SIZE_PX

SCORE_THRESHOLD = 0.25
"""Least detector score. Low on purpose: the landmark network's presence score removes the false alarms."""

WEAK_DETECTION = 0.65
"""Score below which a detection counts only if the landmark network is sure of the face."""

MERGE_IOU = 0.3
CUT_MARGIN_PX = 1.0
TILE_MARGIN = 0.02
TILE_LARGEST_FACE = 0.6


class Detections(NamedTuple):
    """Faces in a picture, best score first, coordinates in px of the picture.

    Attributes:
        box_xyxy: FP32 [n,4].
        keypoints: FP32 [n,6,2], see :data:`facegraph_server.contract.KEYPOINTS`.
        score: FP32 [n].

    """

    box_xyxy: NDArray[np.float32]
    keypoints: NDArray[np.float32]
    score: NDArray[np.float32]


def merge_candidates(
    boxes: NDArray[np.float32],
    keypoints: NDArray[np.float32],
    scores: NDArray[np.float32],
    views: NDArray[np.float32],
    image_wh: tuple[int, int],
) -> Detections:
    """Map the candidates of all views into the picture and merge those of one face.

    The merge is MediaPipe's weighted non-maximum suppression: a detection is the mean of the candidates that overlap
    the best one, weighted by score. It jitters less than the best candidate alone.

    Args:
        boxes: FP32 [k,A,4] xyxy in px of the detector's input.
        keypoints: FP32 [k,A,6,2] likewise.
        scores: FP32 [k,A].
        views: FP32 [k,3] left, top, side of each view in px of the picture; the first is the whole picture.
        image_wh: width and height of the picture in px.

    """
    view, row = np.nonzero(scores >= SCORE_THRESHOLD)
    points = np.concatenate([boxes[view, row].reshape(-1, 2, 2), keypoints[view, row]], axis=1)  # [m,8,2]
    kept = (view == 0) | _seen_whole(points[:, :2], views[view], image_wh)
    view, points, score = view[kept], points[kept], scores[view[kept], row[kept]]
    points = points * (views[view, 2] / DETECTOR_SIZE_PX)[:, None, None] + views[view, None, :2]
    on_picture = ((points[:, :2].mean(1) >= 0) & (points[:, :2].mean(1) < image_wh)).all(1)
    points, score = points[on_picture], score[on_picture]
    points -= 0.5  # the network counts from the corner of the first pixel, the picture's coordinates from its centre

    merged, merged_score = [], []
    while len(score):
        best = int(score.argmax())
        overlaps = box_iou(points[best, :2].reshape(4), points[:, :2].reshape(-1, 4)) > MERGE_IOU
        overlaps[best] = True  # also for a box without area
        weight = score[overlaps] / score[overlaps].sum()
        merged.append((points[overlaps] * weight[:, None, None]).sum(0))
        merged_score.append(score[best])
        points, score = points[~overlaps], score[~overlaps]
    found = np.array(merged, np.float32).reshape(-1, points.shape[1], 2)
    return Detections(found[:, :2].reshape(-1, 4), found[:, 2:], np.array(merged_score, np.float32))


def _seen_whole(
    corners: NDArray[np.float32], views: NDArray[np.float32], image_wh: tuple[int, int]
) -> NDArray[np.bool_]:
    """Tell which boxes [m,2,2] their tile [m,3] shows whole.

    The others belong to a neighbouring tile, since tiles overlap by more than a small face, or to the whole picture.
    """
    low, high = views[:, :2], views[:, :2] + views[:, 2:]
    cut_low = (low > CUT_MARGIN_PX) & (corners[:, 0] < TILE_MARGIN * DETECTOR_SIZE_PX)
    cut_high = (high < np.array(image_wh) - CUT_MARGIN_PX) & (corners[:, 1] > (1 - TILE_MARGIN) * DETECTOR_SIZE_PX)
    small = corners[:, 1] - corners[:, 0] <= TILE_LARGEST_FACE * DETECTOR_SIZE_PX
    return np.asarray((small & ~cut_low & ~cut_high).all(1))


def box_iou(box_xyxy: NDArray[np.float32], others_xyxy: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the intersection over union of one box [4] with others [m,4], FP32 [m]."""
    intersection, area, others_area = _intersections(box_xyxy, others_xyxy)
    return np.asarray(intersection / np.maximum(area + others_area - intersection, 1e-6), np.float32)


def box_containment(box_xyxy: NDArray[np.float32], others_xyxy: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return what part of the smaller box lies inside the larger one, for one box [4] and others [m,4], FP32 [m]."""
    intersection, area, others_area = _intersections(box_xyxy, others_xyxy)
    return np.asarray(intersection / np.maximum(np.minimum(area, others_area), 1e-6), np.float32)


def _intersections(
    box_xyxy: NDArray[np.float32], others_xyxy: NDArray[np.float32]
) -> tuple[NDArray[np.float32], np.float32, NDArray[np.float32]]:
    low = np.maximum(box_xyxy[:2], others_xyxy[:, :2])
    high = np.minimum(box_xyxy[2:], others_xyxy[:, 2:])
    intersection = np.clip(high - low, 0, None).prod(1)
    return intersection, (box_xyxy[2:] - box_xyxy[:2]).prod(), (others_xyxy[:, 2:] - others_xyxy[:, :2]).prod(1)
