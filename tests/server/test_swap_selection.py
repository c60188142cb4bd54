from __future__ import annotations

import numpy as np
import pytest
from facegraph_client import InputError
from facegraph_server.swap_selection import select_sources
from numpy.typing import NDArray

NOBODY = np.zeros((1, 468, 3), np.float32)
NO_SOURCE = np.array([-1], np.int32)


def faces(*boxes: tuple[float, float, float]) -> NDArray[np.float32]:
    """Faces with these left, top and side."""
    unit = np.random.default_rng(0).random((468, 3)).astype(np.float32)
    unit[:2] = [[0, 0, 0], [1, 1, 0]]
    return np.array([unit * side + [left, top, 0] for left, top, side in boxes], np.float32).reshape(-1, 468, 3)


SMALL_LEFT, LARGE_MIDDLE, LOW_RIGHT = (0, 50, 20), (100, 10, 60), (300, 200, 40)
THREE = faces(SMALL_LEFT, LARGE_MIDDLE, LOW_RIGHT)


@pytest.mark.parametrize(
    ("mode", "order", "sources", "expected"),
    [
        ("one", "large-small", 1, [-1, 0, -1]),
        ("one", "small-large", 1, [0, -1, -1]),
        ("one", "left-right", 2, [0, 1, -1]),
        ("one", "right-left", 2, [-1, 1, 0]),
        ("one", "top-bottom", 1, [-1, 0, -1]),
        ("one", "bottom-top", 1, [-1, -1, 0]),
        ("one", "left-right", 5, [0, 1, 2]),
        ("many", "left-right", 1, [0, 0, 0]),
        ("many", "right-left", 2, [0, 1, 0]),
        ("reference", "left-right", 3, [-1, -1, -1]),
    ],
)
def test_new_faces(mode: str, order: str, sources: int, expected: list[int]) -> None:
    assert select_sources(THREE, NOBODY, NO_SOURCE, sources, mode, order).tolist() == expected


@pytest.mark.parametrize("mode", ["one", "many", "reference"])
def test_a_face_that_goes_on_keeps_its_source_whatever_the_order(mode: str) -> None:
    before = faces((103, 12, 58), (2, 52, 20))
    chosen = select_sources(THREE[:2], before, np.array([1, 0], np.int32), 2, mode, "right-left")
    assert chosen.tolist() == [0, 1]


def test_a_source_that_is_taken_goes_to_nobody_else_and_a_free_one_to_the_next_new_face() -> None:
    before = faces((103, 12, 58))
    assert select_sources(THREE, before, np.array([0], np.int32), 1, "one", "large-small").tolist() == [-1, 0, -1]
    assert select_sources(THREE, before, np.array([1], np.int32), 2, "one", "small-large").tolist() == [0, 1, -1]
    assert select_sources(THREE, before, np.array([-1], np.int32), 1, "many", "small-large").tolist() == [0, -1, 0]


def test_no_faces() -> None:
    assert select_sources(faces(), NOBODY, NO_SOURCE, 1, "many", "left-right").shape == (0,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((NOBODY, NO_SOURCE, 1, "some", "left-right"), "mode 'some'; choose one of one, many, reference"),
        ((NOBODY, NO_SOURCE, 1, "one", "age"), "order 'age'; choose one of left-right"),
        ((THREE, NO_SOURCE, 1, "one", "left-right"), "PRIOR has 3 faces"),
        ((NOBODY, np.array([2], np.int32), 2, "one", "left-right"), "-1 .keep the face. to 1"),
        ((NOBODY, np.array([-2], np.int32), 2, "one", "left-right"), "-1 .keep the face. to 1"),
    ],
)
def test_bad_options_are_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(InputError, match=message):
        select_sources(THREE, *arguments)
