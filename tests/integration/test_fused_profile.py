"""The fused profile in a real Triton: the same answers as the steps, whatever the order of the requests."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest
from facegraph_client import FaceClient, FaceSwapSession, ImageError, InputError
from facegraph_server.embedded import EmbeddedServer
from facegraph_server.image_decode import decode_image
from facegraph_server.image_metrics import psnr_db
from facegraph_server.reconstruction import reconstruct_faces
from numpy.typing import NDArray
from PIL import Image

from tests.server.pipeline import find_faces


@pytest.fixture(scope="module")
def fused() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(profile="fused") as running:
        yield running


@pytest.fixture(scope="module")
def fused_client(fused: EmbeddedServer) -> Iterator[FaceClient]:
    with FaceClient(fused.grpc_address, timeout_s=60) as connected:
        yield connected


def test_landmarks_are_those_of_the_steps_in_any_order(
    fused_client: FaceClient, sample_photo: Path, hopper_rgb: NDArray[np.uint8]
) -> None:
    wide = np.ascontiguousarray(np.hstack([hopper_rgb[:, :480], hopper_rgb[:, ::-1][:, :480]]))
    photos = [decode_image(sample_photo.read_bytes()), hopper_rgb, wide, np.zeros((64, 64, 3), np.uint8)]
    expected = [find_faces(photo) for photo in photos]
    assert [len(faces.score) for faces in expected] == [1, 1, 2, 0]
    first: dict[int, bytes] = {}
    for i in (0, 0, 1, 1, 2, 0, 3, 1):
        faces = fused_client.landmarks(photos[i])
        assert len(faces) == len(expected[i].score)
        found = np.array([face.landmarks_px for face in faces], np.float32).reshape(-1, 468, 3)
        np.testing.assert_allclose(found, expected[i].landmarks_px, rtol=0, atol=0.1)
        assert first.setdefault(i, found.tobytes()) == found.tobytes()


def test_tracking_follows_as_the_steps_do(fused_client: FaceClient, astronaut_rgb: NDArray[np.uint8]) -> None:
    faces = fused_client.track(astronaut_rgb)
    prior = find_faces(astronaut_rgb, prior_px=np.zeros((1, 468, 3), np.float32)).landmarks_px
    for step in range(1, 4):
        frame = np.roll(astronaut_rgb, (3 * step, 5 * step), (0, 1))
        faces = fused_client.track(frame, faces)
        prior = find_faces(frame, prior_px=prior).landmarks_px
        np.testing.assert_allclose(faces[0].landmarks_px, prior[0], rtol=0, atol=0.1)


@pytest.mark.parametrize("size_px", [1024, 256])
@pytest.mark.parametrize("faces", [1, 2])
def test_reconstruction_is_that_of_the_steps(
    fused_client: FaceClient, sample_photo: Path, hopper_rgb: NDArray[np.uint8], faces: int, size_px: int
) -> None:
    photo = decode_image(sample_photo.read_bytes())
    if faces == 2:
        photo = np.ascontiguousarray(np.hstack([photo, hopper_rgb[:512, :480]])[:, ::-1])
    expected = reconstruct_faces(photo, find_faces(photo).landmarks_px, size_px)
    found = fused_client.reconstruct(photo if faces == 2 else sample_photo, texture_size_px=size_px)
    assert len(found) == len(expected.pose) == faces
    for i, face in enumerate(found):
        assert psnr_db(face.texture_rgb, expected.texture_rgb[i]) > 50  # the landmarks differ by up to 0.01 px
        covered = expected.coverage[i] > 0
        assert covered.mean() > 0.3
        assert psnr_db(face.texture_rgb[covered], expected.texture_rgb[i][covered]) > 50
        assert (np.abs(face.coverage.astype(int) - expected.coverage[i]) > 4).mean() < 1e-3
        np.testing.assert_allclose(face.vertices_cm, expected.vertices_cm[i], rtol=0, atol=0.01)
        np.testing.assert_allclose(face.pose, expected.pose[i], rtol=0, atol=0.02)
        np.testing.assert_allclose(face.pose[:3, :3] @ face.pose[:3, :3].T, np.eye(3), atol=1e-5)


@pytest.mark.parametrize("size_px", [1024, 64])
def test_a_photo_of_nobody_has_no_textures(fused_client: FaceClient, size_px: int) -> None:
    assert fused_client.reconstruct(np.zeros((64, 64, 3), np.uint8), texture_size_px=size_px) == []


def test_a_frame_beyond_every_bucket_is_told_the_buckets(fused_client: FaceClient) -> None:
    with pytest.raises(InputError, match="640x640x4, 1280x1280x16"):
        fused_client.landmarks(png(4200, 200))
    with pytest.raises(ImageError, match="plain text"):
        fused_client.landmarks(b"not a picture")
    assert fused_client.landmarks(png(64, 64)) == []


def png(width: int, height: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height)).save(buffer, "PNG")
    return buffer.getvalue()


def test_runs_are_counted_in_the_metrics(fused: EmbeddedServer, fused_client: FaceClient) -> None:
    def runs() -> float:
        with urlopen(f"http://{fused.metrics_address}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        kinds = ("facegraph_graph_replays_total", "facegraph_graph_eager_runs_total")
        return sum(float(line.split()[-1]) for line in lines if line.startswith(kinds) and "face_landmarks" in line)

    before = runs()
    for _ in range(3):
        fused_client.landmarks(png(64, 64))
    assert runs() == before + 3


def test_swaps_are_those_of_the_steps(
    fused_client: FaceClient, server: EmbeddedServer, astronaut_rgb: NDArray[np.uint8], hopper_rgb: NDArray[np.uint8]
) -> None:
    source, target = (io.BytesIO() for _ in range(2))
    Image.fromarray(hopper_rgb).save(source, "PNG")
    Image.fromarray(astronaut_rgb).save(target, "PNG")
    with FaceClient(server.grpc_address) as client:
        face = client.reconstruct(hopper_rgb, texture_size_px=256)
        photos = [asked.swap(source.getvalue(), target.getvalue()) for asked in (client, fused_client)]
        frames = [FaceSwapSession(asked, face).swap(astronaut_rgb)[0] for asked in (client, fused_client)]
    assert [photo.swapped for photo in photos] == [1, 1]
    decoded = [decode_image(photo.encoded) for photo in photos]
    assert psnr_db(*decoded) >= 40
    assert psnr_db(*frames) >= 40
    assert np.abs(frames[1].astype(int) - astronaut_rgb).max() > 50
    with pytest.raises(ImageError, match="the source shows no face"):
        fused_client.swap(np.full((64, 64, 3), 90, np.uint8), astronaut_rgb)
