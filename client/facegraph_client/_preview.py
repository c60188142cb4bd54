"""One picture that tells whether a reconstruction is good: photo with mesh, texture, and turned views."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from facegraph_client._render import render
from facegraph_client._results import VERTICES, Face, FaceLandmarks
from facegraph_client._wire import draw_mesh

MAX_FACE_ROWS = 6
"""Faces that :func:`preview` shows in detail; all faces are marked in the photo."""

_WIDTH_PX = 1600
_GAP_PX = 16
_BACKGROUND_RGB = (24, 26, 31)
_PANEL_RGB = (36, 39, 46)
_TEXT_RGB = (168, 176, 190)
_NUMBER_RGB = (255, 255, 255)
_NUMBER_PX = 26
_TEXT_PX = 17
_CAPTION_PX = 30
_YAWS_DEGREES = (-35, 0, 35)
_PHOTO_HEIGHT_PX = 900
_MAX_ENLARGEMENT = 4.0
_WIDE = 1.2  # from this ratio of width to height, a photo goes above the rest and not beside it
_CLOSE_UP_MARGIN = 0.18  # of the face's size, on each side


def preview(image_rgb: NDArray[np.uint8], faces: Sequence[Face]) -> NDArray[np.uint8]:
    """Draw the photo with the meshes on it and, for each face, a close-up, the texture and three turned views.

    Args:
        image_rgb: UINT8 [H,W,3], the upright photo, as :func:`load_upright_rgb` returns it.
        faces: what was reconstructed from it. Beyond :data:`MAX_FACE_ROWS`, faces are only marked in the photo.

    Returns:
        UINT8 [H',1600,3].

    """
    photo = Image.fromarray(np.ascontiguousarray(image_rgb))
    if len(faces) == 1 and photo.width < _WIDE * photo.height:
        return np.asarray(_single(photo, faces[0]))
    return np.asarray(_several(photo, faces))


def draw_landmarks(image_rgb: NDArray[np.uint8], faces: Sequence[FaceLandmarks]) -> NDArray[np.uint8]:
    """Draw the mesh of every face onto a copy of the photo, UINT8 [H,W,3].

    Args:
        image_rgb: UINT8 [H,W,3], the upright photo, as :func:`load_upright_rgb` returns it.
        faces: what was found in it.

    """
    image = Image.fromarray(np.ascontiguousarray(image_rgb)).copy()
    for face in faces:
        draw_mesh(image, face.landmarks_px)
    return np.asarray(image)


def _single(photo: Image.Image, face: Face) -> Image.Image:
    """Lay out one face: the photo on the left, close-up and texture over the views on the right."""
    right_width = 940
    left_width = _WIDTH_PX - right_width - 3 * _GAP_PX
    square = (right_width - _GAP_PX) // 2
    views_height = 380
    height = square + views_height + 3 * _GAP_PX + 2 * _CAPTION_PX
    canvas = _Canvas(height)
    photo_height = height - 2 * _GAP_PX - _CAPTION_PX
    canvas.picture(_fitted(photo, [face], (left_width, photo_height)), _GAP_PX, _GAP_PX, (left_width, photo_height))
    canvas.caption("photo and mesh", _GAP_PX, _GAP_PX + photo_height, left_width)
    left = left_width + 2 * _GAP_PX
    canvas.picture(_close_up(photo, face, square), left, _GAP_PX, (square, square))
    canvas.caption("close-up", left, _GAP_PX + square, square)
    canvas.picture(_texture(face, square), left + square + _GAP_PX, _GAP_PX, (square, square))
    canvas.caption(_texture_caption(face), left + square + _GAP_PX, _GAP_PX + square, square)
    canvas.views(face, left, square + _CAPTION_PX + 2 * _GAP_PX, (right_width, views_height))
    return canvas.image


def _several(photo: Image.Image, faces: Sequence[Face]) -> Image.Image:
    """Lay out any number of faces: the photo on top, and a row for each face."""
    inner = _WIDTH_PX - 2 * _GAP_PX
    photo_height = min(_PHOTO_HEIGHT_PX, round(photo.height * min(inner / photo.width, _MAX_ENLARGEMENT)))
    row = 350
    shown = faces[:MAX_FACE_ROWS]
    photo_caption = _photo_caption(len(faces), len(shown))
    row_height = row + _CAPTION_PX + _GAP_PX
    canvas = _Canvas(2 * _GAP_PX + photo_height + _CAPTION_PX + len(shown) * row_height)
    canvas.picture(_fitted(photo, faces, (inner, photo_height)), _GAP_PX, _GAP_PX, (inner, photo_height))
    canvas.caption(photo_caption, _GAP_PX, _GAP_PX + photo_height, inner)
    for index, face in enumerate(shown):
        top = 2 * _GAP_PX + photo_height + _CAPTION_PX + index * row_height
        canvas.picture(_close_up(photo, face, row), _GAP_PX, top, (row, row))
        canvas.caption(f"face {index + 1}", _GAP_PX, top + row, row)
        canvas.picture(_texture(face, row), row + 2 * _GAP_PX, top, (row, row))
        canvas.caption(_texture_caption(face), row + 2 * _GAP_PX, top + row, row)
        left = 2 * row + 3 * _GAP_PX
        canvas.views(face, left, top, (_WIDTH_PX - left - _GAP_PX, row))
    return canvas.image


def _photo_caption(faces: int, shown: int) -> str:
    if faces == 0:
        return "no face found"
    rest = faces - shown
    count = "photo and mesh" if faces == 1 else f"{faces} faces"
    return count + (f"; the first {shown} are shown below, {rest} more are not" if rest else "")


def _texture_caption(face: Face) -> str:
    return f"texture, {face.texture_size_px} px"


class _Canvas:
    """A picture that grows panel by panel."""

    def __init__(self, height_px: int) -> None:
        self.image = Image.new("RGB", (_WIDTH_PX, height_px), _BACKGROUND_RGB)
        self._pen = ImageDraw.Draw(self.image)
        self._font = ImageFont.load_default(_TEXT_PX)

    def picture(self, image: Image.Image, left: int, top: int, size_wh: tuple[int, int]) -> None:
        """Centre a picture in a panel."""
        width, height = size_wh
        self._pen.rectangle((left, top, left + width - 1, top + height - 1), fill=_PANEL_RGB)
        self.image.paste(image, (left + (width - image.width) // 2, top + (height - image.height) // 2))

    def caption(self, text: str, left: int, top: int, width: int) -> None:
        """Write a line under a panel, centred."""
        middle = (left + width // 2, top + _CAPTION_PX // 2 + 1)
        self._pen.text(middle, text, fill=_TEXT_RGB, font=self._font, anchor="mm")

    def views(self, face: Face, left: int, top: int, size_wh: tuple[int, int]) -> None:
        """Fill a panel with the turned views, side by side, each with its caption below."""
        width, height = size_wh
        self._pen.rectangle((left, top, left + width - 1, top + height - 1), fill=_PANEL_RGB)
        for index, yaw in enumerate(_YAWS_DEGREES):
            start, end = (left + width * i // len(_YAWS_DEGREES) for i in (index, index + 1))
            view = render(
                face.vertices_cm,
                _reduced(face.texture_rgb),
                yaw_degrees=yaw,
                size_wh=(end - start, height),
                background_rgb=_PANEL_RGB,
            )
            self.image.paste(Image.fromarray(view), (start, top))
            self.caption("from the front" if yaw == 0 else f"turned by {yaw:+d}°", start, top + height, end - start)


def _fitted(photo: Image.Image, faces: Sequence[FaceLandmarks], size_wh: tuple[int, int]) -> Image.Image:
    """Scale the photo into a panel and draw the meshes at that size."""
    scale = min(size_wh[0] / photo.width, size_wh[1] / photo.height, _MAX_ENLARGEMENT)
    size = (max(round(photo.width * scale), 1), max(round(photo.height * scale), 1))
    image = photo.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)
    factors = np.array([size[0] / photo.width, size[1] / photo.height, scale])
    for index, face in enumerate(faces):
        landmarks_px = _scaled(face.landmarks_px, factors)
        draw_mesh(image, landmarks_px)
        if len(faces) > 1:
            _number(image, landmarks_px, index + 1)
    return image


def _number(image: Image.Image, landmarks_px: NDArray[np.float32], number: int) -> None:
    """Write a face's number at the upper left corner of its box, inside the picture."""
    font = ImageFont.load_default(_NUMBER_PX)
    left, top = (max(float(x), 0.0) for x in landmarks_px[:, :2].min(0))
    pen = ImageDraw.Draw(image)
    pen.text((left + 3, top + 3), str(number), fill=_NUMBER_RGB, font=font, stroke_width=3, stroke_fill=_BACKGROUND_RGB)


def _close_up(photo: Image.Image, face: Face, side_px: int) -> Image.Image:
    """Cut the face out of the photo, as a square, with the mesh over it; black where the photo ends."""
    points = face.landmarks_px[:VERTICES, :2].astype(np.float64)
    low, high = points.min(0), points.max(0)
    half = max(float((high - low).max()), 1.0) * (0.5 + _CLOSE_UP_MARGIN)
    center = (low + high) / 2
    left, top = np.floor(center - half).astype(int).tolist()
    crop_px = max(round(2 * half), 1)
    crop = photo.crop((left, top, left + crop_px, top + crop_px))
    crop = crop.resize((side_px, side_px), Image.Resampling.LANCZOS, reducing_gap=3.0)
    scale = side_px / crop_px
    draw_mesh(crop, _scaled(face.landmarks_px - np.array([left, top, 0], np.float32), np.full(3, scale)))
    return crop


def _scaled(landmarks_px: NDArray[np.float32], factors: NDArray[np.float64]) -> NDArray[np.float32]:
    """Scale coordinates with their picture: a pixel's centre, a whole number here, is half a pixel from its edge."""
    center = np.array([0.5, 0.5, 0.0])
    return np.asarray((landmarks_px + center) * factors - center, np.float32)


def _texture(face: Face, side_px: int) -> Image.Image:
    image = Image.fromarray(np.ascontiguousarray(face.texture_rgb))
    return image.resize((side_px, side_px), Image.Resampling.LANCZOS, reducing_gap=3.0)


def _reduced(texture_rgb: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Halve a texture until it is near the views' resolution: bilinear sampling alone would flicker."""
    while texture_rgb.shape[0] >= 2 * _RENDER_TEXTURE_PX and texture_rgb.shape[0] % 2 == 0:
        size = texture_rgb.shape[0] // 2
        texture_rgb = texture_rgb.reshape(size, 2, size, 2, 3).mean((1, 3)).astype(np.uint8)
    return texture_rgb


_RENDER_TEXTURE_PX = 768
