"""The textured mesh seen from a turned viewpoint, in NumPy: for previews, where no GPU and no window is at hand."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from facegraph_client._canonical import canonical_face
from facegraph_client._geometry import vertex_normals
from facegraph_client._raster import rasterize

_SUPERSAMPLE = 2
_DISTANCE_CM = 70.0  # a portrait's distance: near enough for some perspective
_HALF_HEIGHT_CM = 10.6  # the canonical face is 17.7 cm high
_LIGHT = np.array([-0.35, 0.55, 0.76])  # from the viewer's upper left; the photo's own light stays in the texture
_AMBIENT = 0.72


def render(
    vertices_cm: NDArray[np.float32],
    texture_rgb: NDArray[np.uint8],
    *,
    yaw_degrees: float,
    size_wh: tuple[int, int],
    background_rgb: tuple[int, int, int],
) -> NDArray[np.uint8]:
    """Render a face as UINT8 [H,W,3], centred, upright, with mild shading.

    Args:
        vertices_cm: [468,3], head frame.
        texture_rgb: [T,T,3].
        yaw_degrees: turn of the head; positive turns it to the viewer's right.
        size_wh: width and height of the picture in px.
        background_rgb: colour where there is no face.

    """
    width, height = (size * _SUPERSAMPLE for size in size_wh)
    triangles = canonical_face().triangles
    yaw = np.radians(yaw_degrees)
    turn = np.array([[np.cos(yaw), 0, np.sin(yaw)], [0, 1, 0], [-np.sin(yaw), 0, np.cos(yaw)]])
    vertices = vertices_cm.astype(np.float64)
    vertices -= (vertices.min(0) + vertices.max(0)) / 2
    vertices = vertices @ turn.T
    vertices[:, 0] -= (vertices[:, 0].min() + vertices[:, 0].max()) / 2

    distance = _DISTANCE_CM - vertices[:, 2]
    focal_px = height / 2 * _DISTANCE_CM / _HALF_HEIGHT_CM
    screen = np.stack(
        [
            (width - 1) / 2 + focal_px * vertices[:, 0] / distance,
            (height - 1) / 2 - focal_px * vertices[:, 1] / distance,
            distance,
        ],
        axis=1,
    )
    towards_light = vertex_normals(vertices, triangles) @ (_LIGHT / np.linalg.norm(_LIGHT))
    light = _AMBIENT + (1 - _AMBIENT) * np.clip(towards_light, 0, 1)
    light /= _AMBIENT + (1 - _AMBIENT) * _LIGHT[2] / np.linalg.norm(_LIGHT)  # what faces the viewer keeps its colour
    attributes = np.column_stack([canonical_face().uv, light]).astype(np.float32)  # [V,3]

    raster = rasterize(screen, triangles, (width, height))
    covered = raster.triangle >= 0
    corners = triangles[raster.triangle[covered]]  # [N,3]
    values = np.einsum("nk,nka->na", raster.barycentric[covered], attributes[corners])
    image = np.full((height, width, 3), background_rgb, np.uint8)
    image[covered] = np.clip(sample_bilinear(texture_rgb, values[:, :2]) * values[:, 2:], 0, 255)
    return np.asarray(Image.fromarray(image).reduce(_SUPERSAMPLE))


def sample_bilinear(texture_rgb: NDArray[np.uint8], uv: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """Sample a texture at UV points, FP32 [N,3].

    Args:
        texture_rgb: [T,T,3], row 0 at v = 1.
        uv: [N,2] in 0..1; texel (0, 0) has its centre half a texel inside the corner. Points outside take the border.

    """
    height, width = texture_rgb.shape[:2]
    x = np.clip(np.asarray(uv[:, 0], np.float32) * width - 0.5, 0, width - 1)
    y = np.clip((1 - np.asarray(uv[:, 1], np.float32)) * height - 0.5, 0, height - 1)
    left, top = x.astype(np.int32), y.astype(np.int32)
    right, bottom = np.minimum(left + 1, width - 1), np.minimum(top + 1, height - 1)
    across, down = (x - left)[:, None], (y - top)[:, None]
    texels = texture_rgb.reshape(-1, 3).astype(np.float32)
    upper, lower = (
        texels[row * width + left] * (1 - across) + texels[row * width + right] * across for row in (top, bottom)
    )
    return np.asarray(upper * (1 - down) + lower * down)
