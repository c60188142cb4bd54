"""The choice of buckets and graphs, and the settings of the fused profile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from facegraph_client import InputError
from facegraph_server.contract import MAX_BATCH
from facegraph_server.errors import ModelBuildError
from facegraph_server.frame_graph import GraphCounters
from facegraph_server.fused_service import FusedFrames, FusedSettings
from facegraph_server.image_metrics import psnr_db
from facegraph_server.paths import MODEL_REPOSITORY
from facegraph_server.profiles import loaded_models, read_config
from facegraph_server.texture import unwrap_texture
from facegraph_server.torch_frame import FrameBucket
from facegraph_server.torch_texture import FaceUnwrapper
from numpy.typing import NDArray
from torch import Tensor

from tests.server.pipeline import find_faces

WITH_GRAPHS = ("face_landmarks", "face_reconstruction", "face_tracking")
PUBLIC = ("face_landmarks", "face_reconstruction", "face_swap", "face_swap_image", "face_tracking")


def settings(buckets: str, **parameters: str) -> FusedSettings:
    return FusedSettings.from_parameters({"BUCKETS": buckets, "DEVICE": "cpu", **parameters})


def test_parameters_are_read_and_buckets_sorted() -> None:
    found = settings("1280x720x1 64x48x4 64x48x2", FACES="16 2", GRAPHS="off")
    assert found == FusedSettings(
        (FrameBucket(64, 48, 2), FrameBucket(64, 48, 4), FrameBucket(1280, 720, 1)), (2, 16), "cpu", graphs=False
    )


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"BUCKETS": "640x640"}, "WIDTHxHEIGHTxVIEWS"),
        ({"BUCKETS": "640x640x17"}, "1 to 16 views"),
        ({"BUCKETS": "64x64x1", "FACES": "17"}, "from 1 to 16"),
        ({"BUCKETS": "64x64x1", "FACES": "many"}, "from 1 to 16"),
        ({"BUCKETS": "64x64x1", "GRAPHS": "yes"}, "on or off"),
        pytest.param(
            {"BUCKETS": "64x64x1", "DEVICE": "cuda"},
            "no GPU",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is one"),
        ),
    ],
    ids=str,
)
def test_bad_parameters_are_refused(parameters: dict[str, str], message: str) -> None:
    with pytest.raises(ModelBuildError, match=message):
        FusedSettings.from_parameters(parameters)


@pytest.fixture(scope="module")
def frames() -> Iterator[FusedFrames]:
    with FusedFrames(settings("300x300x1 640x640x4", FACES="1 16")) as ready:
        yield ready


def test_the_smallest_bucket_that_fits_answers(frames: FusedFrames, astronaut_rgb: NDArray[np.uint8]) -> None:
    expected = find_faces(astronaut_rgb)
    before = frames.counters.eager_runs
    found = frames.find(astronaut_rgb)
    assert frames.counters.eager_runs == before + 1
    np.testing.assert_allclose(found.landmarks_px, expected.landmarks_px, rtol=0, atol=0.1)
    assert len(frames.find(np.zeros((20, 20, 3), np.uint8)).score) == 0


def test_a_frame_with_more_regions_than_the_small_graph_runs_the_large_one(
    frames: FusedFrames, astronaut_rgb: NDArray[np.uint8]
) -> None:
    half = astronaut_rgb[::2, ::2]
    two = np.ascontiguousarray(np.hstack([half[:, :210], half[:, :210]]))
    expected = find_faces(two)
    assert len(expected.score) == 2
    before = frames.counters.eager_runs
    found = frames.find(two)
    assert frames.counters.eager_runs == before + 2
    np.testing.assert_allclose(found.landmarks_px, expected.landmarks_px, rtol=0, atol=0.1)
    assert frames.counters == GraphCounters(eager_runs=frames.counters.eager_runs)


def plain_texture(frame: Tensor, size: Tensor, landmarks: Tensor, size_px: int) -> tuple[Tensor, Tensor]:
    """Stand in for the texture: the pixel under the tip of the nose, and the frame's width."""
    tip = landmarks[:, 1].round().long().clamp(min=0)
    colour = frame[tip[:, 1], tip[:, 0]]
    coverage = (size[0] % 251).to(torch.uint8).expand(len(landmarks), size_px, size_px)
    return colour[:, None, None].expand(-1, size_px, size_px, -1), coverage


@pytest.mark.parametrize("size_px", [64, 1024])
def test_every_face_gets_its_own_texture(astronaut_rgb: NDArray[np.uint8], size_px: int) -> None:
    half = astronaut_rgb[::2, ::2]
    two = np.ascontiguousarray(np.hstack([half[:, :210], half[:, :210] // 2]))
    with FusedFrames(settings("640x640x4", FACES="4"), unwrap=plain_texture) as ready:
        faces, texture, coverage = ready.find_textured(two, texture_size_px=size_px)
        assert len(faces.score) == 2
        assert texture.shape == (2, size_px, size_px, 3)
        for i, landmarks in enumerate(faces.landmarks_px):
            x, y = np.rint(landmarks[1, :2]).astype(int)
            assert (texture[i] == two[y, x]).all()
        assert (coverage == 420 % 251).all()
        nobody = ready.find_textured(np.zeros((64, 64, 3), np.uint8), texture_size_px=size_px)
        assert nobody[1].shape == (0, size_px, size_px, 3)
        with pytest.raises(InputError, match="64 to 4096"):
            ready.find_textured(two, texture_size_px=63)
        assert ready.counters == GraphCounters(eager_runs=ready.counters.eager_runs)


@pytest.mark.parametrize("size_px", [64, 1024])
def test_the_textures_are_those_of_the_steps(hopper_rgb: NDArray[np.uint8], size_px: int) -> None:
    half = hopper_rgb[::2, ::2]
    two = np.ascontiguousarray(np.hstack([half, half[:, ::-1] // 2]))
    with FusedFrames(settings("640x640x4", FACES="4"), unwrap=FaceUnwrapper()) as ready:
        faces, textures, coverages = ready.find_textured(two, texture_size_px=size_px)
    assert len(faces.score) == 2
    for landmarks, texture, coverage in zip(faces.landmarks_px, textures, coverages, strict=True):
        expected, expected_coverage = unwrap_texture(two, landmarks, size_px)
        assert psnr_db(texture, expected) > 55
        assert (np.abs(coverage.astype(int) - expected_coverage) > 2).mean() < 1e-4


def test_graphs_without_textures_say_so(frames: FusedFrames, astronaut_rgb: NDArray[np.uint8]) -> None:
    with pytest.raises(ModelBuildError, match="a function that unwraps"):
        frames.find_textured(astronaut_rgb)


def test_a_size_that_has_no_graph_counts_as_a_run_of_its_own(astronaut_rgb: NDArray[np.uint8]) -> None:
    with FusedFrames(settings("640x640x4", FACES="4"), unwrap=plain_texture) as ready:
        ready.find_textured(astronaut_rgb)
        assert ready.counters == GraphCounters(eager_runs=1)
        ready.find_textured(astronaut_rgb, texture_size_px=64)
        assert ready.counters == GraphCounters(eager_runs=3)


@pytest.mark.parametrize(("size_wh", "views"), [((641, 64), 12), ((640, 100), 8)], ids=["too-wide", "too-many-views"])
def test_a_frame_that_fits_nowhere_is_told_the_buckets(
    frames: FusedFrames, size_wh: tuple[int, int], views: int
) -> None:
    with pytest.raises(InputError, match=rf"{views} detector views.*300x300x1, 640x640x4"):
        frames.find(np.zeros((size_wh[1], size_wh[0], 3), np.uint8))


@pytest.mark.parametrize("name", PUBLIC)
def test_the_profiles_configuration_offers_the_same_tensors(name: str) -> None:
    folder = MODEL_REPOSITORY / name
    default, fused = read_config(folder / "config.pbtxt"), read_config(folder / "configs" / "fused.pbtxt")
    assert (fused.name, fused.backend, fused.max_batch_size) == (name, "python", 0)
    assert list(fused.input) == list(default.input)
    assert list(fused.output) == list(default.output)


@pytest.mark.parametrize("name", WITH_GRAPHS)
def test_the_profiles_parameters_make_sense(name: str) -> None:
    fused = read_config(MODEL_REPOSITORY / name / "configs" / "fused.pbtxt")
    parameters = {key: value.string_value for key, value in fused.parameters.items()}
    read = FusedSettings.from_parameters(parameters | {"DEVICE": "cpu"})
    assert read.face_counts[-1] == MAX_BATCH
    assert read.graphs
    most_views = 1 if name == "face_tracking" else MAX_BATCH
    assert max(bucket.views for bucket in read.buckets) == most_views


def test_a_fused_server_loads_the_public_models_only(tmp_path: Path) -> None:
    assert loaded_models(MODEL_REPOSITORY, "fused") == list(PUBLIC)
    assert set(loaded_models(MODEL_REPOSITORY, "cpu")) > set(PUBLIC)
