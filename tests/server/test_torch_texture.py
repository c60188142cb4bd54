"""The texture as a torch function: it agrees with the NumPy and OpenCV steps, and it can be captured."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from facegraph_client import canonical_face, rasterize
from facegraph_server import texture_fill
from facegraph_server.image_decode import decode_image
from facegraph_server.image_metrics import psnr_db
from facegraph_server.texel_map import layout_mask
from facegraph_server.texture import unwrap_texture
from facegraph_server.texture_coverage import front_area, surface_cosine
from facegraph_server.torch_frame import FrameBucket
from facegraph_server.torch_resample import Region, reduce_region, sample_region, summed_area
from facegraph_server.torch_texture import FaceUnwrapper
from facegraph_server.torch_texture_coverage import SurfaceCoverage
from facegraph_server.torch_texture_fill import TextureFill
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode

from tests.server.pipeline import find_faces
from tests.server.test_texture import photograph, skin
from tests.server.test_torch_frame import SYNTHETIC, CaptureGuard, function, in_buffer

Image = NDArray[np.uint8]
Landmarks = NDArray[np.float32]
PSNR_DB = 55.0  # of the whole texture; 40 is what a viewer would not notice
COVERAGE_LEVELS = 2


@cache
def unwrapper() -> FaceUnwrapper:
    return FaceUnwrapper()


def torch_textures(image_rgb: Image, landmarks_px: Landmarks, size_px: int, seed: int = 0) -> tuple[Image, Image]:
    """Unwrap in a buffer a little larger than the picture, full of noise beyond it."""
    height, width = image_rgb.shape[:2]
    frame = torch.from_numpy(in_buffer(image_rgb, FrameBucket(width + 13, height + 7, 1), seed))
    size_wh = torch.tensor([width, height], dtype=torch.int32)
    with torch.inference_mode():
        texture, coverage = unwrapper()(frame, size_wh, torch.from_numpy(landmarks_px.copy()), size_px)
    return texture.numpy(), coverage.numpy()


def assert_agrees(image_rgb: Image, landmarks_px: Landmarks, size_px: int) -> None:
    textures, coverages = torch_textures(image_rgb, landmarks_px, size_px)
    assert (textures.shape, textures.dtype) == ((len(landmarks_px), size_px, size_px, 3), np.uint8)
    assert (coverages.shape, coverages.dtype) == (textures.shape[:3], np.uint8)
    for texture, coverage, landmarks in zip(textures, coverages, landmarks_px, strict=True):
        expected, expected_coverage = unwrap_texture(image_rgb, landmarks, size_px)
        assert psnr_db(texture, expected) >= PSNR_DB
        covered = expected_coverage > 0
        assert psnr_db(texture[covered], expected[covered]) >= PSNR_DB
        difference = np.abs(coverage.astype(int) - expected_coverage)
        assert (difference > COVERAGE_LEVELS).mean() < 1e-4
        assert difference.max() <= 4 * COVERAGE_LEVELS


@pytest.mark.parametrize("name", [name for name in SYNTHETIC if name != "no-face"])
def test_textures_are_those_of_the_steps(name: str, astronaut_rgb: Image, hopper_rgb: Image) -> None:
    picture = SYNTHETIC[name](astronaut_rgb, hopper_rgb)
    landmarks = find_faces(picture).landmarks_px
    assert len(landmarks) >= 1 + name.count("-faces-")
    assert_agrees(picture, landmarks, 1024)


def test_the_sample_photo_gives_the_texture_of_the_steps(sample_photo: Path) -> None:
    picture = decode_image(sample_photo.read_bytes())
    assert_agrees(picture, find_faces(picture).landmarks_px, 1024)


@pytest.mark.parametrize("size_px", [64, 65, 383, 1000])
def test_other_sizes_too(size_px: int, astronaut_rgb: Image) -> None:
    assert_agrees(astronaut_rgb, find_faces(astronaut_rgb).landmarks_px, size_px)


SCENES: dict[str, tuple[dict[str, Any], int]] = {
    "reduced": ({"yaw_deg": 30, "image_wh": (2200, 2200), "scale": 130.0}, 1024),
    "reduced-by-much": ({"yaw_deg": 60, "image_wh": (1500, 1500), "scale": 75.0}, 64),
    "not-quite-reduced": ({"yaw_deg": 0, "pitch_deg": 30, "image_wh": (1700, 1900), "scale": 98.0}, 1024),
    "larger-than-the-frame": ({"yaw_deg": 10, "image_wh": (700, 500), "scale": 100.0}, 1024),
    "profile": ({"yaw_deg": -85}, 1024),
    "half-outside": ({"yaw_deg": 0, "image_wh": (400, 640), "centre_xy": (400, 320)}, 512),
    "wholly-outside": ({"yaw_deg": 10, "centre_xy": (3000, 3000)}, 256),
}


@pytest.mark.parametrize("name", SCENES)
def test_hard_scenes_agree(name: str) -> None:
    scene, size_px = SCENES[name]
    photo, landmarks = photograph(skin(), **scene)
    grain = np.random.default_rng(0).normal(0, 25, photo.shape)  # fine detail: what is not averaged alike differs
    assert_agrees(np.clip(photo + grain, 0, 255).astype(np.uint8), landmarks[None], size_px)


def test_an_open_mouth_agrees() -> None:
    photo, landmarks = photograph(skin(), 0)
    landmarks[[95, 88, 178, 87, 14, 317, 402, 318, 324], 1] += 60  # inner lower lip
    assert_agrees(photo, landmarks[None], 1024)


def test_what_lies_beyond_the_frame_in_the_buffer_does_not_matter(hopper_rgb: Image) -> None:
    cut = np.ascontiguousarray(hopper_rgb[:, :300])  # the face goes on beyond the frame's border
    landmarks = find_faces(hopper_rgb).landmarks_px
    assert landmarks[..., 0].max() > 310
    first, second = (torch_textures(cut, landmarks, 1024, seed) for seed in (1, 2))
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_is_no_face_harms_nothing(hopper_rgb: Image) -> None:
    face = find_faces(hopper_rgb).landmarks_px
    no_faces = [np.full_like(face, value) for value in (0, 7, np.nan, np.inf, -np.inf, 1e30)]
    textures, coverages = torch_textures(hopper_rgb, np.concatenate([*no_faces, face]), 1024)
    alone = torch_textures(hopper_rgb, face, 1024)
    np.testing.assert_array_equal(textures[-1], alone[0][0])
    np.testing.assert_array_equal(coverages[-1], alone[1][0])
    assert coverages[:-1].max() == 0


# The parts, against OpenCV and NumPy.


@pytest.mark.parametrize("yaw", [0, 40, -85])
def test_the_depth_raster_is_that_of_the_rasteriser(yaw: float) -> None:
    coverage = SurfaceCoverage()
    _, landmarks = photograph(skin(64), yaw)
    extent = np.ptp(landmarks[:, :2], axis=0).max()
    flat = (landmarks[:, :2] - landmarks[:, :2].min(0)) * (96 / extent) + 2
    points = np.column_stack([flat, landmarks[:, 2]]).astype(np.float32)
    surface = coverage.surface(torch.from_numpy(points))
    found = coverage._depth_raster(surface.points, surface.front).numpy()

    front = canonical_face().triangles[surface.front.numpy()]
    assert 300 < len(front) < 898
    expected = rasterize(points, front, found.shape[::-1])
    np.testing.assert_array_equal(found < 1e8, expected.triangle >= 0)
    drawn = expected.triangle >= 0
    np.testing.assert_allclose(found[drawn], expected.depth[drawn], rtol=0, atol=1e-3)
    np.testing.assert_allclose(surface.cosine.numpy(), surface_cosine(points), atol=1e-5)
    assert float(surface.front_area) == pytest.approx(front_area(points), rel=1e-5)

    distance = cv2.distanceTransform(drawn.astype(np.uint8), cv2.DIST_L2, 3)
    near = distance < 13  # further in it makes no difference
    assert (distance[near] > 11).any()
    np.testing.assert_allclose(coverage._from_rim(torch.from_numpy(drawn)).numpy()[near], distance[near], atol=1e-3)


@pytest.mark.parametrize(
    ("box", "cells"),
    [((31, 17, 400, 300), (400, 300)), ((0, 0, 512, 512), (256, 256)), ((7, 90, 401, 222), (123, 61))],
    ids=["as-it-is", "halved", "between"],
)
def test_a_region_is_averaged_and_sampled_as_opencv_does(
    astronaut_rgb: Image, box: tuple[int, int, int, int], cells: tuple[int, int]
) -> None:
    x, y, width, height = box
    full, cell_count = np.array([width, height], float), np.array(cells, float)
    region = Region(*(torch.from_numpy(value) for value in (np.array([x, y], float), cell_count, full / cell_count)))
    table = summed_area(torch.from_numpy(in_buffer(astronaut_rgb, FrameBucket(600, 520, 1))))
    pixels = reduce_region(table, torch.tensor([512.0, 512.0]).double(), region, (420, 310))
    crop = cv2.resize(astronaut_rgb[y : y + height, x : x + width], cells, interpolation=cv2.INTER_AREA)
    found = pixels.numpy().transpose(1, 0, 2)[: cells[1], : cells[0]]
    difference = np.abs(found.astype(int) - crop)
    assert difference.max() <= 1  # a mean that lies on the border of two levels
    assert (difference > 0).mean() < 2e-3

    places = np.random.default_rng(0).uniform(-9, max(cells) + 9, (2, 200, 100)).astype(np.float32)
    fixed = cv2.convertMaps(places.transpose(1, 2, 0), None, cv2.CV_16SC2)
    expected = cv2.remap(found.copy(), *fixed, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    sampled = sample_region(pixels, region, torch.from_numpy(places)).numpy()
    np.testing.assert_array_equal(sampled, expected)


@pytest.mark.parametrize("blocks", [128, 75, 33])
def test_the_fill_is_that_of_the_steps(blocks: int) -> None:
    rng = np.random.default_rng(blocks)
    colours = cv2.resize(rng.uniform(0, 255, (7, 7, 3)).astype(np.float32), (blocks, blocks))
    coverage, near_rim = (
        cv2.resize(np.clip(rng.uniform(-1, 2, (6, 6)), 0, 1).astype(np.float32), (blocks, blocks)) for _ in range(2)
    )
    painted = np.ones((blocks, blocks), np.float32)
    painted[:3], painted[:, :3], painted[:, -3:] = 0, 0, 0
    fill = TextureFill(painted)
    planes = torch.from_numpy(colours.transpose(2, 0, 1).copy())

    doubted = fill.doubt_background(planes, torch.from_numpy(coverage), torch.from_numpy(near_rim))
    expected_coverage = texture_fill.doubt_background(colours, coverage, near_rim)
    assert np.abs(expected_coverage - coverage).max() > 0.1
    np.testing.assert_allclose(doubted.numpy(), expected_coverage, atol=1e-4)

    for seen in (expected_coverage, np.zeros_like(coverage)):
        found = fill.plan_fill(planes, torch.from_numpy(seen))
        expected = texture_fill.plan_fill(colours, seen, painted)
        np.testing.assert_allclose(found.photo, expected.photo, atol=1e-5)
        np.testing.assert_allclose(found.mirror, expected.mirror, atol=1e-5)
        np.testing.assert_allclose(found.gain.numpy().transpose(1, 2, 0), expected.gain, rtol=1e-3)
        spread = found.spread.numpy().transpose(1, 2, 0)
        np.testing.assert_allclose(spread, expected.spread, atol=1)  # at the border of two levels


# Capture. Without a GPU the strongest proof is what the function asks of torch.


class Launches(TorchDispatchMode):
    """Write down every operation with the shapes of what goes in."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        shapes = tuple(tuple(value.shape) for value in args if isinstance(value, torch.Tensor))
        self.seen.append((str(func), shapes))
        return func(*args, **(kwargs or {}))


def frame_of(image_rgb: Image) -> tuple[torch.Tensor, torch.Tensor]:
    height, width = image_rgb.shape[:2]
    buffer = torch.from_numpy(in_buffer(image_rgb, FrameBucket(640, 640, 1)))
    return buffer, torch.tensor([width, height], dtype=torch.int32)


def test_the_launches_do_not_depend_on_the_face(astronaut_rgb: Image, hopper_rgb: Image) -> None:
    face = torch.from_numpy(find_faces(hopper_rgb).landmarks_px)
    runs = []
    for image, landmarks in ((hopper_rgb, face), (astronaut_rgb[:90, :70], face * 3), (astronaut_rgb, face * 0)):
        frame, size_wh = frame_of(image)
        launches = Launches()
        with torch.no_grad(), launches:
            unwrapper()(frame, size_wh, landmarks, 1024)
        runs.append(launches.seen)
    assert len(runs[0]) > 300
    assert runs[0] == runs[1] == runs[2]


def test_nothing_in_the_function_looks_at_a_value(astronaut_rgb: Image) -> None:
    frame, size_wh = frame_of(astronaut_rgb)
    guard = CaptureGuard()
    with torch.no_grad(), guard:
        unwrapper()(frame, size_wh, torch.zeros(2, 468, 3), 1024)
    assert {"index_select", "upsample_bilinear2d", "amin"} <= guard.seen


def test_no_tensor_of_the_function_is_on_the_host() -> None:
    """Within the whole frame's function, whose submodule it is, so that it moves to the device with it."""
    frame = copy.deepcopy(function(FrameBucket(700, 500, 2), max_faces=2, unwrap=unwrapper())).to("meta")
    inputs = {n: torch.empty(shape, dtype=dtype, device="meta") for n, (shape, dtype) in frame.input_specs().items()}
    with torch.inference_mode():
        found = frame(inputs)
    described = {name: (tuple(found[name].shape), found[name].dtype) for name in ("TEXTURE", "COVERAGE")}
    assert described == {
        "TEXTURE": ((1, 1024, 1024, 3), torch.uint8),
        "COVERAGE": ((1, 1024, 1024), torch.uint8),
    }
    assert all(value.device.type == "meta" for value in found.values())


def test_other_sizes_leave_the_captured_constants_where_they_are(astronaut_rgb: Image) -> None:
    """A graph reads the addresses that it was captured with."""

    def addresses() -> dict[str, int]:
        return {name: buffer.data_ptr() for name, buffer in unwrapper().named_buffers()}

    before = addresses()
    assert {"default.corners", "default.weights", "default.mask"} <= before.keys()
    landmarks = find_faces(astronaut_rgb).landmarks_px
    for size_px in (64, 130):
        torch_textures(astronaut_rgb, landmarks, size_px)
    assert addresses() == before
    np.testing.assert_array_equal(unwrapper().default.mask.numpy(), layout_mask(1024))
