"""Metric head geometry: from landmarks in pixels to vertices in centimetres and a head pose.

Outside the CUDA graph: a few small matrix products for each face of a picture.

The camera is weak-perspective, as the landmarks are (their z has the scale of x): a point of the head frame is seen at

    camera_cm = R v + t,   x = cx + s camera_cm.x,   y = cy - s camera_cm.y,   z = z_origin - s (camera_cm.z - t.z)

with s in px per cm and (cx, cy) the middle of the picture. The pose's depth is what a pinhole camera with the assumed
vertical field of view needs to see the head at the scale s, so s = focal_px / -t.z: the pose alone gives the scale.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from facegraph_client import InputError, canonical_face
from numpy.typing import NDArray

from facegraph_server.contract import VERTICES

VERTICAL_FOV_DEG = 63.0
"""Vertical field of view assumed for every photo. Source: the default of MediaPipe's face geometry."""

_BASIS = {
    4: 0.070909939706326,
    6: 0.032100144773722,
    10: 0.008446550928056,
    33: 0.058724168688059,
    54: 0.007667080033571,
    67: 0.009078059345484,
    117: 0.009791937656701,
    119: 0.014565368182957,
    121: 0.018591361120343,
    127: 0.005197994410992,
    129: 0.120625205338001,
    132: 0.005560018587857,
    133: 0.05328618362546,
    136: 0.066890455782413,
    143: 0.014816547743976,
    147: 0.014262833632529,
    198: 0.025462191551924,
    205: 0.047252278774977,
    263: 0.058724168688059,
    284: 0.007667080033571,
    297: 0.009078059345484,
    346: 0.009791937656701,
    348: 0.014565368182957,
    350: 0.018591361120343,
    356: 0.005197994410992,
    358: 0.120625205338001,
    361: 0.005560018587857,
    362: 0.05328618362546,
    365: 0.066890455782413,
    372: 0.014816547743976,
    376: 0.014262833632529,
    420: 0.025462191551924,
    425: 0.047252278774977,
}
"""Weight of each landmark in the fit: the parts that move least with expression, and none of the lips or eyelids.

Source: MediaPipe, ``mediapipe/modules/face_geometry/data/geometry_pipeline_metadata_landmarks.pbtxt`` (Apache-2.0).
"""

_TO_CAMERA_AXES = np.array([1.0, -1.0, -1.0])  # x right, y down, z away -> x right, y up, z towards the viewer
_FLATTEST = 1e-3  # second extent of the landmarks over the first; a real face has at least 0.3 from any side
_FLAT_COVARIANCE = 0.02  # below it depth says nothing about handedness (landmarks without z); a real face has 0.2


def mesh_landmarks(landmarks_px: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Return FP64 [468,3]: the mesh's landmarks without irises.

    Args:
        landmarks_px: [468,3] or [478,3].

    Raises:
        InputError: the shape is another one, or a number is not finite.

    """
    landmarks = np.asarray(landmarks_px, np.float64)
    if landmarks.shape[1:] != (3,) or len(landmarks) < VERTICES:
        raise InputError(f"landmarks must have the shape [{VERTICES},3], not {list(landmarks.shape)}")
    if not np.isfinite(landmarks).all():
        raise InputError("the landmarks contain NaN or infinity; detect the face again")
    return landmarks[:VERTICES]


class HeadFit(NamedTuple):
    """The canonical face's frame found in a photo, and the face's own shape in it.

    Attributes:
        vertices_cm: FP32 [468,3], head frame: +x to the person's left, +y up, +z out of the face.
        pose: FP32 [4,4], head to camera, a rigid motion in cm. The camera looks along -z, +x right, +y up.
        scale_px_per_cm: size of one centimetre at the head, in px of the photo.
        z_origin_px: landmark z of the head frame's origin. Only differences of z have a meaning.

    """

    vertices_cm: NDArray[np.float32]
    pose: NDArray[np.float32]
    scale_px_per_cm: float
    z_origin_px: float


def fit_head(landmarks_px: NDArray[np.floating[Any]], image_wh: tuple[int, int]) -> HeadFit:
    """Fit the canonical face to landmarks by a similarity, and express the landmarks in its frame in centimetres.

    The similarity is the least-squares one without reflection (Umeyama, "Least-squares estimation of transformation
    parameters between two point patterns", 1991), weighted by MediaPipe's landmark basis. The landmarks themselves
    are kept: :func:`project_head` returns them.

    Args:
        landmarks_px: [468,3] or [478,3] (irises are ignored), px of the upright photo, z in the scale of x.
        image_wh: width and height of the photo in px.

    Raises:
        InputError: the landmarks are not finite, all alike, on one line, or mirrored.

    """
    canonical = canonical_face().vertices_cm.astype(np.float64)
    points = mesh_landmarks(landmarks_px) * _TO_CAMERA_AXES
    rotation, scale, translation = _similarity(canonical, points)
    focal_px = _focal_px(image_wh)
    pose = np.eye(4)
    pose[:3, :3] = rotation
    pose[:2, 3] = (translation[:2] - _middle_px(image_wh) * _TO_CAMERA_AXES[:2]) / scale
    pose[2, 3] = -focal_px / scale
    vertices = (points - translation) @ rotation / scale  # row vectors: v R is R^T v
    return HeadFit(vertices.astype(np.float32), pose.astype(np.float32), float(scale), float(-translation[2]))


def project_head(head: HeadFit, image_wh: tuple[int, int]) -> NDArray[np.float32]:
    """Return FP32 [468,3] landmarks in px: where the photo shows the vertices. The inverse of :func:`fit_head`."""
    rotated = head.vertices_cm.astype(np.float64) @ head.pose[:3, :3].T.astype(np.float64)
    origin = np.array([*head.pose[:2, 3], 0.0])
    points = (rotated + origin) * head.scale_px_per_cm * _TO_CAMERA_AXES
    points[:, :2] += _middle_px(image_wh)
    points[:, 2] += head.z_origin_px
    landmarks: NDArray[np.float32] = points.astype(np.float32)
    return landmarks


def _similarity(
    source: NDArray[np.float64], target: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float, NDArray[np.float64]]:
    """Weighted least squares: target = scale rotation source + translation."""
    ids = list(_BASIS)
    weights = np.array(list(_BASIS.values()))
    weights /= weights.sum()
    source, target = source[ids], target[ids]
    source_mean, target_mean = weights @ source, weights @ target
    source, target = source - source_mean, target - target_mean
    extents = np.linalg.svd(target * np.sqrt(weights)[:, None], compute_uv=False)
    if extents[1] <= _FLATTEST * max(extents[0], np.abs(target_mean).max() * 1e-6, 1e-9):
        raise InputError("the landmarks are a point or a line, so no head can be fitted; detect the face again")
    left, singular, right = np.linalg.svd((target * weights[:, None]).T @ source)
    handed = np.array([1.0, 1.0, np.sign(np.linalg.det(left @ right))])
    if handed[2] < 0 and singular[2] > _FLAT_COVARIANCE * singular[1]:
        raise InputError(
            "the landmarks are a mirrored face (x must point right, y down, and smaller z must be nearer); "
            "mirror the photo before detecting the face, not the landmarks"
        )
    rotation = (left * handed) @ right
    scale = float((singular * handed).sum() / (weights @ (source**2).sum(1)))
    return rotation, scale, target_mean - scale * rotation @ source_mean


def _focal_px(image_wh: tuple[int, int]) -> float:
    return image_wh[1] / 2 / math.tan(math.radians(VERTICAL_FOV_DEG / 2))


def _middle_px(image_wh: tuple[int, int]) -> NDArray[np.float64]:
    return (np.array(image_wh, np.float64) - 1) / 2  # pixel (i, j) has its centre at (i, j)
