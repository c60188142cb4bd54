"""Encode a changed picture as the photo that it comes from was encoded, marked as a composite.

Outside the CUDA graph, as decoding is.
"""

from __future__ import annotations

import io

import numpy as np
from facegraph_client import marked_picture
from numpy.typing import NDArray
from PIL import Image

_SUFFIXES = {"JPEG": ".jpg", "HEIF": ".jpg", "AVIF": ".jpg", "WEBP": ".webp"}
"""By Pillow's name of the photo's format; every other one, which has no loss, becomes PNG."""


def encode_like(frame_rgb: NDArray[np.uint8], photo: bytes) -> bytes:
    """Encode a frame in the format of the photo: JPEG, WebP or PNG, with its colour profile.

    Args:
        frame_rgb: UINT8 [H,W,3], upright.
        photo: the encoded photo that the frame was decoded from.

    """
    with Image.open(io.BytesIO(photo)) as picture:
        suffix = _SUFFIXES.get(picture.format or "", ".png")
        profile = picture.info.get("icc_profile") if picture.mode in ("RGB", "RGBA") else None
    return marked_picture(frame_rgb, suffix, icc_profile=profile)
