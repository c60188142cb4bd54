"""What the pipeline finds on real photos, without Triton."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
import skimage.data
from numpy.typing import NDArray

from tests.server.pipeline import find_faces

DATA = Path(__file__).parents[1] / "data"
SHARED = Path(__file__).parents[3] / "shared"
MEAN_PERCENT, MAX_PERCENT = 1.0, 4.0


def assert_agrees(found_px: NDArray[np.float32], golden_px: NDArray[np.float32]) -> None:
    width = np.ptp(golden_px[:, 0])
    percent = np.linalg.norm(found_px[:, :2] - golden_px[:, :2], axis=1) / width * 100
    assert percent.mean() <= MEAN_PERCENT
    assert percent.max() <= MAX_PERCENT
    assert np.abs(found_px[:, 2] - golden_px[:, 2]).mean() / width * 100 <= 2.0


@pytest.fixture(scope="session")
def astronaut_golden_px() -> NDArray[np.float32]:
    return np.loadtxt(DATA / "astronaut_landmarks.csv", np.float32, delimiter=",")


def test_landmarks_agree_with_mediapipe(
    astronaut_rgb: NDArray[np.uint8], astronaut_golden_px: NDArray[np.float32]
) -> None:
    (landmarks,) = find_faces(astronaut_rgb).landmarks_px
    assert_agrees(landmarks, astronaut_golden_px)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the workshop's photos are not here")
@pytest.mark.parametrize("name", ["obama", "biden"])
def test_landmarks_agree_with_mediapipe_on_the_workshops_photos(name: str) -> None:
    image = cv2.cvtColor(cv2.imread(str(SHARED / "images" / f"{name}.jpg")), cv2.COLOR_BGR2RGB)
    (landmarks,) = find_faces(image).landmarks_px
    assert_agrees(landmarks, np.load(SHARED / "golden" / "mediapipe_landmarks.npz")[f"{name}/base"][0])


@pytest.mark.skipif(not SHARED.is_dir(), reason="the workshop's photos are not here")
@pytest.mark.parametrize("fine", [False, True])
def test_both_presidents_are_found(fine: bool) -> None:
    image = cv2.cvtColor(cv2.imread(str(SHARED / "images" / "obama_and_biden.jpg")), cv2.COLOR_BGR2RGB)
    boxes = find_faces(image, fine=fine).box_xyxy
    assert len(boxes) == 3  # and the girl at the right edge
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2
    for x, y in ((1236, 490), (848, 536)):
        assert np.hypot(*(centres - (x, y)).T).min() < 30


@pytest.mark.parametrize("degrees", [30, -30, 60, -60, 90, -90])
def test_a_turned_head_is_found_and_its_landmarks_turn_with_it(
    astronaut_rgb: NDArray[np.uint8], astronaut_golden_px: NDArray[np.float32], degrees: float
) -> None:
    turn = cv2.getRotationMatrix2D((225, 140), degrees, 1.0)
    turned = cv2.warpAffine(astronaut_rgb, turn, (512, 512), borderMode=cv2.BORDER_REPLICATE)
    (landmarks,) = find_faces(np.asarray(turned, np.uint8)).landmarks_px
    expected = astronaut_golden_px[:, :2] @ turn[:, :2].T + turn[:, 2]
    error = np.linalg.norm(landmarks[:, :2] - expected, axis=1).mean()
    assert error / np.ptp(astronaut_golden_px[:, 0]) < 0.025


def paste_face(
    background_rgb: NDArray[np.uint8],
    portrait_rgb: NDArray[np.uint8],
    face_xyxy: tuple[int, int, int, int],
    height_px: float,
    centre: tuple[int, int],
) -> NDArray[np.uint8]:
    """Put a portrait's head into a picture so that the face is ``height_px`` high, with a soft border."""
    x0, y0, x1, y1 = face_xyxy
    margin = round(0.45 * (y1 - y0))
    head = portrait_rgb[max(y0 - margin, 0) : y1 + margin // 2, x0 - margin : x1 + margin]
    scale = height_px / (y1 - y0)
    head = cv2.resize(head, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC)
    height, width = head.shape[:2]
    alpha = np.zeros((height, width), np.float32)
    cv2.ellipse(alpha, (width // 2, height // 2), (width * 45 // 100, height * 45 // 100), 0, 0, 360, 1.0, -1)
    alpha = cv2.GaussianBlur(alpha, (0, 0), width * 0.03)[..., None]
    result = background_rgb.copy()
    left, top = centre[0] - width // 2, centre[1] - height // 2
    y0, y1, x0, x1 = max(top, 0), min(top + height, len(result)), max(left, 0), min(left + width, result.shape[1])
    head, alpha = (part[y0 - top : y1 - top, x0 - left : x1 - left] for part in (head, alpha))
    result[y0:y1, x0:x1] = (head * alpha + result[y0:y1, x0:x1] * (1 - alpha)).astype(np.uint8)
    return result


ASTRONAUT_FACE, HOPPER_FACE = (178, 72, 272, 176), (175, 85, 335, 290)


@pytest.mark.parametrize(
    ("percent", "fine"), [(60, False), (30, False), (15, False), (10, False), (8, False), (5, True), (3, True)]
)
@pytest.mark.parametrize("size_wh", [(1000, 1000), (1400, 1000), (1920, 1080), (1000, 1400)])
@pytest.mark.parametrize("who", ["astronaut", "hopper"])
@pytest.mark.parametrize("where", ["coffee", "grass"])
def test_faces_are_found_down_to_the_promised_size(
    request: pytest.FixtureRequest, percent: float, fine: bool, size_wh: tuple[int, int], who: str, where: str
) -> None:
    background = skimage.data.coffee() if where == "coffee" else np.dstack([skimage.data.grass()] * 3)
    background = np.asarray(cv2.resize(background, size_wh), np.uint8)
    face = ASTRONAUT_FACE if who == "astronaut" else HOPPER_FACE
    centre = (size_wh[0] * 2 // 5, size_wh[1] * 11 // 20)
    height_px = percent / 100 * size_wh[1]
    if percent > 50 and size_wh[0] <= size_wh[1]:
        centre = (size_wh[0] // 2, size_wh[1] // 2)
        height_px = min(height_px, 0.6 * size_wh[0])
    portrait = request.getfixturevalue(f"{who}_rgb")
    boxes = find_faces(paste_face(background, portrait, face, height_px, centre), fine=fine).box_xyxy
    assert len(boxes) == 1
    assert np.hypot(*((boxes[0, :2] + boxes[0, 2:]) / 2 - centre)) < 0.35 * height_px
    assert boxes[0, 3] - boxes[0, 1] == pytest.approx(height_px, rel=0.25)


@pytest.mark.parametrize("fine", [False, True])
@pytest.mark.parametrize("name", ["coffee", "brick", "chelsea", "grass", "rocket", "coins", "page", "moon", "gravel"])
def test_no_face_is_seen_where_there_is_none(name: str, fine: bool) -> None:
    image = np.asarray(getattr(skimage.data, name)())
    image = image if image.ndim == 3 else np.dstack([image] * 3)
    assert len(find_faces(np.ascontiguousarray(image, np.uint8), fine=fine).score) == 0


@pytest.mark.parametrize("margin", [0.0, 0.1, 0.3])
def test_a_face_that_fills_the_picture_is_found(hopper_rgb: NDArray[np.uint8], margin: float) -> None:
    x0, y0, x1, y1 = HOPPER_FACE
    dx, dy = round((x1 - x0) * margin), round((y1 - y0) * margin)
    close_up = cv2.resize(hopper_rgb[y0 - dy : y1 + dy, x0 - dx : x1 + dx], None, fx=4, fy=4)
    assert len(find_faces(np.asarray(close_up, np.uint8)).score) == 1


def test_tracking_follows_a_face_and_agrees_with_a_fresh_search(astronaut_rgb: NDArray[np.uint8]) -> None:
    prior = np.zeros((1, 468, 3), np.float32)
    for step in range(6):
        frame = np.roll(astronaut_rgb, (step * 4, step * 6), axis=(0, 1))
        faces = find_faces(frame, prior_px=prior)
        assert len(faces.score) == 1
        prior = faces.landmarks_px
    fresh = find_faces(frame).landmarks_px[0]
    error = np.linalg.norm(prior[0, :, :2] - fresh[:, :2], axis=1).mean()
    assert error / np.ptp(fresh[:, 0]) < 0.025


def test_a_lost_face_is_dropped(astronaut_rgb: NDArray[np.uint8]) -> None:
    known = find_faces(astronaut_rgb).landmarks_px
    assert len(find_faces(np.zeros_like(astronaut_rgb), prior_px=known).score) == 0
