from __future__ import annotations

import numpy as np
from facegraph_server.contract import VERTICES
from facegraph_server.faces import collect_faces
from numpy.typing import NDArray

NEW = -1


def crops(*presence: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    rng = np.random.default_rng(0)
    one = rng.uniform(30, 160, (VERTICES, 3)).astype(np.float32)
    return np.repeat(one[None], len(presence), axis=0), np.array(presence, np.float32)


def roi(*centres_and_sides: tuple[float, float, float]) -> NDArray[np.float32]:
    return np.array([(*row, 0.0) for row in centres_and_sides], np.float32)


def sure(count: int) -> NDArray[np.float32]:
    return np.ones(count, np.float32)


def test_false_alarms_and_the_stand_in_are_dropped() -> None:
    places = roi((100, 100, 90), (300, 100, 90))
    faces = collect_faces(*crops(0.9, 0.3), places, np.array([NEW, NEW]), sure(2), 2)
    assert faces.score.tolist() == [np.float32(0.9)]
    nobody = collect_faces(*crops(0.99), roi((0, 0, 0)), np.array([NEW]), sure(1), 0)
    assert nobody.landmarks_px.shape == (0, VERTICES, 3)
    assert nobody.box_xyxy.shape == (0, 4)


def test_two_crops_of_one_face_give_one_face() -> None:
    places = roi((100, 100, 90), (103, 101, 92), (300, 100, 90))
    faces = collect_faces(*crops(0.9, 0.95, 0.8), places, np.array([NEW, NEW, NEW]), sure(3), 3)
    assert len(faces.score) == 2


def test_new_faces_come_largest_first_and_the_box_bounds_the_landmarks() -> None:
    places = roi((100, 100, 60), (300, 100, 120), (500, 100, 90))
    faces = collect_faces(*crops(0.9, 0.8, 0.7), places, np.array([NEW, NEW, NEW]), sure(3), 3)
    assert faces.score.tolist() == [np.float32(s) for s in (0.8, 0.7, 0.9)]
    assert (faces.box_xyxy[:, :2] == faces.landmarks_px[..., :2].min(1)).all()
    assert (faces.box_xyxy[:, 2:] == faces.landmarks_px[..., :2].max(1)).all()


def test_faces_that_go_on_keep_the_order_of_the_prior() -> None:
    places = roi((100, 100, 60), (300, 100, 120), (500, 100, 200))
    mesh, presence = crops(0.9, 0.8, 0.7)
    alone = collect_faces(mesh, presence, places, np.array([NEW, NEW, NEW]), sure(3), 3).landmarks_px
    prior = np.stack([alone[1], alone[2]])  # the 120 px face, then the 60 px face
    faces = collect_faces(mesh, presence, places, np.array([1, 0, NEW]), sure(3), 3, prior)
    assert faces.score.tolist() == [np.float32(s) for s in (0.8, 0.9, 0.7)]
    np.testing.assert_allclose(faces.landmarks_px[:2], prior, atol=1e-3)  # nothing moved, so nothing changes


def test_a_weak_detection_must_be_a_sure_face() -> None:
    places = roi((100, 100, 90), (300, 100, 90), (500, 100, 90))
    detection = np.array([0.4, 0.4, 0.9], np.float32)
    faces = collect_faces(*crops(0.9, 0.99, 0.6), places, np.array([NEW, NEW, NEW]), detection, 3)
    assert sorted(faces.score.tolist()) == [np.float32(0.6), np.float32(0.99)]
