from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable

import cv2
import numpy as np
import pillow_heif
import pytest
from facegraph_client import ImageError
from facegraph_server.image_decode import check_frame, decode_image
from numpy.typing import NDArray
from PIL import Image, ImageOps

SIZE = (60, 40)  # width, height


def gradient() -> NDArray[np.uint8]:
    x, y = np.meshgrid(np.linspace(0, 255, SIZE[0]), np.linspace(0, 255, SIZE[1]))
    return np.stack([x, y, 255 - x], -1).astype(np.uint8)


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def rgb() -> Image.Image:
    return Image.fromarray(gradient())


def heif(kind: str) -> bytes:
    buffer = io.BytesIO()
    if kind == "AVIF":
        rgb().save(buffer, "AVIF", quality=95)
    else:
        pillow_heif.from_pillow(rgb()).save(buffer, quality=95)
    return buffer.getvalue()


def animation(kind: str) -> bytes:
    second = Image.new("RGB", SIZE, "black")
    return encoded(rgb(), kind, save_all=True, append_images=[second], **({"quality": 95} if kind == "WEBP" else {}))


def grey16_png() -> bytes:
    grey = gradient()[..., 0].astype(np.uint16) * 257
    ok, buffer = cv2.imencode(".png", grey)
    assert ok
    return buffer.tobytes()


def oriented_jpeg(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(rgb(), "JPEG", quality=95, subsampling=0, exif=exif)


COLOUR = [
    pytest.param(lambda: encoded(rgb(), "JPEG", quality=95, subsampling=0), 6, id="jpeg"),
    pytest.param(lambda: encoded(rgb(), "JPEG", quality=95, subsampling=0, progressive=True), 6, id="progressive-jpeg"),
    pytest.param(lambda: encoded(rgb(), "JPEG", quality=95, subsampling=0) + b"\0" * 9, 6, id="padded-jpeg"),
    pytest.param(lambda: encoded(rgb(), "JPEG", quality=95, subsampling=0) + b"trailer", 6, id="jpeg-with-trailer"),
    pytest.param(lambda: encoded(rgb().convert("CMYK"), "JPEG", quality=95), 30, id="cmyk-jpeg"),
    pytest.param(lambda: encoded(rgb(), "PNG"), 0, id="png"),
    pytest.param(lambda: encoded(rgb().convert("RGBA"), "PNG"), 0, id="opaque-rgba-png"),
    pytest.param(lambda: encoded(rgb().quantize(256), "PNG"), 40, id="palette-png"),
    pytest.param(lambda: encoded(rgb(), "WEBP", lossless=True), 0, id="webp"),
    pytest.param(lambda: encoded(rgb(), "BMP"), 0, id="bmp"),
    pytest.param(lambda: encoded(rgb(), "TIFF"), 0, id="tiff"),
    pytest.param(lambda: heif("HEIF"), 20, id="heic"),
    pytest.param(lambda: heif("AVIF"), 20, id="avif"),
    pytest.param(lambda: animation("GIF"), 40, id="first-frame-of-gif"),
    pytest.param(lambda: animation("WEBP"), 20, id="first-frame-of-webp"),
]


@pytest.mark.parametrize(("make", "tolerance"), COLOUR)
def test_every_kind_of_picture_decodes_to_the_same_pixels(make: Callable[[], bytes], tolerance: int) -> None:
    decoded = decode_image(make())
    assert decoded.dtype == np.uint8
    assert decoded.shape == (SIZE[1], SIZE[0], 3)
    difference = np.abs(decoded.astype(int) - gradient())
    assert difference.mean() <= tolerance / 3
    assert np.quantile(difference, 0.95) <= tolerance


@pytest.mark.parametrize("orientation", range(10))
def test_exif_orientation_is_applied_as_pillow_does(orientation: int) -> None:
    data = oriented_jpeg(orientation)
    upright = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))), int)
    decoded = decode_image(data)
    assert decoded.flags.c_contiguous
    assert decoded.shape == upright.shape
    assert np.abs(decoded - upright).max() <= 2


@pytest.mark.parametrize(
    ("data", "tolerance"),
    [
        pytest.param(encoded(rgb().getchannel("R"), "JPEG", quality=95), 4, id="jpeg"),
        pytest.param(encoded(rgb().getchannel("R"), "PNG"), 0, id="png"),
        pytest.param(grey16_png(), 0, id="16-bit-png"),
    ],
)
def test_grey_pictures_become_three_equal_channels(data: bytes, tolerance: int) -> None:
    decoded = decode_image(data).astype(int)
    assert np.abs(decoded - gradient()[..., :1]).max() <= tolerance


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_a_damaged_exif_block_does_not_cost_the_picture(kind: str) -> None:
    options = {"lossless": True} if kind == "WEBP" else {"quality": 95, "subsampling": 0} if kind == "JPEG" else {}
    decoded = decode_image(encoded(rgb(), kind, exif=b"Exif\0\0" + b"nonsense" * 4, **options))
    assert np.abs(decoded.astype(int) - gradient()).mean() <= 2


def test_a_header_that_promises_more_than_the_file_holds_is_damage() -> None:
    at = JPEG.index(b"\xff\xc0") + 5  # height and width of the frame header
    inflated = JPEG[:at] + struct.pack(">HH", 10_900, 10_900) + JPEG[at + 4 :]
    with pytest.raises(ImageError, match="damaged or incomplete"):
        decode_image(inflated)


def test_transparent_pixels_are_white() -> None:
    layers = rgb().convert("RGBA")
    layers.putalpha(0)
    assert (decode_image(encoded(layers, "PNG")) == 255).all()


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_header(width: int, height: int) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + png_chunk(b"IDAT", zlib.compress(b"\0" * 99))


JPEG = encoded(rgb().resize((400, 300)), "JPEG", quality=95)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(b"", "empty", id="empty"),
        pytest.param(b"hello, world", "plain text", id="text"),
        pytest.param(b"\x00\x01\x02\xff" * 20, "unknown kind", id="noise"),
        pytest.param(b"%PDF-1.7 ...", "PDF document", id="pdf"),
        pytest.param(b'\n <svg xmlns="x"></svg>', "SVG drawing", id="svg"),
        pytest.param(b'<?xml version="1.0"?><svg></svg>', "XML or SVG", id="svg-with-xml-head"),
        pytest.param(JPEG[: len(JPEG) // 2], "damaged or incomplete", id="truncated-jpeg"),
        pytest.param(JPEG[:40], "damaged or incomplete|not a picture", id="jpeg-header-only"),
        pytest.param(encoded(rgb(), "PNG")[:-40], "damaged or incomplete", id="truncated-png"),
        pytest.param(encoded(Image.new("RGB", (1, 1)), "PNG"), "1x1 px.*at least 16", id="one-pixel"),
        pytest.param(png_header(100_000, 100_000), "100000x100000.*megapixels", id="decompression-bomb"),
    ],
)
def test_what_is_no_picture_is_refused_with_the_reason(data: bytes, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        decode_image(data)


def test_a_frame_must_have_a_sensible_size() -> None:
    good = np.zeros((16, 16, 3), np.uint8)
    assert check_frame(good) is good
    with pytest.raises(ImageError, match="4x20 px"):
        check_frame(np.zeros((20, 4, 3), np.uint8))
