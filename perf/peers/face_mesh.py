"""MediaPipe's FaceMesh with the photo's bytes in and an array out: the part that all peers share."""

from __future__ import annotations

from typing import Any

import cv2
import mediapipe
import numpy as np
import simplejpeg
from numpy.typing import NDArray

# One NormalizedLandmark on the wire: its tag and length, then x, y and z, each a FLOAT32 behind its tag. Reading the
# bytes takes a tenth of the time that a loop over the message's attributes takes.
_LANDMARK = np.dtype(
    [("head", "u1", 2), ("tx", "u1"), ("x", "<f4"), ("ty", "u1"), ("y", "<f4"), ("tz", "u1"), ("z", "<f4")]
)


class FaceMesh:
    """FaceMesh for single photos and one face. One thread at a time may call it."""

    def __init__(self) -> None:
        self._mesh = mediapipe.solutions.face_mesh.FaceMesh(
            static_image_mode=True, refine_landmarks=False, max_num_faces=1
        )

    def landmarks_px(self, image_rgb: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return FP32 [F,468,3] in pixels; z has the scale of x. F is 0 or 1."""
        faces = self._mesh.process(image_rgb).multi_face_landmarks or []
        scale = np.array([image_rgb.shape[1], image_rgb.shape[0], image_rgb.shape[1]], np.float32)
        return np.stack([_points(face) for face in faces]) * scale if faces else np.zeros((0, 468, 3), np.float32)


def decode_with_simplejpeg(photo: bytes) -> NDArray[np.uint8]:
    """Decode a JPEG as facegraph does: the faster way."""
    return np.asarray(simplejpeg.decode_jpeg(photo), np.uint8)


def decode_with_opencv(photo: bytes) -> NDArray[np.uint8]:
    """Decode a picture as most people do."""
    return np.asarray(cv2.imdecode(np.frombuffer(photo, np.uint8), cv2.IMREAD_COLOR_RGB), np.uint8)


def _points(face: Any) -> NDArray[np.float32]:
    wire = np.frombuffer(face.SerializeToString(), _LANDMARK)
    return np.stack([wire["x"], wire["y"], wire["z"]], axis=1)
