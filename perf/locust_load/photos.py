"""Photos and video frames whose faces are known, and the check of an answer against them.

All come from the sample photo by scaling, shifting and pasting, so the expected landmarks follow from MediaPipe's own
for that photo by the same arithmetic. A server that answers quickly but wrongly cannot pass.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from facegraph_client import Face, FaceGraphError, FaceLandmarks
from numpy.typing import NDArray
from PIL import Image

_REPOSITORY = Path(__file__).resolve().parents[2]
_SAMPLE = _REPOSITORY / "samples" / "astronaut.jpg"
_REFERENCE = _REPOSITORY / "tests" / "data" / "astronaut_landmarks.csv"

TOLERANCE = 0.03
"""Largest mean distance of landmarks from the expected, in widths of the face. A good answer is within a third of it; a
face that is another one, or in another place, is far outside."""

_LEAST_SEEN, _LEAST_CONTRAST = 0.2, 5.0  # part of the texels; standard deviation of a colour's 256 values
_FRAME_SIZE_WH = (448, 352)  # the face of the sample stays inside wherever the window is
_SWEEP_FRAMES = 180


class WrongAnswerError(FaceGraphError):
    """The server answered in time, but not with the faces that the photo shows."""


class KnownPhoto(NamedTuple):
    """An encoded photo and the landmarks FP32 [468,2] in pixels of each of its faces."""

    name: str
    encoded: bytes
    faces_px: tuple[NDArray[np.float32], ...]


def known_photos() -> list[KnownPhoto]:
    """Return small and large photos, with one face, two faces and none, as JPEG, PNG and WebP."""
    sample, landmarks = _sample(), _reference_px()
    pair = Image.new("RGB", (2 * sample.width, sample.height))
    pair.paste(sample, (0, 0))
    pair.paste(sample, (sample.width, 0))
    shift = np.array([sample.width, 0], np.float32)
    suit = sample.crop((150, 250, 512, 512)).resize((1086, 786), Image.Resampling.LANCZOS)
    return [
        KnownPhoto("one face 512x512 JPEG", _SAMPLE.read_bytes(), (landmarks,)),
        KnownPhoto("one face 256x256 PNG", _encoded(_scaled(sample, 256), "PNG"), (_scaled_px(landmarks, 0.5),)),
        KnownPhoto("one face 1536x1536 JPEG", _encoded(_scaled(sample, 1536), "JPEG"), (_scaled_px(landmarks, 3),)),
        KnownPhoto("two faces 1024x512 WebP", _encoded(pair, "WEBP"), (landmarks, landmarks + shift)),
        KnownPhoto("no face 1086x786 JPEG", _encoded(suit, "JPEG"), ()),
    ]


class MovingFace:
    """Video frames UINT8 [352,448,3] RGB: a window that sweeps over the sample photo, so that the face moves."""

    def __init__(self) -> None:
        self._image, self._landmarks_px = np.asarray(_sample()), _reference_px()

    def frame(self, index: int) -> tuple[NDArray[np.uint8], tuple[NDArray[np.float32], ...]]:
        """Return a frame and the landmarks FP32 [468,2] of its faces."""
        angle = 2 * np.pi * index / _SWEEP_FRAMES
        place = np.array([0.5 + 0.5 * np.sin(angle), 0.125 + 0.125 * np.cos(angle)])
        width, height = _FRAME_SIZE_WH
        corner = np.rint(place * (self._image.shape[1] - width, self._image.shape[0] - height)).astype(int)
        left, top = corner
        window = self._image[top : top + height, left : left + width]
        return window, ((self._landmarks_px - corner).astype(np.float32),)


def check_faces(
    expected_px: Sequence[NDArray[np.float32]], faces: Sequence[FaceLandmarks], tolerance: float = TOLERANCE
) -> None:
    """Compare an answer with what the photo shows, in any order of the faces.

    Args:
        expected_px: landmarks [468,2] in pixels for each face.
        faces: the server's answer.
        tolerance: see :data:`TOLERANCE`.

    Raises:
        WrongAnswerError: a face is missing, is one too many, or is elsewhere.

    """
    if len(faces) != len(expected_px):
        raise WrongAnswerError(f"{len(faces)} faces instead of {len(expected_px)}")
    for landmarks in expected_px:
        width_px = float(np.ptp(landmarks[:, 0]))
        error = min(_mean_distance_px(face.landmarks_px, landmarks) for face in faces) / width_px
        if not error <= tolerance:
            raise WrongAnswerError(f"landmarks are off by more than {tolerance:.0%} of the face's width")


def check_textures(faces: Sequence[FaceLandmarks]) -> None:
    """See that the texture of every reconstructed face is not empty: much of it was seen, and it shows a face.

    Args:
        faces: the server's answer; landmarks without a texture are not looked at.

    Raises:
        WrongAnswerError: a texture is unseen or of one colour.

    """
    for face in faces:
        if isinstance(face, Face):
            seen = face.coverage > 0
            if seen.mean() < _LEAST_SEEN or face.texture_rgb[seen].std(axis=0).min() < _LEAST_CONTRAST:
                raise WrongAnswerError("a texture shows no face")


def _mean_distance_px(landmarks_px: NDArray[np.float32], expected_px: NDArray[np.float32]) -> float:
    return float(np.linalg.norm(landmarks_px[: len(expected_px), :2] - expected_px, axis=1).mean())


def _sample() -> Image.Image:
    return Image.open(_SAMPLE).convert("RGB")


def _reference_px() -> NDArray[np.float32]:
    """MediaPipe's landmarks FP32 [468,2] for the sample photo."""
    return np.loadtxt(_REFERENCE, np.float32, delimiter=",", usecols=(0, 1))


def _scaled(image: Image.Image, size_px: int) -> Image.Image:
    return image.resize((size_px, size_px), Image.Resampling.LANCZOS)


def _scaled_px(landmarks_px: NDArray[np.float32], scale: float) -> NDArray[np.float32]:
    """Scale pixel coordinates whose whole numbers are the centres of pixels."""
    return np.asarray((landmarks_px + 0.5) * scale - 0.5, np.float32)


def _encoded(image: Image.Image, kind: str) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, quality=90)
    return buffer.getvalue()
