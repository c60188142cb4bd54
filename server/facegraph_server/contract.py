"""The numbers that the models, their configurations and the steps agree on."""

from __future__ import annotations

DETECTOR_SIZE_PX = 192
"""Side of the detector's square input."""

MESH_SIZE_PX = 192
"""Side of the landmark network's square input."""

KEYPOINTS = 6
"""Key points of a detection: the person's right eye, left eye, nose tip, mouth, right ear, left ear."""

VERTICES = 468
"""Vertices of the face mesh."""

MAX_BATCH = 16
"""Largest batch of both engines: at most 16 detector tiles and 16 faces a picture."""

DEFAULT_TEXTURE_SIZE_PX = 1024
TEXTURE_SIZE_RANGE_PX = (64, 4096)

MAX_TEXELS = 16 * 2048**2
"""Most texels of one answer: 256 MB with their coverage. 16 faces may have 2048 texels a side, 4 may have 4096."""
