from __future__ import annotations

import numpy as np
import pytest
from facegraph_server.detection import box_containment, box_iou, merge_candidates
from numpy.typing import NDArray

WHOLE = (0.0, 0.0, 192.0)


def candidates(
    *rows: tuple[int, tuple[float, float, float, float], float], views: int = 1
) -> tuple[NDArray[np.float32], ...]:
    """Make detector outputs from (view, box, score); the key points lie at the box's centre."""
    boxes = np.zeros((views, len(rows), 4), np.float32)
    keypoints = np.zeros((views, len(rows), 6, 2), np.float32)
    scores = np.zeros((views, len(rows)), np.float32)
    for i, (view, box, score) in enumerate(rows):
        boxes[view, i], scores[view, i] = box, score
        keypoints[view, i] = (np.array(box[:2]) + box[2:]) / 2
    return boxes, keypoints, scores


def test_nothing_above_the_threshold_is_no_face() -> None:
    found = merge_candidates(*candidates((0, (10, 10, 50, 50), 0.2)), np.array([WHOLE], np.float32), (192, 192))
    assert found.box_xyxy.shape == (0, 4)
    assert found.keypoints.shape == (0, 6, 2)
    assert found.score.shape == (0,)


def test_overlapping_candidates_become_their_weighted_mean_in_the_pictures_pixels() -> None:
    rows = ((0, (40, 40, 80, 80), 0.9), (0, (44, 40, 84, 80), 0.45), (0, (150, 150, 170, 170), 0.6))
    found = merge_candidates(*candidates(*rows), np.array([(100, 200, 384)], np.float32), (600, 600))
    mean_left = (40 * 0.9 + 44 * 0.45) / 1.35
    assert found.box_xyxy[0] == pytest.approx(
        [100 + 2 * mean_left - 0.5, 279.5, 100 + 2 * (mean_left + 40) - 0.5, 359.5], abs=1e-3
    )
    assert found.score.tolist() == pytest.approx([0.9, 0.6])
    assert found.keypoints[1] == pytest.approx(np.tile([100 + 2 * 160 - 0.5, 200 + 2 * 160 - 0.5], (6, 1)))


def test_a_small_face_before_a_large_false_alarm_stays_itself() -> None:
    rows = ((0, (20, 20, 120, 120), 0.6), (0, (50, 50, 80, 80), 0.8))
    found = merge_candidates(*candidates(*rows), np.array([WHOLE], np.float32), (192, 192))
    assert found.box_xyxy[0] == pytest.approx([49.5, 49.5, 79.5, 79.5])
    assert len(found.score) == 2


@pytest.mark.parametrize(
    ("box", "kept"),
    [
        pytest.param((60, 60, 100, 100), True, id="in-the-middle"),
        pytest.param((150, 60, 191, 100), False, id="cut-by-the-tile"),
        pytest.param((1, 60, 40, 100), True, id="at-the-pictures-own-border"),
        pytest.param((10, 10, 180, 180), False, id="too-large-for-a-tile"),
    ],
)
def test_a_tile_leaves_cut_and_large_faces_to_the_other_views(
    box: tuple[float, float, float, float], kept: bool
) -> None:
    views = np.array([WHOLE, (0, 0, 96)], np.float32)
    found = merge_candidates(*candidates((1, box, 0.9), views=2), views, (192, 192))
    assert len(found.score) == kept
    in_whole = merge_candidates(*candidates((0, box, 0.9), views=2), views, (192, 192))
    assert len(in_whole.score) == 1


def test_box_iou() -> None:
    others = np.array([[0, 0, 2, 2], [1, 0, 3, 2], [5, 5, 6, 6], [0, 0, 0, 0]], np.float32)
    assert box_iou(others[0], others) == pytest.approx([1, 1 / 3, 0, 0])


def test_box_containment() -> None:
    others = np.array([[0, 0, 2, 2], [1, 0, 3, 2], [0, 0, 8, 8], [5, 5, 6, 6]], np.float32)
    assert box_containment(others[0], others) == pytest.approx([1, 0.5, 1, 0])


def test_what_is_seen_in_the_black_border_is_no_face() -> None:
    found = merge_candidates(*candidates((0, (10, 10, 50, 50), 0.9)), np.array([(0, -96, 384)], np.float32), (384, 192))
    assert len(found.score) == 0
