"""Geometry of the face mesh that the files and the preview share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def vertex_normals(vertices: NDArray[np.floating[Any]], triangles: NDArray[np.integer[Any]]) -> NDArray[np.float32]:
    """Return unit normals FP32 [V,3]: the area-weighted mean over the triangles around each vertex.

    Args:
        vertices: [V,3], right-handed.
        triangles: [T,3], counter-clockwise seen from outside.

    """
    corners = np.asarray(vertices, np.float64)[triangles]  # [T,3,3]
    area_vectors = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    sums = np.zeros((len(vertices), 3))
    np.add.at(sums, triangles.ravel(), np.repeat(area_vectors, 3, axis=0))
    lengths = np.linalg.norm(sums, axis=1, keepdims=True)
    outward = np.array([0.0, 0.0, 1.0])  # for a vertex whose triangles have all collapsed
    return np.where(lengths > 0, sums / np.where(lengths > 0, lengths, 1), outward).astype(np.float32)


def edges(triangles: NDArray[np.integer[Any]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return each edge once, and the one or two triangles on its sides.

    Returns:
        The edges INT64 [E,2] as vertex indices, the smaller one first, and the triangles INT64 [E,2]; an edge on the
        mesh's boundary has its only triangle twice.

    """
    directed = np.concatenate([triangles[:, [0, 1]], triangles[:, [1, 2]], triangles[:, [2, 0]]]).astype(np.int64)
    owner = np.tile(np.arange(len(triangles)), 3)
    unique, first, which = np.unique(np.sort(directed, axis=1), axis=0, return_index=True, return_inverse=True)
    sides = np.stack([owner[first], owner[first]], axis=1)
    sides[which.ravel(), 1] = owner  # of repeated indices, the last assignment stays
    # ``first`` is an edge's first appearance, so the last one differs from it wherever there are two triangles.
    return unique, sides


def similarity_scale(points: NDArray[np.floating[Any]], target: NDArray[np.floating[Any]]) -> float:
    """Return the scale s of the similarity transform that takes ``points`` onto ``target``, both [N,3].

    Rotation and translation do not change the spread around the centroid, so s is the ratio of the two spreads.
    Exact where the target is a similarity image of the points, as landmarks are of the vertices fitted from them.
    """
    source_spread, target_spread = (
        np.linalg.norm(np.asarray(p, np.float64) - np.mean(p, axis=0, dtype=np.float64)) for p in (points, target)
    )
    return float(target_spread / source_spread) if source_spread > 0 else 0.0
