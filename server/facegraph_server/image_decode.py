"""Decode one encoded picture into upright RGB pixels.

Outside the CUDA graph: the size of the result, and the work, depend on the picture.
"""

from __future__ import annotations

import io
import struct

import numpy as np
import pillow_heif
import simplejpeg
from facegraph_client import ImageError
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "HEIF", "AVIF")
"""What Pillow may try; the names are Pillow's. Everything else is refused unseen."""

MIN_SIDE_PX = 16
MAX_PIXELS = 120_000_000
"""Largest picture that is decoded: 360 MB as RGB."""

_ORIENTATION = 0x0112  # EXIF tag
_DAMAGED_EXIF = (OSError, ValueError, SyntaxError, EOFError, RuntimeError, TypeError, struct.error)
"""What Pillow raises for it."""

_ACCEPTED = "send a JPEG, PNG, WebP, BMP, TIFF, GIF, HEIC or AVIF picture"
_SIGNATURES = (
    (b"%PDF", "a PDF document"),
    (b"<svg", "an SVG drawing"),
    (b"<?xml", "an XML or SVG document"),
    (b"<!doctype", "an HTML page"),
    (b"<html", "an HTML page"),
    (b"PK\x03\x04", "a ZIP archive"),
)

Image.init()
pillow_heif.register_heif_opener()
Image.MAX_IMAGE_PIXELS = None  # the check below has its own limit and its own message


def decode_image(data: bytes) -> NDArray[np.uint8]:
    """Decode a picture: EXIF orientation applied, first frame of an animation, transparency over white.

    Args:
        data: the file's bytes.

    Returns:
        UINT8 [H,W,3] RGB, contiguous.

    Raises:
        ImageError: the bytes are no picture, are damaged, or the picture is too small or too large.

    """
    if not data:
        raise ImageError(f"the picture is empty (0 bytes); {_ACCEPTED}")
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as picture:
            _check_size(*picture.size)
            pixels = _decode_jpeg(picture, data)
            return _decode_with_pillow(picture) if pixels is None else pixels
    except UnidentifiedImageError:
        raise ImageError(f"the {len(data)} bytes are {_describe(data)}, not a picture; {_ACCEPTED}") from None
    except (OSError, ValueError, SyntaxError, EOFError, RuntimeError) as error:
        # Pillow's decoders report damage through any of these.
        raise ImageError(f"the picture is damaged or incomplete ({error}); send the whole file") from error


def check_frame(frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return ``frame`` unchanged if it is a picture, UINT8 [H,W,3].

    Raises:
        ImageError: it is too small or too large.

    """
    _check_size(frame.shape[1], frame.shape[0])
    return frame


def _check_size(width: int, height: int) -> None:
    if min(width, height) < MIN_SIDE_PX:
        raise ImageError(f"the picture is {width}x{height} px; each side must have at least {MIN_SIDE_PX} px")
    if width * height > MAX_PIXELS:
        raise ImageError(
            f"the picture's header says {width}x{height} px; at most {MAX_PIXELS // 1_000_000} megapixels are decoded: "
            "scale it down first"
        )


def _decode_jpeg(picture: Image.Image, data: bytes) -> NDArray[np.uint8] | None:
    """Decode a colour or grey JPEG, a third faster than Pillow would; None if it is none, or is not flawless."""
    if picture.format != "JPEG" or picture.mode not in ("RGB", "L"):
        return None
    orientation = _orientation(picture) if "exif" in picture.info else 1
    try:
        stored = simplejpeg.decode_jpeg(data)
    except ValueError as error:
        if "premature end" in str(error).lower():  # Pillow would paint the missing part grey and say nothing
            raise
        return None
    return np.ascontiguousarray(_turn_upright(stored, orientation))


def _orientation(picture: Image.Image) -> int:
    try:
        return int(picture.getexif().get(_ORIENTATION, 1))
    except _DAMAGED_EXIF:
        return 1


def _turn_upright(stored: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Apply an EXIF orientation, 1 to 8; anything else counts as 1, as with Pillow."""
    if orientation in (5, 6, 7, 8):
        stored = stored.transpose(1, 0, 2)
    flip_rows = orientation in (3, 4, 7, 8)
    flip_columns = orientation in (2, 3, 6, 7)
    return stored[:: -1 if flip_rows else 1, :: -1 if flip_columns else 1]


def _decode_with_pillow(picture: Image.Image) -> NDArray[np.uint8]:
    picture.load()
    try:
        upright = ImageOps.exif_transpose(picture)
    except _DAMAGED_EXIF:
        upright = picture  # its pixels are good, only what it says about itself is not
    if upright.mode.startswith("I"):  # 16-bit grey; Pillow's own conversion to 8 bits clips instead of scaling
        grey = np.asarray(upright, np.int64).clip(0, 0xFFFF) >> 8
        return np.repeat(grey.astype(np.uint8)[..., None], 3, axis=2)
    if upright.has_transparency_data:
        layers = upright.convert("RGBA")
        canvas = Image.new("RGBA", layers.size, "white")
        upright = Image.alpha_composite(canvas, layers)
    return np.array(upright.convert("RGB"), np.uint8)


def _describe(data: bytes) -> str:
    head = data[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    for signature, description in _SIGNATURES:
        if head.startswith(signature.lower()):
            return description
    try:
        data[:512].decode("ascii")
    except UnicodeDecodeError:
        return "of an unknown kind"
    return "plain text"
