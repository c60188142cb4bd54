"""From the landmark network's answers to the faces of a picture.

Outside the CUDA graph: how many faces are left, and their order, depend on the picture.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from facegraph_server.contract import VERTICES
from facegraph_server.detection import WEAK_DETECTION, box_containment
from facegraph_server.face_crop import landmarks_in_picture
from facegraph_server.smoothing import smooth_landmarks

PRESENCE_THRESHOLD = 0.5
"""Least probability that a crop holds a face, as in MediaPipe."""

# Small true faces have a presence of 0.99 and more, false alarms of the detector up to 0.95.
WEAK_DETECTION_PRESENCE_THRESHOLD = 0.97

DUPLICATE_CONTAINMENT = 0.6


class Faces(NamedTuple):
    """The faces of a picture: those that go on, in the order of the prior, then new ones, the largest first.

    Attributes:
        landmarks_px: FP32 [F,468,3] in px of the picture.
        box_xyxy: FP32 [F,4], the bounding box of the landmarks.
        score: FP32 [F], the probability that this is a face.

    """

    landmarks_px: NDArray[np.float32]
    box_xyxy: NDArray[np.float32]
    score: NDArray[np.float32]


def collect_faces(
    crop_landmarks: NDArray[np.float32],
    presence: NDArray[np.float32],
    roi: NDArray[np.float32],
    prior_index: NDArray[np.int32],
    detection: NDArray[np.float32],
    face_count: int,
    prior_px: NDArray[np.float32] | None = None,
) -> Faces:
    """Bring the landmarks into the picture, drop false alarms and doubles, smooth what goes on.

    Args:
        crop_landmarks: FP32 [n,468,3] in px of the crop.
        presence: FP32 [n].
        roi: FP32 [n,4], see :class:`facegraph_server.face_crop.Crops`.
        prior_index: INT32 [n], likewise.
        detection: FP32 [n], likewise.
        face_count: likewise; 0 means that the one crop is a stand-in.
        prior_px: FP32 [m,468,3] landmarks of the frame before.

    """
    threshold = np.where(detection < WEAK_DETECTION, WEAK_DETECTION_PRESENCE_THRESHOLD, PRESENCE_THRESHOLD)
    present = np.flatnonzero((presence >= threshold)[:face_count])
    landmarks = landmarks_in_picture(crop_landmarks[present], roi[present])
    score, prior_index = presence[present], prior_index[present]
    box = np.concatenate([landmarks[..., :2].min(1), landmarks[..., :2].max(1)], axis=1)

    area = (box[:, 2:] - box[:, :2]).prod(1)
    is_new = prior_index < 0
    order = np.lexsort((np.where(is_new, -area, prior_index), is_new))
    kept: list[int] = []
    for i in order:
        if not kept or box_containment(box[i], box[kept]).max() < DUPLICATE_CONTAINMENT:
            kept.append(int(i))
    landmarks, box, score, prior_index = landmarks[kept], box[kept], score[kept], prior_index[kept]

    if prior_px is not None:
        for row in np.flatnonzero(prior_index >= 0):
            landmarks[row] = smooth_landmarks(landmarks[row], prior_px[prior_index[row]])
        box = np.concatenate([landmarks[..., :2].min(1), landmarks[..., :2].max(1)], axis=1)
    return Faces(landmarks.reshape(-1, VERTICES, 3), box.reshape(-1, 4), score.astype(np.float32))
