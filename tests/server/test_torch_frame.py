"""The whole frame as one torch function: it agrees with the NumPy and OpenCV steps, and it can be captured."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import cv2
import numpy as np
import pytest
import skimage.data
import torch
from facegraph_client import InputError
from facegraph_server import detection, face_crop, smoothing, torch_detection, torch_smoothing
from facegraph_server.contract import VERTICES
from facegraph_server.detector_views import choose_views, render_views
from facegraph_server.faces import Faces
from facegraph_server.paths import onnx_path
from facegraph_server.torch_frame import FrameBucket, FrameFunction, frame_inputs, frame_views
from facegraph_server.torch_networks import TorchNetwork
from facegraph_server.torch_resample import crop_regions, summed_area
from facegraph_server.torch_resample import render_views as torch_render_views
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode

from tests.server.pipeline import find_faces
from tests.server.test_accuracy import ASTRONAUT_FACE, HOPPER_FACE, paste_face

Image = NDArray[np.uint8]
TOLERANCE_PX = 0.1


@cache
def torch_network(name: str) -> TorchNetwork:
    return TorchNetwork(onnx_path(name), channels_last=True)


def function(bucket: FrameBucket, **options: Any) -> FrameFunction:
    return FrameFunction(torch_network("face_detector"), torch_network("face_mesh"), bucket, **options)


def in_buffer(image_rgb: Image, bucket: FrameBucket, seed: int = 0) -> Image:
    """Put a picture into the corner of a buffer that is full of noise."""
    shape = (bucket.height_px, bucket.width_px, 3)
    buffer = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    buffer[: image_rgb.shape[0], : image_rgb.shape[1]] = image_rgb
    return buffer


def call(frame: FrameFunction, image_rgb: Image, *, fine: bool = False, prior_px: Any = None, seed: int = 0) -> Any:
    views = frame_views(image_rgb.shape[1], image_rgb.shape[0], fine=fine, tracking=frame.tracking)
    inputs = frame_inputs(image_rgb, views, frame.bucket, prior_px)
    inputs["FRAME"] = in_buffer(image_rgb, frame.bucket, seed)
    with torch.inference_mode():
        found = frame({name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in inputs.items()})
    return {name: value.numpy() for name, value in found.items()}


def torch_faces(image_rgb: Image, *, fine: bool = False, prior_px: Any = None, max_faces: int = 4) -> Faces:
    """Run the function in a bucket a little larger than the picture."""
    height, width = image_rgb.shape[:2]
    views = len(frame_views(width, height, fine=fine, tracking=prior_px is not None))
    bucket = FrameBucket(width + 13, height + 7, min(views + 1, 16))
    frame = function(bucket, max_faces=max_faces, tracking=prior_px is not None)
    found = call(frame, image_rgb, fine=fine, prior_px=prior_px)
    count = found["COUNT"][0]
    for name in ("LANDMARKS", "BOX", "SCORE"):
        assert not found[name][count:].any()
    return Faces(*(found[name][:count] for name in ("LANDMARKS", "BOX", "SCORE")))


def assert_agrees(found: Faces, expected: Faces) -> None:
    """Same count, same order, same places."""
    assert len(found.score) == len(expected.score)
    np.testing.assert_allclose(found.landmarks_px, expected.landmarks_px, rtol=0, atol=TOLERANCE_PX)
    np.testing.assert_allclose(found.box_xyxy, expected.box_xyxy, rtol=0, atol=TOLERANCE_PX)
    np.testing.assert_allclose(found.score, expected.score, atol=1e-3)


def turned(degrees: float) -> Callable[[Image, Image], Image]:
    turn = cv2.getRotationMatrix2D((225, 140), degrees, 1.0)
    return lambda a, h: np.asarray(cv2.warpAffine(a, turn, (512, 512), borderMode=cv2.BORDER_REPLICATE), np.uint8)


def scaled(factor: float) -> Callable[[Image, Image], Image]:
    how = cv2.INTER_AREA if factor < 1 else cv2.INTER_CUBIC
    return lambda a, h: np.asarray(cv2.resize(a, None, fx=factor, fy=factor, interpolation=how), np.uint8)


def gathering(size_wh: tuple[int, int], *faces: tuple[str, float, tuple[int, int]]) -> Callable[[Image, Image], Image]:
    def draw(astronaut: Image, hopper: Image) -> Image:
        picture = np.asarray(cv2.resize(skimage.data.coffee(), size_wh), np.uint8)
        for who, height_px, centre in faces:
            portrait, face = (astronaut, ASTRONAUT_FACE) if who == "astronaut" else (hopper, HOPPER_FACE)
            picture = paste_face(picture, portrait, face, height_px, centre)
        return picture

    return draw


SYNTHETIC = {
    "as-it-is": lambda a, h: a,
    "hopper": lambda a, h: h,
    "turned-30": turned(30),
    "turned-minus-60": turned(-60),
    "turned-90": turned(90),
    "half-size": scaled(0.5),
    "twice-as-large": scaled(2),
    "3.3-times-as-large": scaled(3.3),
    "shifted": lambda a, h: np.roll(a, (60, -91), (0, 1)),
    "cut-by-the-border": lambda a, h: np.ascontiguousarray(a[100:, 190:]),
    "dark": lambda a, h: (a * 0.25).astype(np.uint8),
    "no-face": lambda a, h: np.full((300, 400, 3), 120, np.uint8),
    "two-faces-wide": gathering((1280, 720), ("hopper", 220, (300, 300)), ("astronaut", 160, (900, 400))),
    "three-faces-tall": gathering(
        (600, 1000), ("hopper", 220, (300, 200)), ("astronaut", 160, (200, 520)), ("hopper", 180, (380, 800))
    ),
    "panorama": gathering((1600, 300), ("hopper", 120, (300, 150)), ("astronaut", 100, (1200, 150))),
}


@pytest.mark.parametrize("name", SYNTHETIC)
def test_landmarks_are_those_of_the_steps(name: str, astronaut_rgb: Image, hopper_rgb: Image) -> None:
    picture = SYNTHETIC[name](astronaut_rgb, hopper_rgb)
    expected = find_faces(picture)
    assert (len(expected.score) > 0) == (name != "no-face")
    assert_agrees(torch_faces(picture), expected)


def test_small_faces_are_found_in_tiles(hopper_rgb: Image) -> None:
    picture = gathering((1000, 800), ("hopper", 30, (640, 300)))(hopper_rgb, hopper_rgb)
    expected = find_faces(picture, fine=True)
    assert len(expected.score) == 1
    assert_agrees(torch_faces(picture, fine=True), expected)


def test_a_face_that_goes_on_is_smoothed_as_in_the_steps(astronaut_rgb: Image, hopper_rgb: Image) -> None:
    start = gathering((640, 480), ("astronaut", 140, (180, 220)), ("hopper", 150, (480, 240)))(
        astronaut_rgb, hopper_rgb
    )
    prior = find_faces(start, prior_px=np.zeros((1, VERTICES, 3), np.float32)).landmarks_px[::-1]
    assert len(prior) == 2
    for step in range(1, 4):
        frame = np.roll(start, (3 * step, 5 * step), (0, 1))
        expected = find_faces(frame, prior_px=prior)
        assert_agrees(torch_faces(frame, prior_px=prior), expected)
        prior = expected.landmarks_px


@pytest.mark.parametrize(
    "prior_px",
    [np.zeros((0, VERTICES, 3), np.float32), np.zeros((1, VERTICES, 3), np.float32), np.ones((3, VERTICES, 3), "f4")],
    ids=["none", "zero", "stale"],
)
def test_tracking_without_a_face_to_follow_finds_new_ones(astronaut_rgb: Image, prior_px: Any) -> None:
    assert_agrees(torch_faces(astronaut_rgb, prior_px=prior_px), find_faces(astronaut_rgb, prior_px=prior_px))


FACE = np.random.default_rng(0).uniform(0, 60, (VERTICES, 3)).astype(np.float32)


def test_more_faces_than_can_go_on_are_refused(astronaut_rgb: Image) -> None:
    with pytest.raises(InputError, match="17 faces; at most 16"):
        frame_inputs(astronaut_rgb, frame_views(512, 512), FrameBucket(512, 512, 1), np.stack([FACE] * 17))


def test_of_more_faces_than_regions_the_largest_are_kept(astronaut_rgb: Image, hopper_rgb: Image) -> None:
    picture = SYNTHETIC["three-faces-tall"](astronaut_rgb, hopper_rgb)
    found = call(function(FrameBucket(600, 1000, 1), max_faces=2), picture)
    assert found["COUNT"] == 2
    assert found["REGIONS"] >= 3
    expected = find_faces(picture).landmarks_px[:2]
    np.testing.assert_allclose(found["LANDMARKS"], expected, rtol=0, atol=TOLERANCE_PX)


def test_what_lies_beyond_the_frame_in_the_buffer_does_not_matter(astronaut_rgb: Image) -> None:
    frame = function(FrameBucket(640, 640, 4), max_faces=2)
    first, second = (call(frame, astronaut_rgb, seed=seed) for seed in (1, 2))
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])


@pytest.mark.parametrize("count", [0, 17])
def test_an_impossible_number_of_faces_is_refused(count: int) -> None:
    with pytest.raises(InputError, match="1 to 16"):
        function(FrameBucket(64, 64, 1), max_faces=count)


# The parts, against OpenCV and NumPy.


@pytest.mark.parametrize(
    ("size_wh", "fine"),
    [((512, 512), False), ((640, 300), False), ((200, 333), False), ((1279, 777), False), ((1500, 1080), True)],
    ids=str,
)
def test_views_are_pixel_for_pixel_those_of_opencv(astronaut_rgb: Image, size_wh: tuple[int, int], fine: bool) -> None:
    image = np.asarray(cv2.resize(astronaut_rgb, size_wh), np.uint8)
    image = (image + np.random.default_rng(0).integers(0, 40, image.shape)).clip(0, 255).astype(np.uint8)
    views = choose_views(*size_wh, fine=fine)
    table = summed_area(torch.from_numpy(in_buffer(image, FrameBucket(size_wh[0] + 5, size_wh[1] + 9, 1))))
    found = torch_render_views(table, torch.tensor(size_wh, dtype=torch.float64), torch.tensor(views).double())
    np.testing.assert_array_equal(found.numpy(), render_views(image, views))


@pytest.mark.parametrize(
    "roi",
    [
        (250, 180, 120, 0.3),
        (30, 60, 300, -2),
        (256, 256, 500, 0.1),
        (256, 200, 768, 0.5),
        (500, 500, 900, 3),
        (9,) * 4,
    ],
    ids=str,
)
def test_crops_are_those_of_opencv(astronaut_rgb: Image, roi: tuple[float, ...]) -> None:
    rows = np.array([roi], np.float32)
    table = summed_area(torch.from_numpy(in_buffer(astronaut_rgb, FrameBucket(600, 520, 1))))
    found = crop_regions(table, torch.tensor([512.0, 512.0]).double(), torch.from_numpy(rows)).numpy()[0]
    difference = np.abs(found.astype(int) - face_crop._crop(astronaut_rgb, rows[0]))
    assert (difference > 0).mean() < 0.01  # a cosine's last bit can move a sample by 1/32 px
    assert difference.max() <= 6


def random_candidates(rng: np.random.Generator, views: int) -> tuple[NDArray[np.float32], ...]:
    """Return boxes, key points and scores of clustered candidates."""
    heart = rng.uniform(20, 170, (6, 2))[rng.integers(0, 6, (views, 504))] + rng.normal(0, 6, (views, 504, 2))
    half = rng.uniform(4, 40, (views, 504, 1))
    boxes = np.concatenate([heart - half, heart + half], 2).astype(np.float32)
    points = rng.uniform(0, 192, (views, 504, 6, 2)).astype(np.float32)
    scores = rng.uniform(0, 1, (views, 504)).astype(np.float32) ** 4
    return boxes, points, scores


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("size_wh", [(400, 400), (900, 500)], ids=str)
def test_candidates_are_merged_as_in_the_steps(size_wh: tuple[int, int], seed: int) -> None:
    views = choose_views(*size_wh, fine=False)
    candidates = random_candidates(np.random.default_rng(seed), len(views))
    expected = detection.merge_candidates(*candidates, np.array(views, np.float32), size_wh)
    padded = [np.concatenate([value, value[:1]]) for value in candidates]  # a view that is not there
    found = torch_detection.merge_candidates(
        *map(torch.from_numpy, padded),
        torch.tensor([*views, views[0]]),
        torch.tensor([len(views)]),
        torch.tensor(size_wh, dtype=torch.float32),
    )
    kept = min(len(expected.score), torch_detection.MAX_DETECTIONS)
    assert kept > 5
    assert found.valid.tolist() == [True] * kept + [False] * (torch_detection.MAX_DETECTIONS - kept)
    for got, wanted in zip(found[:3], expected, strict=True):
        np.testing.assert_allclose(got[:kept], wanted[:kept], rtol=0, atol=1e-3)


def test_the_smoothing_is_that_of_the_steps() -> None:
    rng = np.random.default_rng(0)
    prior = rng.uniform(0, 100, (5, VERTICES, 3)).astype(np.float32)
    turn = np.linalg.qr(rng.normal(size=(5, 3, 3)))[0].astype(np.float32)
    turn *= np.linalg.det(turn)[:, None, None]
    raw = prior @ turn * rng.uniform(0.5, 2, (5, 1, 1)).astype(np.float32) + rng.normal(0, 1, prior.shape).astype("f4")
    raw[3, :, 2] = 0  # flat
    raw[4] = prior[4] * (1, 1, -1)  # mirrored
    found = torch_smoothing.smooth_landmarks(torch.from_numpy(raw), torch.from_numpy(prior)).numpy()
    for face in range(5):
        expected = smoothing.smooth_landmarks(raw[face], prior[face])
        np.testing.assert_allclose(found[face], expected, rtol=0, atol=2e-3)


# Capture. Without a GPU the strongest proof is what the function asks of torch.

_HOST_LOOKS = (
    "_local_scalar_dense", "item", "nonzero", "masked_select", "unique", "equal", "is_nonzero", "_linalg_svd",
    "_linalg_eigh", "linalg_inv", "_linalg_check_errors", "bincount", "lift_fresh", "lift_fresh_copy", "pin_memory",
)  # fmt: skip


class CaptureGuard(TorchDispatchMode):
    """Refuse every operation that looks at a value from the host, or brings a constant from it, while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.seen.add(name)
        if any(name == look or name.startswith(f"{look}_") for look in _HOST_LOOKS):
            raise AssertionError(f"{func} cannot be captured")
        if name in ("index", "index_put", "index_put_"):
            masks = [i for i in args[1] if i is not None and i.dtype in (torch.bool, torch.uint8)]
            assert not masks, f"{func} with a mask has a shape that depends on values"
        if name == "repeat_interleave":
            raise AssertionError(f"{func} cannot be captured")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("bad", [
    lambda x: x[x > 0], lambda x: x.nonzero(), lambda x: float(x.sum()), lambda x: x + torch.tensor([1.0]),
    lambda x: torch.linalg.svd(x[None] * x[:, None]), lambda x: x if bool(x[0] > 0) else -x,
], ids=["mask", "nonzero", "item", "host-constant", "svd", "branch"])  # fmt: skip
def test_the_guard_sees_what_cannot_be_captured(bad: Callable[[torch.Tensor], Any]) -> None:
    with CaptureGuard(), pytest.raises(AssertionError, match=r"captured|depends on values"):
        bad(torch.ones(4))


@pytest.mark.parametrize("tracking", [False, True], ids=["photo", "tracking"])
def test_nothing_in_the_function_looks_at_a_value(tracking: bool) -> None:
    frame = function(FrameBucket(700, 500, 2), max_faces=2, tracking=tracking)
    inputs = {name: torch.ones(shape, dtype=dtype) for name, (shape, dtype) in frame.input_specs().items()}
    inputs["SIZE"] = inputs["SIZE"] * 400
    guard = CaptureGuard()
    with torch.no_grad(), guard:  # in inference mode torch would show composite operations whole
        frame(inputs)
    assert {"convolution", "sort", "index_select"} <= guard.seen


@pytest.mark.parametrize("tracking", [False, True], ids=["photo", "tracking"])
def test_no_tensor_of_the_function_is_on_the_host(tracking: bool) -> None:
    """Tensors on the meta device have no values: mixing in one of the host, or asking for a value, raises."""
    frame = copy.deepcopy(function(FrameBucket(700, 500, 2), max_faces=2, tracking=tracking)).to("meta")
    with torch.inference_mode():
        found = frame(
            {
                name: torch.empty(shape, dtype=dtype, device="meta")
                for name, (shape, dtype) in frame.input_specs().items()
            }
        )
    described: Mapping[str, Any] = {name: (tuple(value.shape), value.device.type) for name, value in found.items()}
    assert described == {
        "LANDMARKS": ((2, VERTICES, 3), "meta"),
        "BOX": ((2, 4), "meta"),
        "SCORE": ((2,), "meta"),
        "COUNT": ((1,), "meta"),
        "REGIONS": ((1,), "meta"),
    }
