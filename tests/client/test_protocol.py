from __future__ import annotations

import numpy as np
import pytest
from facegraph_client import (
    FaceGraphError,
    FaceLandmarks,
    ImageError,
    InputError,
    ModelUnavailableError,
    ServerError,
    ServerOverloadedError,
    ServerTimeoutError,
    ServerUnavailableError,
)
from facegraph_client import _protocol as protocol
from facegraph_client._grpc_transport import channel_args

ADDRESS = protocol.Address("grpc", "h:1")


@pytest.mark.parametrize(
    ("url", "expected", "text"),
    [
        ("127.0.0.1:8001", ("grpc", "127.0.0.1:8001"), "127.0.0.1:8001"),
        ("grpc://host:8001", ("grpc", "host:8001"), "host:8001"),
        ("http://host:8000", ("http", "host:8000"), "http://host:8000"),
        ("http://host:8000/", ("http", "host:8000"), "http://host:8000"),
        ("[::1]:8001", ("grpc", "[::1]:8001"), "[::1]:8001"),
        ("dns:///triton:8001", ("grpc", "dns:///triton:8001"), "dns:///triton:8001"),
        ("ipv4:127.0.0.1:1,127.0.0.1:2", ("grpc", "ipv4:127.0.0.1:1,127.0.0.1:2"), "ipv4:127.0.0.1:1,127.0.0.1:2"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_addresses(url: str, expected: tuple[str, str], text: str) -> None:
    assert protocol.parse_address(url) == expected
    assert str(protocol.parse_address(url)) == text


@pytest.mark.parametrize(
    "url",
    ["", "host", "host:", ":8001", "http://host", "https://host:1", "ftp://host:1", "host:99999", "host:0", "a b:1"],
)
def test_addresses_that_make_no_sense(url: str) -> None:
    with pytest.raises(InputError, match="server address"):
        protocol.parse_address(url)


@pytest.mark.parametrize("timeout_s", [0, -1, float("inf"), float("nan")])
def test_timeouts_must_be_finite(timeout_s: float) -> None:
    with pytest.raises(InputError, match="more than 0 and at most 86400 seconds"):
        protocol.checked_timeout(timeout_s)


def _sent(call: protocol.Call) -> list[tuple[str, str, list[object]]]:
    return [(name, datatype, array.tolist()) for name, datatype, array in call.inputs]


@pytest.mark.parametrize(
    ("call", "model", "inputs"),
    [
        (
            protocol.landmarks_call(b"photo\0\0", search_tiles=False),
            "face_landmarks",
            [("IMAGE", "BYTES", [b"photo\0\0"])],  # trailing zeros survive
        ),
        (
            protocol.landmarks_call(b"photo", search_tiles=True),
            "face_landmarks",
            [("IMAGE", "BYTES", [b"photo"]), ("SEARCH_TILES", "BOOL", [True])],
        ),
        (
            protocol.reconstruction_call(b"photo", search_tiles=False, texture_size_px=1024),
            "face_reconstruction",
            [("IMAGE", "BYTES", [b"photo"])],
        ),
        (
            protocol.reconstruction_call(b"photo", search_tiles=True, texture_size_px=512),
            "face_reconstruction",
            [("IMAGE", "BYTES", [b"photo"]), ("SEARCH_TILES", "BOOL", [True]), ("TEXTURE_SIZE", "INT32", [512])],
        ),
    ],
    ids=["landmarks", "tiles", "reconstruction", "all options"],
)
def test_a_call_sends_options_only_where_they_differ(call: protocol.Call, model: str, inputs: list[object]) -> None:
    assert call.model == model
    assert _sent(call) == inputs
    assert call.inputs[0].array.dtype == np.object_


@pytest.mark.parametrize("size", [63, 4097, 0, -1])
def test_texture_size_out_of_range(size: int) -> None:
    with pytest.raises(InputError, match=f"from 64 to 4096 px, not {size}"):
        protocol.reconstruction_call(b"x", search_tiles=False, texture_size_px=size)


def test_tracking_without_a_prior_sends_one_face_of_zeros() -> None:
    frame = np.zeros((4, 6, 3), np.uint8)
    frame_input, prior_input = protocol.tracking_call(frame, ()).inputs
    assert (frame_input.name, frame_input.datatype, frame_input.array.shape) == ("FRAME", "UINT8", (4, 6, 3))
    assert (prior_input.name, prior_input.datatype, prior_input.array.shape) == ("PRIOR", "FP32", (1, 468, 3))
    assert not prior_input.array.any()


def _landmarks(value: float, count: int = 468) -> FaceLandmarks:
    return FaceLandmarks(landmarks_px=np.full((count, 3), value), box_xyxy=np.zeros(4), score=1)


def test_tracking_sends_the_prior_faces_in_order() -> None:
    _, prior = protocol.tracking_call(np.zeros((4, 6, 3), np.uint8), [_landmarks(1), _landmarks(2)]).inputs
    assert prior.array.shape == (2, 468, 3)
    assert prior.array[:, 0, 0].tolist() == [1, 2]
    assert prior.array.dtype == np.float32


@pytest.mark.parametrize(
    ("frame", "prior"),
    [
        (np.zeros((4, 6)), ()),
        (np.zeros((4, 6, 4), np.uint8), ()),
        (np.zeros((4, 6, 3), np.float32), ()),
        (np.zeros((0, 6, 3), np.uint8), ()),
        (np.zeros((4, 6, 3), np.uint8), [_landmarks(1), _landmarks(1, 478)]),
    ],
    ids=["gray", "RGBA", "float", "empty", "mixed prior"],
)
def test_tracking_refuses_what_is_no_frame(frame: np.ndarray, prior: list[FaceLandmarks]) -> None:
    with pytest.raises(InputError):
        protocol.tracking_call(frame, prior)


def _outputs(faces: int, size: int = 8) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "LANDMARKS": rng.normal(size=(faces, 468, 3)).astype(np.float32),
        "BOX": rng.normal(size=(faces, 4)).astype(np.float32),
        "SCORE": rng.random(faces).astype(np.float32),
        "VERTICES": rng.normal(size=(faces, 468, 3)).astype(np.float32),
        "POSE": rng.normal(size=(faces, 4, 4)).astype(np.float32),
        "TEXTURE": rng.integers(0, 256, (faces, size, size, 3), np.uint8),
        "COVERAGE": rng.integers(0, 256, (faces, size, size), np.uint8),
    }


@pytest.mark.parametrize("faces", [0, 1, 3])
def test_answers_become_one_result_per_face(faces: int) -> None:
    outputs = _outputs(faces)
    parsed = protocol.parse_faces(outputs)
    assert len(parsed) == len(protocol.parse_landmarks(outputs)) == faces
    for index, face in enumerate(parsed):
        np.testing.assert_array_equal(face.landmarks_px, outputs["LANDMARKS"][index])
        np.testing.assert_array_equal(face.box_xyxy, outputs["BOX"][index])
        assert face.score == outputs["SCORE"][index]
        np.testing.assert_array_equal(face.vertices_cm, outputs["VERTICES"][index])
        np.testing.assert_array_equal(face.pose, outputs["POSE"][index])
        np.testing.assert_array_equal(face.texture_rgb, outputs["TEXTURE"][index])
        np.testing.assert_array_equal(face.coverage, outputs["COVERAGE"][index])


@pytest.mark.parametrize("change", [{"POSE": None}, {"SCORE": np.zeros(3)}], ids=["output missing", "unequal counts"])
def test_an_answer_that_is_not_ours_is_a_server_error(change: dict[str, np.ndarray | None]) -> None:
    outputs = {name: array for name, array in {**_outputs(2), **change}.items() if array is not None}
    with pytest.raises(ServerError, match="version differs"):
        protocol.parse_faces(outputs)


def test_compute_times_are_summed_in_ms() -> None:
    stages = {"a": {"compute_input": 1_000_000, "compute_infer": 2_500_000, "compute_output": 500_000}}
    assert protocol.compute_times_ms(stages) == {"a": 4.0}


@pytest.mark.parametrize(
    ("status", "message", "model", "expected", "text"),
    [
        # gRPC
        (
            "StatusCode.INVALID_ARGUMENT",
            "in ensemble 'face_landmarks', no picture",
            "face_landmarks",
            ImageError,
            "no picture",
        ),
        ("StatusCode.INVALID_ARGUMENT", "bad frame", "face_tracking", InputError, "bad frame"),
        (
            "StatusCode.INVALID_ARGUMENT",
            "unexpected shape for input 'IMAGE'",
            "face_landmarks",
            InputError,
            "unexpected",
        ),
        (
            "StatusCode.UNAVAILABLE",
            "failed to connect to all addresses",
            "m",
            ServerUnavailableError,
            "scripts/serve.py",
        ),
        ("StatusCode.CANCELLED", "CANCELLED", "m", ServerUnavailableError, "h:1"),
        ("StatusCode.DEADLINE_EXCEEDED", "Deadline Exceeded", "m", ServerTimeoutError, "within 7 s"),
        ("StatusCode.RESOURCE_EXHAUSTED", "no memory", "m", ServerOverloadedError, "try again"),
        (
            "StatusCode.RESOURCE_EXHAUSTED",
            "CLIENT: Received message larger than max (9 vs. 4)",
            "m",
            ServerError,
            "larger than max",
        ),
        (
            "StatusCode.UNAVAILABLE",
            "[request id: x] Exceeds maximum queue size",
            "m",
            ServerOverloadedError,
            "queue is full",
        ),
        ("StatusCode.NOT_FOUND", "Request for unknown model: 'm' is not found", "m", ModelUnavailableError, "'m'"),
        (
            "StatusCode.UNAVAILABLE",
            "Request for unknown model: 'm' has no available versions",
            "m",
            ServerUnavailableError,
            "wait until it says ready",
        ),
        ("StatusCode.INTERNAL", "in ensemble 'x', boom", "m", ServerError, "failed: boom"),
        ("StatusCode.UNKNOWN", "", "m", ServerError, "no reason given"),
        # HTTP, where almost everything is 400
        ("400", "in ensemble 'face_reconstruction', a PDF", "face_reconstruction", ImageError, "a PDF"),
        ("400", "Request for unknown model: 'm' is not found", "m", ModelUnavailableError, "does not serve"),
        ("404", "", "m", ModelUnavailableError, "does not serve"),
        ("500", "boom", "m", ServerError, "failed: boom"),
        ("503", "in ensemble 'x', Exceeds maximum queue size", "m", ServerOverloadedError, "queue is full"),
        ("503", "[Errno 111] Connection refused", "m", ServerUnavailableError, "Connection refused"),
        ("504", "timed out", "m", ServerTimeoutError, "within 7 s"),
        (None, "strange", "m", ServerError, "strange"),
    ],
)
def test_errors(status: str | None, message: str, model: str, expected: type[FaceGraphError], text: str) -> None:
    error = protocol.server_error(status, message, model=model, address=ADDRESS, timeout_s=7)
    assert type(error) is expected
    assert text in str(error)
    assert "in ensemble" not in str(error)


@pytest.mark.parametrize(("target", "direct"), [("127.0.0.1:1", True), ("localhost:1", True), ("example.org:1", False)])
def test_channel_options(target: str, direct: bool) -> None:
    options = dict(channel_args(protocol.Address("grpc", target)))
    assert options["grpc.max_send_message_length"] == options["grpc.max_receive_message_length"] == 2**31 - 1
    assert '"round_robin"' in options["grpc.service_config"]
    assert ("grpc.enable_http_proxy" in options) is direct
