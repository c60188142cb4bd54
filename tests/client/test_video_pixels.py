from __future__ import annotations

from fractions import Fraction

import av
import numpy as np
import pytest
from facegraph_client._video_pixels import Colours, Orientation, PixelConverter, changed_box, encoded_format

from .video_clips import picture, yuv_frame

SIZE_PX = (96, 64)
UPRIGHT = Orientation()


def _converter(value_range: int, matrix: int, pixel_format: str = "yuv420p") -> PixelConverter:
    return PixelConverter(Colours(value_range, matrix, matrix, matrix), pixel_format, *SIZE_PX, UPRIGHT)


def _frame(value_range: int, matrix: int, pixel_format: str = "yuv420p") -> av.VideoFrame:
    return yuv_frame(picture(5), pixel_format, {"color_range": value_range, "colorspace": matrix}, 0, Fraction(1, 25))


@pytest.mark.parametrize("value_range", [1, 2])
@pytest.mark.parametrize("matrix", [1, 5, 6, 9])  # BT.709, BT.601 (PAL, NTSC), BT.2020
def test_rgb_shows_the_colours_that_the_numbers_stand_for(value_range: int, matrix: int) -> None:
    converter = _converter(value_range, matrix)
    frame = _frame(value_range, matrix)
    kr, kb = {1: (0.2126, 0.0722), 9: (0.2627, 0.0593)}.get(matrix, (0.299, 0.114))
    y, u, v = (np.asarray(plane, np.float64) for plane in _planes_444(frame))
    if value_range == 1:
        y, u, v = (y - 16) / 219, (u - 128) / 224, (v - 128) / 224
    else:
        y, u, v = y / 255, (u - 128) / 255, (v - 128) / 255
    red, blue = y + 2 * (1 - kr) * v, y + 2 * (1 - kb) * u
    green = (y - kr * red - kb * blue) / (1 - kr - kb)
    expected = (np.stack([red, green, blue], 2) * 255).clip(0, 255)
    difference = converter.rgb(converter.upright(frame)).astype(np.float64) - expected
    inner = difference[12:]  # below the blocks, whose edges depend on how the chroma is interpolated
    assert np.abs(inner.mean((0, 1))).max() < 1.5
    assert np.abs(inner).max() < 6


def _planes_444(frame: av.VideoFrame) -> list[np.ndarray]:
    planes = [
        np.frombuffer(p, np.uint8).reshape(p.height, p.line_size)[:, : p.width].astype(np.float64) for p in frame.planes
    ]
    return [planes[0], *(np.kron(plane, np.ones((2, 2))) for plane in planes[1:])]


@pytest.mark.parametrize("pixel_format", ["yuv420p", "yuvj420p", "yuv444p", "yuvj444p"])
@pytest.mark.parametrize("matrix", [1, 5, 9])
def test_only_what_changed_changes_and_it_gets_its_new_colour(pixel_format: str, matrix: int) -> None:
    value_range = 2 if "j" in pixel_format else 1
    converter = _converter(value_range, matrix, pixel_format)
    stored = converter.upright(_frame(value_range, matrix, pixel_format))
    before = converter.rgb(stored)
    after = before.copy()
    after[21:51, 33:77] = (200, 90, 60)
    changed = converter.with_changes(stored, before, after)
    for old, new in zip(stored.planes, changed.planes, strict=True):
        step_x, step_y = stored.width // old.width, stored.height // old.height
        old_values, new_values = (
            np.frombuffer(p, np.uint8).reshape(p.height, p.line_size)[:, : p.width] for p in (old, new)
        )
        outside = np.ones(old_values.shape, bool)
        outside[20 // step_y : 52 // step_y, 30 // step_x : 80 // step_x] = False
        assert np.array_equal(old_values[outside], new_values[outside])
    shown = converter.rgb(changed)[24:48, 36:74].astype(int)
    assert np.abs(shown.mean((0, 1)) - (200, 90, 60)).max() < 2.5
    assert bytes(stored.planes[0]) == bytes(converter.upright(_frame(value_range, matrix, pixel_format)).planes[0])


def test_a_frame_without_a_change_is_the_stored_one() -> None:
    converter = _converter(1, 1)
    stored = converter.upright(_frame(1, 1))
    image = converter.rgb(stored)
    assert converter.with_changes(stored, image, image.copy()) is stored


def test_the_frame_that_is_handed_out_cannot_be_written_to() -> None:
    converter = _converter(1, 1)
    with pytest.raises(ValueError, match="read-only"):
        converter.rgb(converter.upright(_frame(1, 1)))[0, 0] = 0


@pytest.mark.parametrize("width", [96, 97, 98, 100])  # rows of whole words of 8, 1, 2, and 4 bytes
@pytest.mark.parametrize(
    ("pixels", "box"),
    [
        ([], None),
        ([(30, 40)], (40, 30, 56, 46)),  # grown to what the scaler takes
        ([(0, 0)], (0, 0, 16, 16)),
        ([(63, -1)], (80, 48, 96, 64)),  # and inside the picture
        ([(11, 21), (41, 60)], (20, 10, 62, 42)),  # to even corners
    ],
)
def test_changed_box(width: int, pixels: list[tuple[int, int]], box: tuple[int, int, int, int] | None) -> None:
    before = np.zeros((64, width, 3), np.uint8)
    after = before.copy()
    for row, column in pixels:
        after[row, column, 1] = 1
    found = changed_box(before, after)
    if box is None or found is None:
        assert found is box
        return
    assert found[1::2] == box[1::2]
    if pixels[0][1] == -1:
        assert found[0] <= width - 16 < width == found[2]
    else:
        assert box[0] - 4 <= found[0] <= box[0] < box[2] <= found[2] <= box[2] + 4
    assert found[0] % 2 == 0


@pytest.mark.parametrize(
    ("stored", "size_px", "full", "encoded"),
    [
        ("yuv420p", (96, 64), False, "yuv420p"),
        ("yuvj420p", (96, 64), True, "yuvj420p"),
        ("yuv420p", (96, 64), True, "yuv420p"),  # as VP9 and HEVC name full range
        ("yuv420p", (97, 64), False, "yuv444p"),
        ("yuvj420p", (96, 65), True, "yuvj444p"),
        ("yuv422p", (96, 64), False, "yuv420p"),
        ("yuvj422p", (96, 64), True, "yuvj420p"),
        ("yuv444p", (97, 65), False, "yuv444p"),
        ("yuv444p", (96, 64), False, "yuv444p"),
        ("yuv420p10le", (96, 64), False, "yuv420p"),
        ("nv12", (96, 64), True, "yuvj420p"),
        ("rgb24", (97, 65), False, "yuv444p"),
    ],
)
def test_encoded_format(stored: str, size_px: tuple[int, int], full: bool, encoded: str) -> None:
    assert encoded_format(stored, *size_px, full=full) == encoded
