"""Face swap through a real Triton: photos, frames, videos, and what is refused."""

from __future__ import annotations

import io
import itertools
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
from facegraph_client import FaceClient, FaceSwapSession, ImageError, InputError, SwapState, read_provenance
from facegraph_client._cli import main
from facegraph_server.embedded import EmbeddedServer
from facegraph_server.paths import MODEL_REPOSITORY
from facegraph_server.profiles import read_config
from numpy.typing import NDArray
from PIL import Image

from tests.client.video_clips import make_clip, read_clip
from tests.server.pipeline import find_faces

MARK = "http://cv.iptc.org/newscodes/digitalsourcetype/compositeSynthetic"
ENSEMBLES = ("face_landmarks", "face_reconstruction", "face_tracking", "face_swap", "face_swap_image")


def encoded(image_rgb: NDArray[np.uint8], kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image_rgb).save(buffer, kind, **({"quality": 95} if kind == "JPEG" else {}))
    return buffer.getvalue()


@pytest.fixture(scope="module")
def hopper(hopper_rgb: NDArray[np.uint8]) -> bytes:
    return encoded(hopper_rgb)


@pytest.fixture
def session(client: FaceClient, hopper: bytes) -> FaceSwapSession:
    return FaceSwapSession(client, client.reconstruct(hopper, texture_size_px=256))


def face_box(landmarks: NDArray[np.float32]) -> tuple[slice, slice]:
    low, high = np.floor(landmarks[:, :2].min(0)).astype(int), np.ceil(landmarks[:, :2].max(0)).astype(int)
    return slice(low[1] - 2, high[1] + 3), slice(low[0] - 2, high[0] + 3)


@pytest.mark.parametrize(("kind", "suffix"), [("PNG", ".png"), ("JPEG", ".jpg"), ("WEBP", ".webp"), ("BMP", ".png")])
def test_a_photo_comes_back_swapped_in_its_format_and_marked(
    client: FaceClient, astronaut_rgb: NDArray[np.uint8], hopper: bytes, kind: str, suffix: str, tmp_path: Path
) -> None:
    photo = client.swap(hopper, encoded(astronaut_rgb, kind))
    assert (photo.faces, photo.swapped) == (1, 1)
    path = tmp_path / f"swapped{suffix}"
    path.write_bytes(photo.encoded)
    assert read_provenance(path) == MARK
    with Image.open(path) as image:
        assert image.format == {".png": "PNG", ".jpg": "JPEG", ".webp": "WEBP"}[suffix]
        swapped = np.array(image.convert("RGB"))
    landmarks = find_faces(astronaut_rgb).landmarks_px[0]
    box = face_box(landmarks)
    assert np.abs(swapped[box].astype(int) - astronaut_rgb[box]).mean() > 4
    if suffix == ".png":
        swapped[box] = astronaut_rgb[box]
        np.testing.assert_array_equal(swapped, astronaut_rgb)


def test_a_photo_without_a_face_comes_back_as_it_was(client: FaceClient, hopper: bytes) -> None:
    grey = encoded(np.full((200, 300, 3), 90, np.uint8))
    photo = client.swap(hopper, grey)
    assert (photo.encoded, photo.faces, photo.swapped) == (grey, 0, 0)


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (encoded(np.full((200, 300, 3), 90, np.uint8)), ImageError, "the source shows no face"),
        (b"no picture", ImageError, "plain text, not a picture"),
    ],
)
def test_a_source_without_a_face_is_refused(
    client: FaceClient, sample_photo: Path, source: bytes, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        client.swap(source, sample_photo)
    with pytest.raises(InputError, match="face selector order 'age'"):
        client.swap(sample_photo, sample_photo, order="age")


def test_frames_hand_their_faces_on(
    session: FaceSwapSession, astronaut_rgb: NDArray[np.uint8], client: FaceClient
) -> None:
    state: SwapState | None = None
    for shift in (0, 6, 12):
        frame = np.ascontiguousarray(np.roll(astronaut_rgb, shift, axis=1))
        swapped, state = session.swap(frame, state)
        assert state.source_index.tolist() == [0]
        box = face_box(state.landmarks_px[0])
        assert np.abs(swapped[box].astype(int) - frame[box]).mean() > 4
        rest = swapped.copy()
        rest[box] = frame[box]
        np.testing.assert_array_equal(rest, frame)
    tracked = client.track(frame, client.track(frame))[0].landmarks_px
    assert np.abs(state.landmarks_px[0] - tracked)[:, :2].mean() < 1


def test_a_frame_without_a_face_is_passed_through(session: FaceSwapSession) -> None:
    grey = np.full((120, 160, 3), 90, np.uint8)
    swapped, state = session.swap(grey)
    assert swapped is grey
    assert state.landmarks_px.shape == (0, 468, 3)
    assert session.swap(grey, state)[1].source_index.tolist() == []


def test_two_sources_go_to_two_faces_in_the_order_that_was_chosen(
    client: FaceClient, astronaut_rgb: NDArray[np.uint8], hopper_rgb: NDArray[np.uint8], hopper: bytes
) -> None:
    pair = np.hstack([astronaut_rgb, hopper_rgb[:512]])
    sources = [
        *client.reconstruct(hopper, texture_size_px=256),
        *client.reconstruct(astronaut_rgb, texture_size_px=256),
    ]
    for order, expected in (("left-right", [0, 1]), ("right-left", [1, 0])):
        swapper = FaceSwapSession(client, sources, order=order)
        _, state = swapper.swap(pair)
        left_to_right = state.landmarks_px[:, :, 0].mean(1).argsort()
        assert state.source_index[left_to_right].tolist() == expected
        # The choice stays with the faces, whatever the order says later.
        _, later = swapper.swap(np.ascontiguousarray(pair[:, ::-1]), None)
        assert later.source_index[later.landmarks_px[:, :, 0].mean(1).argsort()].tolist() == expected
        _, again = swapper.swap(pair, state)
        assert again.source_index.tolist() == state.source_index.tolist()


def test_the_command_swaps_a_video_and_keeps_the_rest(
    server: EmbeddedServer,
    astronaut_rgb: NDArray[np.uint8],
    hopper: bytes,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    frames = [np.ascontiguousarray(np.roll(astronaut_rgb, 4 * i, axis=1)) for i in range(12)]
    clip, source, out = tmp_path / "in.mp4", tmp_path / "source.png", tmp_path / "out.mp4"
    make_clip(clip, frames=len(frames), size_px=(512, 512), pictures=frames)
    source.write_bytes(hopper)
    arguments = ["swap", "--source", str(source), "--target", str(clip), "--out", str(out)]
    assert main([*arguments, "--server", server.grpc_address]) == 0
    told = capsys.readouterr().err
    assert "agreed" in told
    assert "12 frames" in told
    assert read_provenance(out) == MARK
    before, after = read_clip(clip), read_clip(out)
    assert after.times_s == before.times_s
    assert after.audio == before.audio
    for old, new in zip(before.images_rgb, after.images_rgb, strict=True):
        box = face_box(find_faces(old).landmarks_px[0])
        change = np.abs(new.astype(int) - old)
        assert change[box].mean() > 4
        change[box] = 0
        assert change.mean() < 2  # the encoder's own
    assert main([*arguments, "--server", server.grpc_address]) == 2
    assert "exists already" in capsys.readouterr().err


def test_the_command_swaps_a_folder_and_reports_what_it_cannot(
    server: EmbeddedServer, sample_photo: Path, hopper: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    (folder / "a.jpg").write_bytes(sample_photo.read_bytes())
    (folder / "b.png").write_bytes(b"nothing")
    (folder / "notes.txt").write_text("left alone")
    (tmp_path / "source.png").write_bytes(hopper)
    arguments = ["swap", "--source", str(tmp_path / "source.png"), "--server", server.grpc_address, "--target"]
    assert main([*arguments, str(folder), "--out", str(out)]) == 1
    told = capsys.readouterr().err
    assert "a.jpg: 1 of 1 faces swapped" in told
    assert "b.png" in told
    assert [path.name for path in out.iterdir()] == ["a.jpg"]
    assert main([*arguments, str(folder), "--out", str(folder)]) == 2
    assert main([*arguments, str(sample_photo), "--out", str(tmp_path / "x.png")]) == 2
    assert "must end in .jpg" in capsys.readouterr().err


@pytest.mark.parametrize("model", ENSEMBLES)
def test_any_outputs_of_a_model_can_be_asked_for_alone(
    server: EmbeddedServer, sample_photo: Path, astronaut_rgb: NDArray[np.uint8], model: str
) -> None:
    """Triton drops a step too many where an output of the ensemble feeds one of its steps."""
    photo = np.array([sample_photo.read_bytes()], np.object_)
    texture = np.zeros((1, 64, 64, 3), np.uint8)
    values = {
        "IMAGE": photo,
        "SOURCE": photo,
        "FRAME": astronaut_rgb,
        "PRIOR": np.zeros((1, 468, 3), np.float32),
        "TEXTURE": texture,
        "COVERAGE": texture[..., 0],
    }
    config = read_config(MODEL_REPOSITORY / model / "config.pbtxt")
    inputs = []
    for tensor in config.input:
        if not tensor.optional:
            value = values[tensor.name]
            kind = {np.uint8: "UINT8", np.float32: "FP32", np.object_: "BYTES"}[value.dtype.type]
            inputs.append(triton.InferInput(tensor.name, list(value.shape), kind))
            inputs[-1].set_data_from_numpy(np.ascontiguousarray(value))
    names = [tensor.name for tensor in config.output]
    subsets = [[name] for name in names] + [list(pair) for pair in itertools.combinations(names, len(names) - 1)]
    with triton.InferenceServerClient(server.grpc_address) as asked:
        for subset in subsets:
            outputs = [triton.InferRequestedOutput(name) for name in subset]
            answer = asked.infer(model, inputs, outputs=outputs, client_timeout=30)
            assert all(answer.as_numpy(name) is not None for name in subset)
