"""Photos as they come in: a path, encoded bytes, or an array."""

from __future__ import annotations

import io
import os
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Union

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from facegraph_client._errors import ImageError

Photo = Union[str, "os.PathLike[str]", bytes, NDArray[np.uint8]]
"""A path, the bytes of an encoded picture (JPEG, PNG, WebP, BMP, TIFF, HEIC, AVIF), or UINT8 [H,W,3] RGB."""

MAX_PHOTO_BYTES = 384 * 2**20
"""Room for the largest picture that the server decodes (120 megapixels), sent as an array; keeps a video or a disk
image, given by mistake, off the network."""

_RGB_CHANNELS = 3


def encoded_photo(photo: Photo) -> bytes:
    """Return the encoded picture to send. What the bytes hold is the server's to judge.

    Raises:
        ImageError: the file is missing, unreadable, a folder, empty or too large; the array is not UINT8 [H,W,3].

    """
    if isinstance(photo, np.ndarray):
        return _encode(photo)
    if isinstance(photo, bytes | bytearray | memoryview):
        return _checked(bytes(photo), "the photo")
    if isinstance(photo, str | os.PathLike):
        return _read(Path(photo))
    raise ImageError(f"a photo is a path, bytes or an array UINT8 [H,W,3], not {type(photo).__name__}")


def load_upright_rgb(photo: Photo) -> NDArray[np.uint8]:
    """Decode a photo to the pixels that landmarks refer to, for drawing on them.

    HEIC needs the package ``pillow-heif``; all other formats need nothing more.

    Returns:
        UINT8 [H,W,3] RGB: first frame, EXIF orientation applied, transparency over white. An array is returned as is.

    Raises:
        ImageError: the photo cannot be read or decoded here.

    """
    if isinstance(photo, np.ndarray):
        return photo
    encoded = encoded_photo(photo)
    with suppress(ImportError):
        from pillow_heif import register_heif_opener  # noqa: PLC0415  (optional)

        register_heif_opener()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # large photos are welcome; bombs raise
            with Image.open(io.BytesIO(encoded)) as image:
                return np.asarray(_rgb(ImageOps.exif_transpose(image)))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ImageError(f"the photo cannot be decoded for drawing: {error}") from error


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith(("I", "F")):  # 16 bits: Pillow's own conversion would clip instead of scale
        return Image.fromarray((np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


def _read(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise ImageError(f"{path} is a folder: name the photos in it, for example {path / '*.jpg'}")
        with path.open("rb") as file:
            content = file.read(MAX_PHOTO_BYTES + 1)
    except FileNotFoundError as error:
        raise ImageError(f"{path} does not exist: check the name") from error
    except OSError as error:
        raise ImageError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # a NUL in the name
        raise ImageError(f"{str(path)!r} is not a file name") from error
    return _checked(content, str(path))


def _checked(content: bytes, name: str) -> bytes:
    if not content:
        raise ImageError(f"{name} is empty: give an encoded picture, such as a JPEG or PNG file")
    if len(content) > MAX_PHOTO_BYTES:
        raise ImageError(f"{name} is larger than {MAX_PHOTO_BYTES // 2**20} MiB: is it a photo? If so, scale it down")
    return content


def _encode(image_rgb: NDArray[np.uint8]) -> bytes:
    """Encode as BMP: lossless and about as fast as a copy, and every decoder knows it."""
    if image_rgb.dtype != np.uint8 or image_rgb.ndim != _RGB_CHANNELS or image_rgb.shape[2] != _RGB_CHANNELS:
        raise ImageError(
            f"a photo as an array must be UINT8 [H,W,3] RGB, not {image_rgb.dtype.name.upper()} {list(image_rgb.shape)}"
        )
    if image_rgb.nbytes == 0:
        raise ImageError(f"the photo is empty: its shape is {list(image_rgb.shape)}")
    if image_rgb.nbytes > MAX_PHOTO_BYTES:
        raise ImageError(f"the photo is larger than {MAX_PHOTO_BYTES // 2**20} MiB: scale it down")
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image_rgb)).save(buffer, "BMP")
    return buffer.getvalue()
