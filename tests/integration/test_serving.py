"""The public models through a real Triton, over gRPC and over HTTP."""

from __future__ import annotations

import asyncio
import io
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import skimage.data
from facegraph_client import AsyncFaceClient, FaceClient, ImageError, InputError
from facegraph_server.embedded import EmbeddedServer
from facegraph_server.image_decode import decode_image
from numpy.typing import NDArray
from PIL import Image

from tests.server.pipeline import find_faces
from tests.server.test_accuracy import HOPPER_FACE, paste_face


@pytest.fixture(scope="session")
def crowd_rgb(hopper_rgb: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A picture with 18 faces, each a little larger than the one before."""
    picture = np.full((1200, 1500, 3), 90, np.uint8)
    for i in range(18):
        centre = (140 + 245 * (i % 6), 200 + 380 * (i // 6))
        picture = paste_face(picture, hopper_rgb, HOPPER_FACE, 120 + 2 * i, centre)
    return picture


def test_landmarks_are_those_of_the_steps(client: FaceClient, sample_photo: Path) -> None:
    (face,) = client.landmarks(sample_photo)
    expected = find_faces(decode_image(sample_photo.read_bytes()))
    np.testing.assert_array_equal(face.landmarks_px, expected.landmarks_px[0])
    np.testing.assert_array_equal(face.box_xyxy, expected.box_xyxy[0])
    assert face.score == expected.score[0]


def test_a_path_bytes_and_pixels_are_the_same_photo(client: FaceClient, astronaut_rgb: NDArray[np.uint8]) -> None:
    buffer = io.BytesIO()
    Image.fromarray(astronaut_rgb).save(buffer, "PNG")
    (from_pixels,), (from_bytes,) = client.landmarks(astronaut_rgb), client.landmarks(buffer.getvalue())
    np.testing.assert_array_equal(from_pixels.landmarks_px, from_bytes.landmarks_px)


def test_a_photo_without_a_face_is_no_error(client: FaceClient) -> None:
    empty = np.full((300, 400, 3), 120, np.uint8)
    assert client.landmarks(empty) == []
    assert client.reconstruct(empty) == []


def test_of_eighteen_faces_the_sixteen_largest_come_back(client: FaceClient, crowd_rgb: NDArray[np.uint8]) -> None:
    faces = client.landmarks(crowd_rgb)
    assert len(faces) == 16
    heights = [face.box_xyxy[3] - face.box_xyxy[1] for face in faces]
    assert heights == sorted(heights, reverse=True) or np.diff(heights).max() < 3
    assert len(client.reconstruct(crowd_rgb, texture_size_px=64)) == 16


def test_small_faces_need_the_search_in_tiles(client: FaceClient, hopper_rgb: NDArray[np.uint8]) -> None:
    grass = np.asarray(Image.fromarray(skimage.data.grass()).convert("RGB").resize((1400, 1000)))
    picture = paste_face(grass, hopper_rgb, HOPPER_FACE, 30, (900, 400))
    assert client.landmarks(picture) == []
    (face,) = client.landmarks(picture, search_tiles=True)
    assert face.box_xyxy.reshape(2, 2).mean(0) == pytest.approx([900, 400], abs=12)


@pytest.mark.parametrize("size_px", [64, 256, 1024])
def test_reconstruction(client: FaceClient, sample_photo: Path, size_px: int) -> None:
    (face,) = client.reconstruct(sample_photo, texture_size_px=size_px)
    assert face.texture_rgb.shape == (size_px, size_px, 3)
    assert face.coverage.shape == (size_px, size_px)
    assert (
        face.vertices_cm[[1, 4], 2].max() == face.vertices_cm[:, 2].max()
    )  # the tip of the nose points out of the face
    assert face.vertices_cm[263, 0] > 3  # the outer corner of the left eye is on the person's left
    assert face.vertices_cm[33, 0] < -3
    assert face.vertices_cm[10, 1] > face.vertices_cm[152, 1] + 12  # forehead above chin
    np.testing.assert_allclose(face.pose[:3, :3] @ face.pose[:3, :3].T, np.eye(3), atol=1e-5)
    assert np.linalg.det(face.pose[:3, :3]) == pytest.approx(1, abs=1e-5)
    projected = face.vertices_cm @ face.pose[:3, :3].T * face.scale_px_per_cm * (1, -1, -1)
    offset = face.landmarks_px - projected
    assert np.ptp(offset, axis=0).max() < 0.05  # landmarks = scale * rotation * vertices + translation


def test_tracking_keeps_order_and_smooths(client: FaceClient, astronaut_rgb: NDArray[np.uint8]) -> None:
    faces = client.track(astronaut_rgb)
    rng = np.random.default_rng(0)
    tracked, fresh = [], []
    for _ in range(8):
        noisy = (astronaut_rgb + rng.normal(0, 6, astronaut_rgb.shape)).clip(0, 255).astype(np.uint8)
        faces = client.track(noisy, faces)
        tracked.append(faces[0].landmarks_px)
        fresh.append(client.track(noisy)[0].landmarks_px)
    assert np.diff(tracked[2:], axis=0).std() < 0.6 * np.diff(fresh, axis=0).std()


def png(size: tuple[int, int]) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(b"not a picture", "plain text", id="text"),
        pytest.param(png((1, 1)), "1x1 px", id="one-pixel"),
        pytest.param(b"%PDF-1.4", "PDF", id="pdf"),
    ],
)
def test_bad_photos_get_a_message_and_harm_nobody_else(
    client: FaceClient, sample_photo: Path, data: bytes, message: str
) -> None:
    with pytest.raises(ImageError, match=message):
        client.landmarks(data)
    assert len(client.landmarks(sample_photo)) == 1


@pytest.mark.parametrize("size_px", [0, 63, 5000])
def test_an_impossible_texture_size_is_refused(client: FaceClient, sample_photo: Path, size_px: int) -> None:
    with pytest.raises(InputError, match="64 to 4096"):
        client.reconstruct(sample_photo, texture_size_px=size_px)


def test_concurrent_mixed_requests_do_not_mix_their_results(
    client: FaceClient, sample_photo: Path, hopper_rgb: NDArray[np.uint8]
) -> None:
    photos: list[object] = [sample_photo, hopper_rgb, b"junk", np.zeros((64, 64, 3), np.uint8)]

    def ask(i: int) -> object:
        try:
            return [face.landmarks_px.tobytes() for face in client.landmarks(photos[i % 4])]  # type: ignore[arg-type]
        except ImageError:
            return "refused"

    alone = [ask(i) for i in range(4)]
    assert len(set(map(str, alone))) == 4
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(ask, range(48)))
    assert together == [alone[i % 4] for i in range(48)]


def test_the_async_client_gives_the_same_answers(server: EmbeddedServer, sample_photo: Path) -> None:
    async def ask(url: str) -> list[NDArray[np.float32]]:
        async with AsyncFaceClient(url) as client:
            answers = await asyncio.gather(*(client.landmarks(sample_photo) for _ in range(6)))
        return [faces[0].landmarks_px for faces in answers]

    over_grpc = asyncio.run(ask(server.grpc_address))
    over_http = asyncio.run(ask(f"http://{server.http_address}"))
    for landmarks in over_grpc + over_http:
        np.testing.assert_array_equal(landmarks, over_grpc[0])


FORK = """
import os, sys
import numpy as np
from facegraph_client import FaceClient
with FaceClient(sys.argv[1]) as client:
    expected = client.landmarks(sys.argv[2])[0].landmarks_px
    child = os.fork()
    # Both ask at once, for different things.
    ask = client.landmarks if child else client.reconstruct
    good = all(np.array_equal(ask(sys.argv[2])[0].landmarks_px, expected) for _ in range(8))
    if child == 0:
        os._exit(0 if good else 1)
    _, status = os.waitpid(child, 0)
    sys.exit(0 if good and status == 0 else 1)
"""


def test_a_forked_process_does_not_read_its_parents_answers(server: EmbeddedServer, sample_photo: Path) -> None:
    command = [sys.executable, "-c", FORK, f"http://{server.http_address}", str(sample_photo)]
    assert subprocess.run(command, timeout=60).returncode == 0
