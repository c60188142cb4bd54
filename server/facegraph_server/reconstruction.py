"""The faces of a picture in 3D: metric mesh, pose and UV texture of each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from facegraph_client import InputError
from numpy.typing import NDArray

from facegraph_server.contract import DEFAULT_TEXTURE_SIZE_PX, MAX_TEXELS, TEXTURE_SIZE_RANGE_PX, VERTICES
from facegraph_server.geometry import fit_head
from facegraph_server.texture import unwrap_texture


class Reconstruction(NamedTuple):
    """The faces of a picture in 3D.

    Attributes:
        vertices_cm: FP32 [F,468,3] in the head frame: +x to the person's left, +y up, +z out of the face.
        pose: FP32 [F,4,4] from the head to the camera, rigid, in cm; see :mod:`facegraph_server.geometry`.
        texture_rgb: UINT8 [F,T,T,3].
        coverage: UINT8 [F,T,T], how well the photo showed each texel.

    """

    vertices_cm: NDArray[np.float32]
    pose: NDArray[np.float32]
    texture_rgb: NDArray[np.uint8]
    coverage: NDArray[np.uint8]


def check_texture_size(size_px: int, faces: int) -> None:
    """Check the size of the textures of so many faces.

    Raises:
        InputError: it is out of range, or all of them are too much for one answer.

    """
    low, high = TEXTURE_SIZE_RANGE_PX
    if not low <= size_px <= high:
        raise InputError(f"the texture size must be {low} to {high} texels, not {size_px}")
    if faces * size_px**2 > MAX_TEXELS:
        most = int((MAX_TEXELS / faces) ** 0.5)
        raise InputError(
            f"the photo shows {faces} faces: for so many the texture size may be at most {most} texels, not {size_px}"
        )


def reconstruct_faces(
    image_rgb: NDArray[np.uint8], landmarks_px: NDArray[np.float32], texture_size_px: int = DEFAULT_TEXTURE_SIZE_PX
) -> Reconstruction:
    """Reconstruct every face of a picture.

    Args:
        image_rgb: UINT8 [H,W,3], the upright picture.
        landmarks_px: FP32 [F,468,3]; F may be 0.
        texture_size_px: side T of the textures.

    Raises:
        InputError: see :func:`check_texture_size`.

    """
    check_texture_size(texture_size_px, len(landmarks_px))
    count, size = len(landmarks_px), texture_size_px
    faces = Reconstruction(
        np.empty((count, VERTICES, 3), np.float32),
        np.empty((count, 4, 4), np.float32),
        np.empty((count, size, size, 3), np.uint8),
        np.empty((count, size, size), np.uint8),
    )
    for i, landmarks in enumerate(landmarks_px):
        head = fit_head(landmarks, (image_rgb.shape[1], image_rgb.shape[0]))
        faces.vertices_cm[i], faces.pose[i] = head.vertices_cm, head.pose
        faces.texture_rgb[i], faces.coverage[i] = unwrap_texture(image_rgb, landmarks, size)
    return faces
