from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from facegraph_server.contract import DETECTOR_SIZE_PX, MAX_BATCH
from facegraph_server.detector_views import View, choose_views, render_views

SHAPES = [(512, 512), (1000, 1400), (1400, 1000), (1920, 1080), (4000, 500), (500, 4000), (20, 17), (6000, 4000)]


@pytest.mark.parametrize(
    ("width", "height", "count"),
    [(512, 512, 1), (1000, 1400, 1), (1100, 1000, 1), (1400, 1000, 3), (1920, 1080, 3), (3000, 1000, 4)],
)
def test_only_landscape_pictures_need_more_than_the_whole(width: int, height: int, count: int) -> None:
    assert len(choose_views(width, height, fine=False)) == count


@pytest.mark.parametrize("fine", [False, True])
@pytest.mark.parametrize(("width", "height"), SHAPES)
def test_views_fit_one_batch_and_cover_the_picture(width: int, height: int, fine: bool) -> None:
    views = choose_views(width, height, fine=fine)
    assert 1 <= len(views) <= MAX_BATCH
    assert views[0].side == max(width, height)
    covered = np.zeros((height, width), bool)
    for view in views[1:]:
        assert view.left + 1e-6 >= 0
        assert view.left + view.side <= width + 1e-6
        top, left = round(view.top), round(view.left)
        covered[top : round(view.top + view.side), left : round(view.left + view.side)] = True
    assert len(views) == 1 or covered.all()


@pytest.mark.parametrize(("width", "height"), [(1000, 1000), (1400, 1000), (1500, 1000), (1920, 1080), (1000, 1500)])
def test_fine_tiles_show_a_face_of_three_percent_large_enough_and_whole(width: int, height: int) -> None:
    tiles = choose_views(width, height, fine=True)[1:]
    face_px = 0.03 * height
    assert all(face_px * DETECTOR_SIZE_PX / tile.side >= 12 for tile in tiles)
    lefts = sorted({tile.left for tile in tiles})
    overlaps = [a + tiles[0].side - b for a, b in pairwise(lefts)]
    assert min(overlaps) >= 0.08 * min(width, height)


def test_the_whole_is_letterboxed_in_black() -> None:
    image = np.full((100, 200, 3), 200, np.uint8)
    (view,) = render_views(image, [View(0, -50, 200)])
    assert (view[:48] == 0).all()
    assert (view[48:144] == 200).all()
    assert (view[144:] == 0).all()


def test_a_tile_shows_its_part_of_the_picture() -> None:
    image = np.zeros((400, 400, 3), np.uint8)
    image[200:, 200:] = 255
    tiles = render_views(image, [View(208, 208, 192), View(0, 0, 192)])
    assert (tiles[0] == 255).all()
    assert (tiles[1] == 0).all()
