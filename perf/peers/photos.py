"""The photos that every candidate gets: portraits on which MediaPipe's FaceMesh finds the face too."""

from __future__ import annotations

import io
from pathlib import Path

import matplotlib.cbook
from facegraph_server.paths import SAMPLE_PHOTO
from PIL import Image

_JPEG_QUALITY = 90


def write_photos(folder: Path) -> list[str]:
    """Write the photos as JPEG files whose names sort in the order of the list returned: what they are.

    Two portraits in the public domain, Eileen Collins (NASA) and Grace Hopper (US Navy): as they are, and twice as
    large.
    """
    hopper = Path(matplotlib.cbook._get_data_path("sample_data")) / "grace_hopper.jpg"
    names: list[str] = []
    for portrait in (SAMPLE_PHOTO, hopper):
        for scale in (1, 2):
            with Image.open(portrait) as image:
                size_px = (image.width * scale, image.height * scale)
                encoded = portrait.read_bytes() if scale == 1 else _scaled(image, size_px)
            name = f"{portrait.stem} {size_px[0]}x{size_px[1]}"
            (folder / f"{len(names)}.jpg").write_bytes(encoded)
            names.append(name)
    return names


def _scaled(image: Image.Image, size_px: tuple[int, int]) -> bytes:
    buffer = io.BytesIO()
    image.convert("RGB").resize(size_px, Image.Resampling.LANCZOS).save(buffer, "JPEG", quality=_JPEG_QUALITY)
    return buffer.getvalue()
