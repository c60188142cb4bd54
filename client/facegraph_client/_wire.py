"""The mesh as a wire frame over a photo."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from facegraph_client._canonical import canonical_face
from facegraph_client._geometry import edges
from facegraph_client._results import VERTICES

_SUPERSAMPLE = 3  # Pillow's lines are not smooth by themselves
_WIRE_RGBA = (255, 255, 255, 165)
_FEATURE_RGBA = (64, 224, 208, 255)
_HALO_RGBA = (0, 0, 0, 55)  # keeps the white wire visible on bright skin
_FACE_PX_PER_LINE_PX = 420.0
_MIN_LINE_PX = 0.67
_MARGIN_PX = 4

# Closed outlines by vertex index of the canonical face: the person's right and left eye, and the lips.
_OUTLINES = (
    (33, 7, 163, 144, 145, 153, 154, 155, 133, 173, 157, 158, 159, 160, 161, 246),
    (263, 249, 390, 373, 374, 380, 381, 382, 362, 398, 384, 385, 386, 387, 388, 466),
    (61, 146, 91, 181, 84, 17, 314, 405, 321, 375, 291, 409, 270, 269, 267, 0, 37, 39, 40, 185),
    (78, 95, 88, 178, 87, 14, 317, 402, 318, 324, 308, 415, 310, 311, 312, 13, 82, 81, 80, 191),
)


def draw_mesh(image: Image.Image, landmarks_px: NDArray[np.float32]) -> None:
    """Draw one face's mesh onto an RGB picture, in place; edges behind the face are left out.

    Args:
        image: the picture.
        landmarks_px: [V,3] in pixels of this picture.

    """
    points = landmarks_px[:VERTICES, :2].astype(np.float64)
    left, top = np.maximum(np.floor(points.min(0)).astype(int) - _MARGIN_PX, 0).tolist()
    right, bottom = np.minimum(np.ceil(points.max(0)).astype(int) + _MARGIN_PX, image.size).tolist()
    if right <= left or bottom <= top:
        return
    # Only the face's own part of the picture is enlarged: a photo may have 50 megapixels.
    size = (right - left, bottom - top)
    layer = Image.new("RGBA", (size[0] * _SUPERSAMPLE, size[1] * _SUPERSAMPLE), (255, 255, 255, 0))
    pen = ImageDraw.Draw(layer)
    on_layer = (points - (left, top) + 0.5) * _SUPERSAMPLE
    face_px = float(np.ptp(points, axis=0).max())
    line_px = max(face_px / _FACE_PX_PER_LINE_PX, _MIN_LINE_PX) * _SUPERSAMPLE

    wire, features = _lines()
    front = _front_facing(points)
    for pair in wire.edges[front[wire.sides].any(1)]:
        _line(pen, on_layer[pair], _HALO_RGBA, line_px * 1.8)
    for pair in wire.edges[front[wire.sides].any(1)]:
        _line(pen, on_layer[pair], _WIRE_RGBA, line_px)
    boundary = features.sides[:, 0] == features.sides[:, 1]  # the oval is drawn whole: at the temples it turns away
    for pair in features.edges[front[features.sides].any(1) | boundary]:
        _line(pen, on_layer[pair], _FEATURE_RGBA, line_px * 1.8)
    layer = _premultiplied_reduce(layer)
    image.paste(layer, (left, top), layer)


class _Lines:
    """Edges INT64 [E,2] with the triangles INT64 [E,2] beside them."""

    def __init__(self, pairs: NDArray[np.int64], sides: NDArray[np.int64]) -> None:
        self.edges, self.sides = pairs, sides


@cache
def _lines() -> tuple[_Lines, _Lines]:
    """Return all edges, and those of the outlines: eyes, lips, and the mesh's boundary, the face oval."""
    pairs, sides = edges(canonical_face().triangles)
    outline = {(min(a, b), max(a, b)) for ring in _OUTLINES for a, b in zip(ring, (*ring[1:], ring[0]), strict=True)}
    is_feature = np.array([tuple(pair) in outline for pair in pairs.tolist()]) | (sides[:, 0] == sides[:, 1])
    return _Lines(pairs, sides), _Lines(pairs[is_feature], sides[is_feature])


def _front_facing(points: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return for each triangle whether it faces the camera; y points down, so the winding is turned over."""
    a, b, c = np.moveaxis(points[canonical_face().triangles], 1, 0)
    first, second = b - a, c - a
    return np.asarray(first[:, 0] * second[:, 1] - first[:, 1] * second[:, 0] < 0)


def _line(pen: ImageDraw.ImageDraw, ends: NDArray[np.float64], color: tuple[int, ...], width_px: float) -> None:
    pen.line([tuple(end) for end in ends.tolist()], fill=color, width=max(round(width_px), 1))


def _premultiplied_reduce(layer: Image.Image) -> Image.Image:
    """Scale down by the supersampling factor, so that transparent pixels lend no colour to their neighbours."""
    return layer.convert("RGBa").reduce(_SUPERSAMPLE).convert("RGBA")
