from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from facegraph_client import Face, canonical_face, draw_landmarks, preview
from facegraph_client._geometry import edges, vertex_normals
from facegraph_client._render import render, sample_bilinear

from .conftest import make_face

GRAY = np.full((300, 400, 3), 128, np.uint8)
BACKGROUND = (1, 2, 3)


@pytest.mark.parametrize(
    ("faces", "shape"),
    [
        (0, (300, 400, 3)),
        (1, (300, 400, 3)),
        (1, (400, 300, 3)),
        (2, (400, 300, 3)),
        (1, (16, 16, 3)),
        (7, (16, 30, 3)),
    ],
    ids=["none", "one, wide", "one, high", "two", "tiny", "more than shown"],
)
def test_preview_is_one_picture_of_1600_px(face: Face, faces: int, shape: tuple[int, int, int]) -> None:
    photo = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    before = photo.copy()
    picture = preview(photo, [face] * faces)
    assert picture.dtype == np.uint8
    assert picture.shape[1:] == (1600, 3)
    assert 100 < picture.shape[0] < 4000
    np.testing.assert_array_equal(photo, before)


def test_preview_survives_a_face_outside_the_photo(face: Face) -> None:
    preview(GRAY, [Face(**{**vars(face), "landmarks_px": face.landmarks_px + 5000})])


def test_each_of_several_faces_is_numbered_in_the_photo(face: Face) -> None:
    left = dataclasses.replace(face, landmarks_px=face.landmarks_px * np.float32(0.5))
    one, two = (np.asarray(preview(GRAY, faces)).astype(int) for faces in ([face], [left, face]))
    white = [(picture.min(-1) >= 250)[:700].sum() for picture in (one, two)]
    assert white[0] == 0
    assert white[1] > 50


def test_mesh_is_drawn_on_the_face_and_nowhere_else(face: Face) -> None:
    drawn = draw_landmarks(GRAY, [face])
    assert drawn.shape == GRAY.shape
    changed = (drawn != GRAY).any(-1)
    left, top, right, bottom = face.box_xyxy
    y, x = np.nonzero(changed)
    assert left - 3 < x.min() < left + 3
    assert right - 3 < x.max() < right + 3
    assert top - 3 < y.min() < top + 3
    assert bottom - 3 < y.max() < bottom + 3
    # The mouth's corners are on an outline, which is drawn in full colour.
    for vertex in (61, 291, 33, 263):
        column, row = face.landmarks_px[vertex, :2].round().astype(int)
        assert changed[row - 1 : row + 2, column - 1 : column + 2].any()
    np.testing.assert_array_equal(GRAY, np.full_like(GRAY, 128))


def test_edges_behind_the_face_are_left_out(face: Face) -> None:
    """Turned by 90 degrees, half of the mesh looks away."""
    vertices = face.vertices_cm
    profile = np.stack([vertices[:, 2] * 12 + 150, -vertices[:, 1] * 12 + 150, -vertices[:, 0] * 12], 1)
    away = profile * [-1, 1, 1] + [400, 0, 0]  # mirrored, so every triangle that faced us looks away
    one, other = (
        (draw_landmarks(GRAY, [Face(**{**vars(face), "landmarks_px": points})]) != GRAY).any(-1).sum()
        for points in (profile, away)
    )
    full = (draw_landmarks(GRAY, [face]) != GRAY).any(-1).sum()
    assert one < full
    assert abs(int(one) - int(other)) < 0.1 * one  # the face is symmetric


def test_edges_of_the_face_mesh() -> None:
    pairs, sides = edges(canonical_face().triangles)
    assert len(pairs) == 468 + 898 - 1  # Euler: V - E + F = 1 for a disc
    boundary = pairs[sides[:, 0] == sides[:, 1]]
    assert len(boundary) == 36  # the face oval
    assert {10, 152, 234, 454} <= set(boundary.ravel().tolist())
    for pair, two in zip(pairs, sides, strict=True):
        assert all(set(pair) <= set(canonical_face().triangles[side]) for side in two)


def test_normals_of_a_square_are_its_own() -> None:
    square = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0], [9, 9, 9]], np.float32)
    normals = vertex_normals(square, np.array([[0, 1, 2], [0, 2, 3]]))
    np.testing.assert_allclose(normals, np.broadcast_to([0, 0, 1], (5, 3)))


@pytest.mark.parametrize(
    ("uv", "expected"),
    [
        ((0.25, 0.75), 10.0),  # centre of the top left texel of two by two
        ((0.75, 0.75), 20.0),
        ((0.25, 0.25), 30.0),
        ((0.75, 0.25), 40.0),
        ((0.5, 0.75), 15.0),
        ((0.5, 0.5), 25.0),
        ((0.0, 1.0), 10.0),
        ((1.0, 0.0), 40.0),
        ((-3.0, 9.0), 10.0),
    ],
)
def test_bilinear_sampling(uv: tuple[float, float], expected: float) -> None:
    texture = np.repeat(np.array([[10, 20], [30, 40]], np.uint8)[..., None], 3, axis=2)
    np.testing.assert_allclose(sample_bilinear(texture, np.array([uv])), [[expected] * 3])


def _view(face: Face, yaw_degrees: float) -> np.ndarray:
    return render(
        face.vertices_cm, face.texture_rgb, yaw_degrees=yaw_degrees, size_wh=(200, 240), background_rgb=BACKGROUND
    )


def test_render_from_the_front_is_upright_and_centred() -> None:
    face = make_face(256)
    view = _view(face, 0).astype(int)
    covered = (view != BACKGROUND).any(-1)
    y, x = np.nonzero(covered)
    assert abs(x.min() + x.max() - 199) <= 2
    assert abs(y.min() + y.max() - 239) <= 30  # perspective
    assert 0.8 < (np.ptp(y) + 1) / 240 < 0.95
    # Red grows with x, in the texture and in the view: the person's left is on our right. Green grows downwards.
    row, column = 120, 100
    assert view[row, column + 40, 0] > view[row, column, 0] > view[row, column - 40, 0]
    assert view[row + 60, column, 1] > view[row, column, 1] > view[row - 60, column, 1]


def test_positive_yaw_turns_the_head_to_our_right() -> None:
    face = make_face(256)
    # Red under the middle of the outline: turned to our right we see more of the person's right side, which has less.
    left, right = (_view(face, yaw)[120].astype(int) for yaw in (-35, 35))
    middle = []
    for row in (left, right):
        (x,) = np.nonzero((row != BACKGROUND).any(-1))
        middle.append(row[(x.min() + x.max()) // 2, 0])
    assert middle[1] < middle[0]


def test_head_on_light_keeps_the_texture_s_colour(face: Face) -> None:
    plain = Face(**{**vars(face), "texture_rgb": np.full((64, 64, 3), 120, np.uint8)})
    view = _view(plain, 0)
    shades = view[(view != BACKGROUND).all(-1)][:, 0]
    assert abs(float(np.median(shades)) - 120) < 12
