"""The texture, rendered back onto the photo through the fitted mesh, reproduces the photo."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from facegraph_client import canonical_face, rasterize
from facegraph_server.reconstruction import reconstruct_faces
from numpy.typing import NDArray

from tests.server.pipeline import find_faces

SHARED = Path(__file__).parents[3] / "shared" / "images"
WELL_COVERED = 128


def round_trip_psnr(image_rgb: NDArray[np.uint8]) -> tuple[float, float]:
    """Return PSNR in dB on the well covered face pixels, and what part of the face they are."""
    landmarks = find_faces(image_rgb).landmarks_px[:1]
    faces = reconstruct_faces(image_rgb, landmarks)
    face = canonical_face()
    raster = rasterize(landmarks[0], face.triangles, (image_rgb.shape[1], image_rgb.shape[0]))
    seen = raster.triangle >= 0
    uv = (face.uv[face.triangles[raster.triangle]] * raster.barycentric[..., None]).sum(-2)
    size = faces.texture_rgb.shape[1]
    at = (uv * (size, -size) + (-0.5, size - 0.5)).astype(np.float32)
    rendered = cv2.remap(faces.texture_rgb[0], at, None, cv2.INTER_LINEAR)[seen].astype(float)
    covered = cv2.remap(faces.coverage[0], at, None, cv2.INTER_LINEAR)[seen] >= WELL_COVERED
    error = (rendered - image_rgb[seen])[covered]
    return float(10 * np.log10(255**2 / np.mean(error**2))), float(covered.mean())


def test_astronaut(astronaut_rgb: NDArray[np.uint8]) -> None:
    psnr_db, part = round_trip_psnr(astronaut_rgb)
    assert psnr_db >= 30
    assert part >= 0.6


@pytest.mark.skipif(not SHARED.is_dir(), reason="the workshop's photos are not here")
@pytest.mark.parametrize("name", ["obama", "biden"])
def test_the_workshops_photos(name: str) -> None:
    psnr_db, part = round_trip_psnr(np.asarray(cv2.imread(str(SHARED / f"{name}.jpg"))[..., ::-1], np.uint8))
    assert psnr_db >= 30
    assert part >= 0.6
