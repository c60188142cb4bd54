from __future__ import annotations

import numpy as np
import pytest
from facegraph_client import rasterize

ONE = np.array([[0, 1, 2]])


def _covered(vertices: list[list[float]], size_wh: tuple[int, int]) -> list[str]:
    raster = rasterize(np.array(vertices), ONE, size_wh)
    return ["".join("#" if triangle == 0 else "." for triangle in row) for row in raster.triangle]


@pytest.mark.parametrize(
    ("vertices", "size_wh", "picture"),
    [
        ([[0, 0, 0], [3, 0, 0], [0, 3, 0]], (4, 4), ["####", "###.", "##..", "#..."]),  # edges and corners belong to it
        ([[0, 0, 0], [0, 3, 0], [3, 0, 0]], (4, 4), ["####", "###.", "##..", "#..."]),  # the other winding
        ([[0.5, 0.5, 0], [2.5, 0.5, 0], [0.5, 2.5, 0]], (4, 4), ["....", ".##.", ".#..", "...."]),
        ([[0.1, 0.1, 0], [0.9, 0.1, 0], [0.1, 0.9, 0]], (2, 2), ["..", ".."]),  # between the pixel centres
        ([[0, 0, 0], [2, 2, 0], [3, 3, 0]], (4, 4), ["....", "....", "....", "...."]),  # no area
        ([[-9, -9, 0], [30, -9, 0], [-9, 30, 0]], (3, 2), ["###", "###"]),  # larger than the picture
        ([[-2, 0, 0], [1, 0, 0], [-2, 3, 0]], (4, 3), ["##..", "#...", "...."]),  # across the left border
        ([[2, 1, 0], [9, 1, 0], [2, 8, 0]], (4, 3), ["....", "..##", "..##"]),  # across two borders
        ([[-5, -5, 0], [-2, -5, 0], [-5, -2, 0]], (2, 2), ["..", ".."]),  # outside
        ([[7, 7, 0], [9, 7, 0], [7, 9, 0]], (2, 2), ["..", ".."]),
    ],
    ids=["right", "winding", "half", "tiny", "degenerate", "huge", "left", "corner", "above", "below"],
)
def test_exact_coverage(vertices: list[list[float]], size_wh: tuple[int, int], picture: list[str]) -> None:
    assert _covered(vertices, size_wh) == picture


def test_barycentric_weights_and_depth_are_those_of_the_plane() -> None:
    raster = rasterize(np.array([[0, 0, 10], [4, 0, 14], [0, 4, 18]]), ONE, (5, 5))
    np.testing.assert_allclose(raster.barycentric[1, 2], [1 / 4, 1 / 2, 1 / 4], atol=1e-6)
    y, x = np.nonzero(raster.triangle == 0)
    np.testing.assert_allclose(raster.depth[y, x], 10 + x + 2 * y, atol=1e-5)
    np.testing.assert_allclose(raster.barycentric[y, x].sum(1), 1, atol=1e-6)


def test_outside_there_is_nothing() -> None:
    raster = rasterize(np.array([[0, 0, 1], [1, 0, 1], [0, 1, 1]]), ONE, (6, 4))
    assert raster.triangle.shape == (4, 6)
    assert raster.triangle[3, 5] == -1
    assert raster.barycentric[3, 5].tolist() == [0, 0, 0]
    assert raster.depth[3, 5] == np.inf


@pytest.mark.parametrize("triangles", [[[0, 1, 2], [3, 4, 5]], [[3, 4, 5], [0, 1, 2]]], ids=["near first", "far first"])
def test_the_nearest_triangle_wins_in_any_order(triangles: list[list[int]]) -> None:
    corners = [[-1, -1], [9, -1], [-1, 9]]
    vertices = np.array([[*xy, 1.0] for xy in corners] + [[*xy, 2.0] for xy in corners])
    raster = rasterize(vertices, np.array(triangles), (3, 3))
    assert (raster.triangle == triangles.index([0, 1, 2])).all()
    assert (raster.depth == 1).all()


def test_triangles_that_cross_are_cut_where_they_meet() -> None:
    # The first rises from left to right, the second falls: they meet at x = 2.
    left, right = [0, 4]
    vertices = np.array(
        [[left, 0, 0], [right, 0, 4], [left, 9, 0], [left, 0, 4], [right, 0, 0], [left, 9, 4]], np.float64
    )
    raster = rasterize(vertices, np.array([[0, 1, 2], [3, 4, 5]]), (5, 1))
    assert raster.triangle[0, [0, 1, 3, 4]].tolist() == [0, 0, 1, 1]


def test_a_grid_of_triangles_leaves_no_gap_and_no_overlap() -> None:
    rng = np.random.default_rng(1)
    x, y = np.meshgrid(np.linspace(-2, 33, 9), np.linspace(-2, 33, 9))
    inner = np.zeros((9, 9), bool)
    inner[1:-1, 1:-1] = True
    points = np.stack([x, y, np.zeros_like(x)], -1)
    points[inner, :2] += rng.uniform(-1, 1, (49, 2))
    index = np.arange(81).reshape(9, 9)
    a, b, c, d = (part.ravel() for part in (index[:-1, :-1], index[:-1, 1:], index[1:, :-1], index[1:, 1:]))
    triangles = np.concatenate([np.stack([a, b, c], 1), np.stack([b, d, c], 1)])
    raster = rasterize(points.reshape(-1, 3), triangles, (32, 32))
    assert (raster.triangle >= 0).all()
    # Each pixel lies where its weights say.
    position = (points.reshape(-1, 3)[triangles[raster.triangle]] * raster.barycentric[..., None]).sum(2)
    rows, columns = np.mgrid[:32, :32]
    np.testing.assert_allclose(position[..., 0], columns, atol=1e-4)
    np.testing.assert_allclose(position[..., 1], rows, atol=1e-4)
