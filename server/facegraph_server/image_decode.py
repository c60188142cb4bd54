"""Decode one encoded picture into upright RGB pixels.

Outside the CUDA graph: the size of the result, and the work, depend on the picture.
"""

from __future__ import annotations

import io

import cv2
import numpy as np
import pillow_heif
from facegraph_client import ImageError
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "HEIF", "AVIF")
"""What Pillow may try; the names are Pillow's. Everything else is refused unseen."""

MIN_SIDE_PX = 16
MAX_PIXELS = 120_000_000
"""Largest picture that is decoded: 360 MB as RGB."""

_JPEG_START = b"\xff\xd8\xff"
_JPEG_END = b"\xff\xd9"
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
            if _is_plain_jpeg(picture, data):
                pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
                if pixels is not None:
                    return np.asarray(pixels, np.uint8)
            return _decode_with_pillow(picture)
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


def _is_plain_jpeg(picture: Image.Image, data: bytes) -> bool:
    """Tell whether OpenCV, which is faster, decodes these bytes as Pillow would.

    OpenCV fills the missing part of a truncated JPEG with grey and says nothing, so only a file that ends with
    the end marker goes there.
    """
    return data.startswith(_JPEG_START) and data.rstrip(b"\0").endswith(_JPEG_END) and picture.mode in ("RGB", "L")


def _decode_with_pillow(picture: Image.Image) -> NDArray[np.uint8]:
    upright = ImageOps.exif_transpose(picture)
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
