from __future__ import annotations

import cv2
import numpy as np
import pytest
from facegraph_server.contract import MAX_BATCH, MESH_SIZE_PX, VERTICES
from facegraph_server.detection import Detections
from facegraph_server.face_crop import can_be_faces, crop_faces, landmarks_in_picture, roi_from_landmarks
from numpy.typing import NDArray

from tests.server.pipeline import find_faces


def detections(*centres_and_sides: tuple[float, float, float], angle: float = 0.0) -> Detections:
    rows = np.array(centres_and_sides, np.float32).reshape(-1, 3)
    half = rows[:, 2:] / 2
    keypoints = np.repeat(rows[:, None, :2], 6, axis=1)
    eye = np.array([np.cos(angle), np.sin(angle)]) * 10
    keypoints[:, 0] -= eye
    keypoints[:, 1] += eye
    boxes = np.concatenate([rows[:, :2] - half, rows[:, :2] + half], axis=1)
    return Detections(boxes, keypoints.astype(np.float32), np.ones(len(rows), np.float32))


def coordinate_image(width: int, height: int) -> NDArray[np.uint8]:
    """A picture whose red is x / 2 and whose green is y / 2."""
    x, y = np.meshgrid(np.arange(width) / 2, np.arange(height) / 2)
    return np.stack([x, y, np.zeros_like(x)], -1).astype(np.uint8)


@pytest.mark.parametrize("angle", [0.0, 0.5, -1.2, np.pi / 2, 3.0])
@pytest.mark.parametrize("side", [50.0, 100.0, 250.0])
def test_the_crop_shows_the_pixels_that_its_landmarks_map_back_to(angle: float, side: float) -> None:
    image = coordinate_image(500, 500)
    crops = crop_faces(image, detections((250, 240, side / 1.65), angle=angle))
    assert crops.roi[0] == pytest.approx([250, 240, side, angle], abs=1e-3)
    points = np.zeros((1, VERTICES, 3), np.float32)
    points[0, :4, :2] = [(96, 96), (60, 100), (130, 50), (20, 170)]
    mapped = landmarks_in_picture(points, crops.roi)[0, :4, :2]
    for (crop_x, crop_y), (x, y) in zip(points[0, :4, :2].astype(int), mapped, strict=True):
        assert crops.crops[0, crop_y, crop_x, :2] == pytest.approx([x / 2, y / 2], abs=1.2)


def test_z_gets_the_scale_of_x() -> None:
    points = np.full((1, VERTICES, 3), 12.0, np.float32)
    assert landmarks_in_picture(points, np.array([[0, 0, 384, 0.3]], np.float32))[0, 0, 2] == pytest.approx(24)


def test_a_large_face_is_averaged_not_decimated() -> None:
    stripes = np.zeros((2000, 2000, 3), np.uint8)
    stripes[:, ::2] = 255  # one pixel white, one black: bilinear sampling alone would show a moire
    crop = crop_faces(stripes, detections((1000, 1000, 1000.0))).crops[0]
    assert np.abs(crop.astype(int) - 127).max() < 40


def test_no_face_is_one_black_crop_and_a_count_of_zero() -> None:
    crops = crop_faces(np.full((64, 64, 3), 255, np.uint8), detections())
    assert crops.face_count == 0
    assert crops.crops.shape == (1, MESH_SIZE_PX, MESH_SIZE_PX, 3)
    assert not crops.crops.any()


def test_of_many_faces_the_largest_are_kept() -> None:
    sides = [20.0 + i for i in range(MAX_BATCH + 3)]
    crops = crop_faces(np.zeros((64, 64, 3), np.uint8), detections(*((30, 30, s) for s in sides)))
    assert crops.face_count == MAX_BATCH
    assert crops.roi[:, 2].min() == pytest.approx(23 * 1.65)


def test_weak_detections_do_not_displace_faces() -> None:
    sure = detections(*((30, 30, 20.0 + i) for i in range(MAX_BATCH)))
    weak = detections((30, 30, 200.0))
    found = Detections(*(np.concatenate(pair) for pair in zip(weak, sure, strict=True)))
    found.score[0] = 0.3
    crops = crop_faces(np.zeros((64, 64, 3), np.uint8), found)
    assert crops.detection.min() == 1


def test_known_faces_come_first_and_are_not_found_twice() -> None:
    rng = np.random.default_rng(0)
    face = np.zeros((VERTICES, 3), np.float32)
    face[:, :2] = rng.uniform(-30, 30, (VERTICES, 2))
    face[33, :2], face[263, :2] = (-20, 0), (20, 0)
    prior = np.stack([np.zeros_like(face), face + np.array([150, 100, 0]), face + np.array([60, 60, 0])]).astype(
        np.float32
    )
    image = np.zeros((200, 300, 3), np.uint8)
    crops = crop_faces(image, detections((61, 61, 60), (240, 150, 40)), prior)
    assert crops.prior_index.tolist() == [1, 2, -1]
    assert crops.roi[:, :2] == pytest.approx(np.array([[150, 100], [60, 60], [240, 150]]), abs=2)


@pytest.mark.parametrize(
    ("column", "value"), [(0, np.nan), (1, np.inf), (2, np.nan), (2, -np.inf), (2, 1e6), (0, 1e30)]
)
def test_a_prior_that_cannot_be_a_face_is_none(column: int, value: float) -> None:
    rng = np.random.default_rng(0)
    good = rng.uniform(0, 60, (VERTICES, 3)).astype(np.float32)
    bad = good.copy()
    bad[7, column] = value
    deep = good * np.array([1, 1, 5], np.float32)
    nobody, point = np.zeros_like(good), np.ones_like(good)
    assert can_be_faces(np.stack([good, bad, deep, nobody, point])).tolist() == [True, False, False, False, False]
    assert can_be_faces(np.empty((0, VERTICES, 3), np.float32)).shape == (0,)


@pytest.mark.parametrize("step", [0.1, 0.2, 0.3])
def test_a_fast_face_is_not_lost(astronaut_rgb: NDArray[np.uint8], step: float) -> None:
    """The landmarks of a face that moves by a part of its width in each frame stay on it."""
    still = find_faces(astronaut_rgb).landmarks_px[:1]
    width = float(np.ptp(still[0, :, 0]))
    prior = still
    for frame in range(1, 13):
        shift = -frame * step * width if frame <= 6 else -(12 - frame) * step * width
        moved = cv2.warpAffine(
            astronaut_rgb, np.array([[1.0, 0, shift], [0, 1, 0]]), (512, 512), borderMode=cv2.BORDER_REPLICATE
        )
        prior = find_faces(moved, prior_px=prior).landmarks_px
        assert len(prior) == 1
        assert np.abs(prior[0, :, 0] - still[0, :, 0] - shift).mean() < 0.03 * width


def test_a_small_face_in_a_picture_wider_than_opencv_can_warp() -> None:
    picture = np.zeros((300, 40_000, 3), np.uint8)
    picture[100:200, 39_000:39_100] = 255
    crop = crop_faces(picture, detections((39_050, 150, 100))).crops[0].astype(int)
    near = crop_faces(picture[:, -1500:].copy(), detections((550, 150, 100))).crops[0].astype(int)
    assert crop.mean() > 50
    assert np.abs(crop - near).max() <= 2


def test_roi_from_landmarks_is_the_upright_bounding_square() -> None:
    square = np.zeros((1, VERTICES, 3), np.float32)
    square[0, :4, :2] = [(-10, -20), (10, -20), (10, 20), (-10, 20)]
    square[0, 33, :2], square[0, 263, :2] = (-5, 0), (5, 0)
    angle = 0.7
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    square[..., :2] = square[..., :2] @ turn.T + (100, 50)
    assert roi_from_landmarks(square)[0] == pytest.approx([100, 50, 60, angle], abs=1e-3)
