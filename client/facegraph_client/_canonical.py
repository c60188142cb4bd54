"""The canonical face: topology, metric shape and UV layout of the 468-vertex mesh.

Source: MediaPipe's ``canonical_face_model.obj`` (Google, Apache-2.0; see NOTICE), kept unchanged as package data.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class CanonicalFace:
    """The mesh that every face is fitted to. The arrays are read-only.

    The mesh is one disc: its only boundary is the face oval, so the eyes and the mouth are closed by triangles.

    Attributes:
        vertices_cm: FP32 [468,3], head frame: +x to the person's left, +y up, +z out of the face.
        triangles: INT32 [898,3], counter-clockwise seen from outside.
        uv: FP32 [468,2] in 0..1, origin at the texture's bottom left (OBJ convention).

    """

    vertices_cm: NDArray[np.float32]
    triangles: NDArray[np.int32]
    uv: NDArray[np.float32]


@cache
def canonical_face() -> CanonicalFace:
    """Return the canonical face, read once per process."""
    vertices: list[list[float]] = []
    texture_points: list[list[float]] = []
    corners: list[list[int]] = []  # vertex and texture index of each triangle corner, from 1
    for line in files("facegraph_client").joinpath("data/canonical_face_model.obj").read_text().splitlines():
        kind, *values = line.split() or [""]
        if kind == "v":
            vertices.append([float(x) for x in values])
        elif kind == "vt":
            texture_points.append([float(x) for x in values])
        elif kind == "f":
            corners.extend([int(i) for i in corner.split("/")[:2]] for corner in values)
    vertex_index, texture_index = (np.array(corners) - 1).T
    uv = np.zeros((len(vertices), 2), np.float32)
    uv[vertex_index] = np.array(texture_points, np.float32)[texture_index]  # each vertex has exactly one texture point
    face = CanonicalFace(np.array(vertices, np.float32), vertex_index.reshape(-1, 3).astype(np.int32), uv)
    for array in (face.vertices_cm, face.triangles, face.uv):
        array.setflags(write=False)
    return face
