"""From the detector's candidates to regions of interest, with a fixed number of each and masks for what is not there.

Inside the CUDA graph. The functions of ``detection`` and ``face_crop``, which loop as long as there is something left,
become here: a sort, a table of overlaps, and a fixed number of passes over it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from facegraph_server.contract import DETECTOR_SIZE_PX
from facegraph_server.detection import (
    CUT_MARGIN_PX,
    MERGE_IOU,
    SCORE_THRESHOLD,
    TILE_LARGEST_FACE,
    TILE_MARGIN,
    WEAK_DETECTION,
)
from facegraph_server.face_crop import (
    DETECTION_SCALE,
    LANDMARKS_SCALE,
    LEFT_EYE,
    LEFT_EYE_CORNER,
    MOVED,
    RIGHT_EYE,
    RIGHT_EYE_CORNER,
    TRACKED_IOU,
)

MAX_CANDIDATES = 512
"""Best candidates of a picture that take part in the merge; 16 faces seen in three views bring some 300."""

MAX_DETECTIONS = 64
"""Best detections of a picture that are kept; the 16 largest sure ones of them become regions."""

_MERGE_PASSES = 12
"""How long a chain "a suppresses b, so b does not suppress c, so ..." the merge resolves exactly. Seen: up to 4."""


class TorchDetections(NamedTuple):
    """Detections, best score first; rows where ``valid`` is false mean nothing.

    Attributes:
        box_xyxy: FP32 [D,4].
        keypoints: FP32 [D,6,2].
        score: FP32 [D].
        valid: BOOL [D].

    """

    box_xyxy: Tensor
    keypoints: Tensor
    score: Tensor
    valid: Tensor


class TorchRegions(NamedTuple):
    """Regions of interest, N of them; rows where ``valid`` is false mean nothing.

    Attributes:
        roi: FP32 [N,4] centre x, centre y, side, rotation.
        prior_index: INT64 [N], the row of the prior that a region continues, -1 for a new face.
        detection: FP32 [N], the detector's score; 1 for a face that goes on.
        valid: BOOL [N].
        wanted: INT32 [1], how many regions there were before the best N were chosen.

    """

    roi: Tensor
    prior_index: Tensor
    detection: Tensor
    valid: Tensor
    wanted: Tensor


def merge_candidates(
    boxes: Tensor, keypoints: Tensor, scores: Tensor, views: Tensor, view_count: Tensor, size_wh: Tensor
) -> TorchDetections:
    """Map the candidates of all views into the picture and merge those of one face.

    The same as :func:`facegraph_server.detection.merge_candidates`, for up to 512 candidates and 64 detections.

    Args:
        boxes: FP32 [V,A,4].
        keypoints: FP32 [V,A,6,2].
        scores: FP32 [V,A].
        views: FP32 [V,3] left, top, side.
        view_count: INT [1], how many of the views are there.
        size_wh: FP32 [2].

    """
    count, anchors = scores.shape
    number = torch.arange(count, device=scores.device)
    corners = boxes.reshape(count, anchors, 2, 2)
    centre = corners.mean(2) * (views[:, None, 2:] / DETECTOR_SIZE_PX) + views[:, None, :2]
    kept = (scores >= SCORE_THRESHOLD) & (number < view_count)[:, None]
    kept &= (number == 0)[:, None] | _seen_whole(corners, views, size_wh)
    kept &= ((centre >= 0) & (centre < size_wh)).all(2)

    score, order = scores.masked_fill(~kept, -1).reshape(-1).sort(descending=True, stable=True)
    score, order = score[:MAX_CANDIDATES], order[:MAX_CANDIDATES]
    view = views[order // anchors]
    points = torch.cat([corners.reshape(-1, 2, 2), keypoints.reshape(count * anchors, -1, 2)], 1)[order]
    points = points * (view[:, 2] / DETECTOR_SIZE_PX)[:, None, None] + view[:, None, :2] - 0.5

    valid = score > 0
    box = points[:, :2].reshape(-1, 4)
    rank = torch.arange(len(box), device=scores.device)
    overlaps = (box_iou(box, box) > MERGE_IOU) & (rank[:, None] < rank) & valid
    leads = keep_greedily(overlaps, valid, _MERGE_PASSES)
    followers = leads[:, None] & (overlaps | (rank[:, None] == rank))
    owned = followers & (followers.cumsum(0) == 1)  # by the first that it overlaps

    best = leads.to(torch.int32).sort(descending=True, stable=True).indices[:MAX_DETECTIONS]
    weight = owned[best] * score
    weight = weight / weight.sum(1, keepdim=True).clamp(min=SCORE_THRESHOLD)
    merged = (weight @ points.reshape(len(points), -1)).reshape(len(best), -1, 2)
    return TorchDetections(merged[:, :2].reshape(-1, 4), merged[:, 2:], score[best], leads[best])


def keep_greedily(conflicts: Tensor, valid: Tensor, passes: int) -> Tensor:
    """Go through rows in order and keep those that no kept row before them conflicts with, BOOL [n].

    Pass k is right for every row at the end of a chain of at most k conflicts; ``passes`` = n is always right.

    Args:
        conflicts: BOOL [n,n], whether row i conflicts with column j; only above the diagonal.
        valid: BOOL [n].
        passes: how many passes.

    """
    kept = valid
    for _ in range(passes):
        kept = valid & ~(conflicts & kept[:, None]).any(0)
    return kept


def choose_regions(found: TorchDetections, prior_px: Tensor | None, limit: int) -> TorchRegions:
    """Choose the regions: first the faces that go on, then new ones; of more than ``limit`` the largest sure ones.

    The same as the first half of :func:`facegraph_server.face_crop.crop_faces`.

    Args:
        found: this picture's detections.
        prior_px: FP32 [P,V,3] landmarks of the frame before; an all-zero row is no face.
        limit: N.

    """
    roi, detection, valid = roi_from_detections(found), found.score, found.valid
    prior_index = torch.full_like(valid, -1, dtype=torch.int64)
    if prior_px is not None:
        alive = (prior_px[..., :2].abs() > 0).flatten(1).any(1)
        overlap = box_iou(found.box_xyxy, landmarks_box(prior_px)) * valid[:, None]  # [D,P]
        tracked = (overlap > TRACKED_IOU) & alive
        roi = torch.cat([_follow(roi_from_landmarks(prior_px), overlap, roi, detection), roi])
        valid = torch.cat([alive, valid & ~tracked.any(1)])
        prior_index = torch.cat([torch.arange(len(alive), device=alive.device), prior_index])
        detection = torch.cat([torch.ones_like(detection[:1]).expand(len(alive)), detection])

    by_size = roi[:, 2].sort(descending=True, stable=True).indices
    group = torch.where(valid, (detection < WEAK_DETECTION).to(torch.int32), torch.full_like(prior_index, 2).int())
    best = by_size[group[by_size].sort(stable=True).indices[:limit]]
    # Back in the order of the rows; what is not valid goes last.
    best = best[(best + len(roi) * ~valid[best]).argsort()]
    count = valid.sum(dtype=torch.int32).reshape(1)
    return TorchRegions(roi[best], prior_index[best], detection[best], valid[best], count)


def _follow(known: Tensor, overlap: Tensor, found_roi: Tensor, score: Tensor) -> Tensor:
    """Return the regions [P,4] of faces that go on: the known ones, or of a sure detection that is ahead.

    Args:
        known: FP32 [P,4] regions of the landmarks of the frame before.
        overlap: FP32 [D,P] of the detections with those landmarks, 0 where a detection is not valid.
        found_roi: FP32 [D,4] regions of the detections.
        score: FP32 [D] of the detections.

    """
    best, nearest = overlap.max(0)
    ahead = found_roi[nearest]
    away = (ahead[:, :2] - known[:, :2]).norm(dim=1)
    moved = (best > TRACKED_IOU) & (score[nearest] >= WEAK_DETECTION) & (away > MOVED * known[:, 2])
    return torch.where(moved[:, None], ahead, known)


def roi_from_detections(found: TorchDetections) -> Tensor:
    """Return the regions [D,4] of detections, see :func:`facegraph_server.face_crop.roi_from_detections`."""
    eyes = found.keypoints[:, LEFT_EYE] - found.keypoints[:, RIGHT_EYE]
    corners = found.box_xyxy.reshape(-1, 2, 2)
    side = (corners[:, 1] - corners[:, 0]).amax(1) * DETECTION_SCALE
    return torch.cat([corners.mean(1), torch.stack([side, torch.atan2(eyes[:, 1], eyes[:, 0])], 1)], 1)


def roi_from_landmarks(landmarks_px: Tensor) -> Tensor:
    """Return the regions [n,4] around landmarks, see :func:`facegraph_server.face_crop.roi_from_landmarks`."""
    eyes = landmarks_px[:, LEFT_EYE_CORNER, :2] - landmarks_px[:, RIGHT_EYE_CORNER, :2]
    angle = torch.atan2(eyes[:, 1], eyes[:, 0])
    turned = rotate(landmarks_px[..., :2], -angle)
    low, high = turned.amin(1), turned.amax(1)
    centre = rotate((low + high)[:, None] / 2, angle)[:, 0]
    side = (high - low).amax(1) * LANDMARKS_SCALE
    return torch.cat([centre, torch.stack([side, angle], 1)], 1)


def rotate(points: Tensor, angle: Tensor) -> Tensor:
    """Turn points [n,k,2] clockwise (y points down) by ``angle`` [n] radians."""
    cosine, sine = angle.cos()[:, None], angle.sin()[:, None]
    x, y = points[..., 0], points[..., 1]
    return torch.stack([cosine * x - sine * y, sine * x + cosine * y], -1)


def landmarks_box(landmarks_px: Tensor) -> Tensor:
    """Return the bounding boxes [n,4] of landmarks [n,V,3]."""
    return torch.cat([landmarks_px[..., :2].amin(1), landmarks_px[..., :2].amax(1)], 1)


def box_iou(boxes_xyxy: Tensor, others_xyxy: Tensor) -> Tensor:
    """Return the intersection over union of each box [n,4] with each other box [m,4], FP32 [n,m]."""
    intersection, area, others_area = _intersections(boxes_xyxy, others_xyxy)
    return intersection / (area + others_area - intersection).clamp(min=1e-6)


def box_containment(boxes_xyxy: Tensor, others_xyxy: Tensor) -> Tensor:
    """Return what part of the smaller box lies inside the larger one, for all pairs, FP32 [n,m]."""
    intersection, area, others_area = _intersections(boxes_xyxy, others_xyxy)
    return intersection / torch.minimum(area, others_area).clamp(min=1e-6)


def _intersections(boxes: Tensor, others: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    low = torch.maximum(boxes[:, None, :2], others[:, :2])
    high = torch.minimum(boxes[:, None, 2:], others[:, 2:])
    intersection = (high - low).clamp(min=0).prod(2)
    return intersection, (boxes[:, 2:] - boxes[:, :2]).prod(1)[:, None], (others[:, 2:] - others[:, :2]).prod(1)


def _seen_whole(corners: Tensor, views: Tensor, size_wh: Tensor) -> Tensor:
    """Tell which boxes [V,A,2,2] their view [V,3] shows whole, see ``detection``."""
    low, high = views[:, None, :2], views[:, None, :2] + views[:, None, 2:]
    cut_low = (low > CUT_MARGIN_PX) & (corners[:, :, 0] < TILE_MARGIN * DETECTOR_SIZE_PX)
    cut_high = (high < size_wh - CUT_MARGIN_PX) & (corners[:, :, 1] > (1 - TILE_MARGIN) * DETECTOR_SIZE_PX)
    small = corners[:, :, 1] - corners[:, :, 0] <= TILE_LARGEST_FACE * DETECTOR_SIZE_PX
    return (small & ~cut_low & ~cut_high).all(2)
