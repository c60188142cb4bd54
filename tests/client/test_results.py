from __future__ import annotations

import json
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from facegraph_client import Face, FaceLandmarks, InputError

from .conftest import SCALE_PX_PER_CM, make_face


def test_scale_is_that_of_the_similarity(face: Face) -> None:
    assert face.scale_px_per_cm == pytest.approx(SCALE_PX_PER_CM, rel=1e-5)


def test_scale_does_not_depend_on_rotation(face: Face) -> None:
    turn = np.linalg.qr(np.random.default_rng(3).normal(size=(3, 3)))[0]
    turned = Face(**{**vars(face), "landmarks_px": face.landmarks_px @ turn + 1000})
    assert turned.scale_px_per_cm == pytest.approx(SCALE_PX_PER_CM, rel=1e-4)


def test_arrays_and_fields_cannot_be_changed(face: Face) -> None:
    for array in (face.landmarks_px, face.box_xyxy, face.vertices_cm, face.pose, face.texture_rgb, face.coverage):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    with pytest.raises(FrozenInstanceError):
        face.score = 1.0  # type: ignore[misc]


def test_the_caller_s_own_array_stays_writable() -> None:
    landmarks = np.zeros((468, 3), np.float32)
    FaceLandmarks(landmarks_px=landmarks, box_xyxy=np.zeros(4), score=1)
    landmarks[0] = 1


def test_results_are_compared_by_identity(face: Face) -> None:
    other = make_face()
    assert face == face  # noqa: PLR0124
    assert face != other
    assert len({face, other, face}) == 2


def test_repr_is_one_short_line(face: Face) -> None:
    assert repr(face) == ("Face(score=0.875, box_xyxy=(107.1, 50.9, 292.9, 262.8), 468 landmarks, texture 64 px)")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("landmarks_px", np.zeros((468, 2)), r"landmarks_px must have the shape \[\*,3\], not \[468, 2\]"),
        ("box_xyxy", np.zeros(5), r"box_xyxy must have the shape \[4\]"),
        ("vertices_cm", np.zeros((478, 3)), r"vertices_cm must have the shape \[468,3\]"),
        ("pose", np.zeros((3, 4)), r"pose must have the shape \[4,4\]"),
        ("texture_rgb", np.zeros((8, 8)), r"texture_rgb must have the shape"),
        ("coverage", np.zeros((9, 8)), r"coverage must have the shape \[64,64\]"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isidentifier() else "",
)
def test_wrong_shapes_are_refused(face: Face, field: str, value: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Face(**{**vars(face), field: value})


def test_to_dict_survives_json_and_keeps_the_numbers(face: Face) -> None:
    document = json.loads(json.dumps(face.to_dict()))
    assert list(document) == ["score", "box_xyxy", "landmarks_px", "pose", "scale_px_per_cm"]
    np.testing.assert_allclose(document["landmarks_px"], face.landmarks_px, atol=6e-4)
    np.testing.assert_allclose(document["pose"], face.pose, atol=1e-6)
    assert document["score"] == 0.875
