from __future__ import annotations

from typing import NamedTuple

import cv2
import numpy as np
import pytest
from facegraph_server.face_swap import swap_face
from facegraph_server.swap_layout import INNER_LIPS, LEFT_EYE, PLANE_PX, RIGHT_EYE, skin_zone, source_share
from facegraph_server.swap_plan import hairless
from facegraph_server.texture import unwrap_texture
from numpy.typing import NDArray

from tests.server.pipeline import find_faces

FEATHER = 0.12  # of the face: well inside, the source has its full share


class Person(NamedTuple):
    photo: NDArray[np.uint8]
    landmarks: NDArray[np.float32]
    texture: NDArray[np.uint8]
    coverage: NDArray[np.uint8]


def person(photo: NDArray[np.uint8]) -> Person:
    landmarks = find_faces(photo).landmarks_px[0]
    return Person(photo, landmarks, *unwrap_texture(photo, landmarks, 512))


@pytest.fixture(scope="module")
def astronaut(astronaut_rgb: NDArray[np.uint8]) -> Person:
    return person(astronaut_rgb)


@pytest.fixture(scope="module")
def hopper(hopper_rgb: NDArray[np.uint8]) -> Person:
    return person(hopper_rgb)


def swapped(target: Person, source: Person, photo: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
    frame = (target.photo if photo is None else photo).copy()
    swap_face(frame, target.landmarks, source.texture, source.coverage)
    return frame


def hull(landmarks: NDArray[np.float32], shape: tuple[int, ...], shrink: float = 0.0) -> NDArray[np.bool_]:
    """The convex hull of the face, smaller by a part of its size."""
    mask = np.zeros(shape[:2], np.uint8)
    outline = cv2.convexHull(np.rint(landmarks[:, :2]).astype(np.int32))
    cv2.fillConvexPoly(mask, outline, 1)
    size = np.ptp(landmarks[:, :2], axis=0).max()
    return cv2.distanceTransform(mask, cv2.DIST_L2, 5) > shrink * size


def face_drift(frame: NDArray[np.uint8], target: Person) -> float:
    """How far the landmarks found again are from the target's, in the mean, as a part of the face's width."""
    found = find_faces(frame).landmarks_px[0]
    distance = np.linalg.norm(found[:, :2] - target.landmarks[:, :2], axis=1)
    return float(distance.mean() / np.ptp(target.landmarks[:, 0]))


def test_pixels_outside_the_face_are_untouched_and_those_inside_become_the_source_s(
    astronaut: Person, hopper: Person
) -> None:
    for target, source in ((astronaut, hopper), (hopper, astronaut)):
        frame = swapped(target, source)
        outside = ~cv2.dilate(hull(target.landmarks, frame.shape).astype(np.uint8), np.ones((3, 3))).astype(bool)
        np.testing.assert_array_equal(frame[outside], target.photo[outside])
        change = np.abs(frame.astype(int) - target.photo)[hull(target.landmarks, frame.shape, FEATHER)]
        assert change.mean() > 4


def test_pose_and_expression_stay_the_target_s(astronaut: Person, hopper: Person) -> None:
    assert face_drift(swapped(astronaut, hopper), astronaut) <= 0.025
    assert face_drift(swapped(hopper, astronaut), hopper) <= 0.025


def test_a_face_swapped_with_itself_is_the_same_face(astronaut: Person, hopper: Person) -> None:
    for one in (astronaut, hopper):
        frame = swapped(one, one)
        error = (frame.astype(float) - one.photo)[hull(one.landmarks, frame.shape)]
        assert 10 * np.log10(255**2 / np.mean(error**2)) >= 30


@pytest.mark.parametrize("contour", [INNER_LIPS, LEFT_EYE, RIGHT_EYE], ids=["mouth", "left eye", "right eye"])
def test_mouth_and_eyes_stay_the_target_s(astronaut: Person, hopper: Person, contour: tuple[int, ...]) -> None:
    frame = swapped(astronaut, hopper)
    opening = np.zeros(frame.shape[:2], np.uint8)
    cv2.fillPoly(opening, [np.rint(astronaut.landmarks[list(contour), :2]).astype(np.int32)], 1)
    middle = cv2.distanceTransform(opening, cv2.DIST_L2, 5)
    at = np.unravel_index(middle.argmax(), middle.shape)
    assert middle[at] >= 2
    assert np.abs(frame[at].astype(int) - astronaut.photo[at]).max() <= 3


def test_the_swap_has_the_target_s_light(astronaut: Person, hopper: Person) -> None:
    skin = hull(astronaut.landmarks, astronaut.photo.shape, FEATHER)
    bright = swapped(astronaut, hopper)[skin].mean(0)
    for factor in (0.25, 0.5):
        dark = swapped(astronaut, hopper, (astronaut.photo * factor).astype(np.uint8))[skin].mean(0)
        np.testing.assert_allclose(dark / bright, factor, rtol=0.1)
    # One side in the shade stays in the shade.
    shade = np.linspace(1, 0.3, astronaut.photo.shape[1])[None, :, None]
    shaded_photo = (astronaut.photo * shade).astype(np.uint8)
    ratio = swapped(astronaut, hopper, shaded_photo).astype(float) / np.maximum(swapped(astronaut, hopper), 1)
    assert np.corrcoef(np.broadcast_to(shade, ratio.shape)[skin].ravel(), ratio[skin].ravel())[0, 1] > 0.5


def test_a_noisy_still_does_not_flicker(astronaut: Person, hopper: Person) -> None:
    rng = np.random.default_rng(0)
    prior, clean, made = astronaut.landmarks[None], [], []
    for _ in range(6):
        noise = rng.normal(0, 3, astronaut.photo.shape)
        frame = np.clip(np.rint(astronaut.photo + noise), 0, 255).astype(np.uint8)
        prior = find_faces(frame, prior_px=prior).landmarks_px[:1]
        result = frame.copy()
        swap_face(result, prior[0], hopper.texture, hopper.coverage)
        clean.append(frame.astype(float))
        made.append(result.astype(float))
    inside = hull(astronaut.landmarks, astronaut.photo.shape)
    flicker, noise_level = (np.abs(np.diff(np.array(frames)[2:], axis=0))[:, inside].mean() for frames in (made, clean))
    assert flicker <= 1.5 * noise_level


def test_hair_over_the_forehead_is_found_and_skin_is_not_taken_for_it(astronaut: Person) -> None:
    plane = (PLANE_PX, PLANE_PX)
    colours = cv2.resize(astronaut.texture, plane, interpolation=cv2.INTER_AREA).astype(np.float32)
    skin = hairless(colours)
    rows = np.flatnonzero(source_share().max(1) > 0)
    assert skin[rows[0] : rows[0] + 4, PLANE_PX // 2 - 20 : PLANE_PX // 2 + 20].max() < 0.2
    assert skin[skin_zone()].min() == 1
    bald = np.full((*plane, 3), (180, 140, 120), np.float32) + np.random.default_rng(0).normal(0, 4, (*plane, 3))
    assert hairless(bald.astype(np.float32)).min() > 0.95


@pytest.mark.parametrize("shift_xy", [(-250, 0), (280, 0), (0, -160), (0, 400), (-500, -500)])
def test_a_face_cut_off_by_the_frame(astronaut: Person, hopper: Person, shift_xy: tuple[int, int]) -> None:
    shift = np.float32([[1, 0, shift_xy[0]], [0, 1, shift_xy[1]]])
    frame = cv2.warpAffine(astronaut.photo, shift, (512, 512), borderMode=cv2.BORDER_REPLICATE)
    landmarks = astronaut.landmarks + np.array([*shift_xy, 0], np.float32)
    whole = cv2.warpAffine(swapped(astronaut, hopper), shift, (512, 512), borderMode=cv2.BORDER_REPLICATE)
    result = frame.copy()
    swap_face(result, landmarks, hopper.texture, hopper.coverage)
    shown = hull(landmarks, frame.shape)
    if not shown.any():
        np.testing.assert_array_equal(result, frame)
        return
    assert np.abs(result.astype(int) - frame)[shown].mean() > 2
    assert np.abs(result.astype(int) - whole)[shown].mean() < 6
