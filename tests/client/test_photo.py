from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from facegraph_client import ImageError, _photo, load_upright_rgb
from facegraph_client._photo import encoded_photo
from PIL import Image

RGB = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)


def _encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "array", [RGB, RGB[::-1, ::2], RGB[:1, :1], np.asfortranarray(RGB)], ids=["plain", "view", "1x1", "F"]
)
def test_an_array_is_sent_without_loss(array: np.ndarray) -> None:
    decoded = np.asarray(Image.open(io.BytesIO(encoded_photo(array))))
    np.testing.assert_array_equal(decoded, array)


@pytest.mark.parametrize("name", ["photo.jpg", "my photo.jpg", "Zoë 顔.jpg"])
def test_a_file_is_sent_as_it_is(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"any bytes\0")
    assert encoded_photo(path) == encoded_photo(str(path)) == b"any bytes\0"


@pytest.mark.parametrize("photo", [b"bytes", bytearray(b"bytes"), memoryview(b"bytes")], ids=lambda p: type(p).__name__)
def test_bytes_are_sent_as_they_are(photo: bytes) -> None:
    assert encoded_photo(photo) == b"bytes"


@pytest.mark.parametrize(
    ("photo", "message"),
    [
        (b"", "the photo is empty"),
        (np.zeros((4, 4), np.uint8), r"must be UINT8 \[H,W,3\] RGB, not UINT8 \[4, 4\]"),
        (np.zeros((4, 4, 4), np.uint8), r"not UINT8 \[4, 4, 4\]"),
        (np.zeros((4, 4, 3), np.float32), r"not FLOAT32 \[4, 4, 3\]"),
        (np.zeros((0, 4, 3), np.uint8), "empty"),
        (None, "not NoneType"),
        ("with\0nul", "not a file name"),
        ("/nowhere/photo.jpg", "/nowhere/photo.jpg does not exist"),
        ("", "is a folder"),  # the current one, as for pathlib
        ("x" * 300, "(?i)name too long"),
    ],
    ids=["empty", "gray", "RGBA", "float", "no rows", "None", "NUL", "missing", "no name", "long name"],
)
def test_what_is_no_photo(photo: object, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        encoded_photo(photo)  # type: ignore[arg-type]


def test_files_that_are_no_photo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ImageError, match="is a folder: name the photos in it"):
        encoded_photo(tmp_path)
    (tmp_path / "empty.jpg").touch()
    with pytest.raises(ImageError, match=r"empty\.jpg is empty"):
        encoded_photo(tmp_path / "empty.jpg")
    monkeypatch.setattr(_photo, "MAX_PHOTO_BYTES", 100)
    (tmp_path / "film.mp4").write_bytes(bytes(101))
    with pytest.raises(ImageError, match=r"film\.mp4 is larger than"):
        encoded_photo(tmp_path / "film.mp4")
    with pytest.raises(ImageError, match="larger than"):
        encoded_photo(np.zeros((6, 6, 3), np.uint8))


def test_a_photo_stored_sideways_is_turned_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn clockwise to show
    upright = load_upright_rgb(_encoded(Image.fromarray(RGB), "PNG", exif=exif))
    np.testing.assert_array_equal(upright, np.rot90(RGB, -1))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (_encoded(Image.new("L", (2, 2), 100), "PNG"), (100, 100, 100)),
        (_encoded(Image.fromarray(np.full((2, 2), 100 << 8, np.uint16)), "PNG"), (100, 100, 100)),
        (_encoded(Image.new("RGBA", (2, 2), (10, 20, 30, 0)), "PNG"), (255, 255, 255)),
        (_encoded(Image.new("RGB", (2, 2), (10, 20, 30)).quantize(), "PNG"), (10, 20, 30)),
        (_encoded(Image.new("CMYK", (2, 2), (0, 0, 0, 0)), "JPEG"), (255, 255, 255)),
        (_encoded(Image.new("RGB", (2, 2), (10, 20, 30)), "AVIF", quality=100), (10, 20, 30)),
    ],
    ids=["gray", "16 bit", "transparent", "palette", "CMYK", "AVIF"],
)
def test_every_kind_of_picture_becomes_rgb(content: bytes, expected: tuple[int, int, int]) -> None:
    image = load_upright_rgb(content)
    assert image.shape == (2, 2, 3)
    assert image.dtype == np.uint8
    np.testing.assert_allclose(image, np.broadcast_to(expected, image.shape), atol=2)


def test_heic_needs_only_the_plugin() -> None:
    pillow_heif = pytest.importorskip("pillow_heif")
    buffer = io.BytesIO()
    pillow_heif.from_pillow(Image.new("RGB", (64, 64), (10, 120, 30))).save(buffer, quality=95)
    np.testing.assert_allclose(load_upright_rgb(buffer.getvalue())[32, 32], (10, 120, 30), atol=6)


@pytest.mark.parametrize("content", [b"text", _encoded(Image.fromarray(RGB), "PNG")[:60]], ids=["text", "cut off"])
def test_what_cannot_be_decoded(content: bytes) -> None:
    with pytest.raises(ImageError, match="cannot be decoded"):
        load_upright_rgb(content)
