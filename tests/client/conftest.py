from __future__ import annotations

import numpy as np
import pytest
from facegraph_client import Face, canonical_face

TEXTURE_SIZE_PX = 64
SCALE_PX_PER_CM = 12.0
CENTER_PX = (200.0, 150.0)


def make_face(texture_size_px: int = TEXTURE_SIZE_PX) -> Face:
    """The canonical face, straight to the camera; its texture's red tells the column and its green the row."""
    vertices = canonical_face().vertices_cm
    landmarks = vertices * np.float32([SCALE_PX_PER_CM, -SCALE_PX_PER_CM, -SCALE_PX_PER_CM]) + np.float32(
        [*CENTER_PX, 0]
    )
    pose = np.eye(4, dtype=np.float32)
    pose[2, 3] = -50
    steps = (np.arange(texture_size_px) * (256 // texture_size_px)).astype(np.uint8)
    texture = np.full((texture_size_px, texture_size_px, 3), 99, np.uint8)
    texture[..., 0] = steps[None, :]
    texture[..., 1] = steps[:, None]
    return Face(
        landmarks_px=landmarks,
        box_xyxy=np.concatenate([landmarks[:, :2].min(0), landmarks[:, :2].max(0)]),
        score=0.875,
        vertices_cm=vertices,
        pose=pose,
        texture_rgb=texture,
        coverage=np.full((texture_size_px, texture_size_px), 255, np.uint8),
    )


@pytest.fixture
def face() -> Face:
    return make_face()
