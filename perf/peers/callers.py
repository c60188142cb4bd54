"""How each server is asked: a connection of its own for every thread, kept open."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import tritonclient.grpc as triton
from facegraph_client import FaceClient, ServerError
from numpy.typing import NDArray

from peers.timed_loop import Ask

TIMEOUT_S = 30.0


@contextmanager
def ask_facegraph(url: str) -> Iterator[Ask]:
    """Ask a FaceClient, as a user does."""
    with FaceClient(url, timeout_s=TIMEOUT_S) as client:

        def ask(photo: bytes) -> NDArray[np.float32]:
            return _stack([face.landmarks_px for face in client.landmarks(photo)])

        yield ask


@contextmanager
def ask_fastapi(port: int) -> Iterator[Ask]:
    """Post the bytes, read the bytes."""
    with _connected(port) as connection:

        def ask(photo: bytes) -> NDArray[np.float32]:
            body = _answer(connection, "POST", "/landmarks", photo, "application/octet-stream")
            return np.frombuffer(body, np.float32).reshape(-1, 468, 3)

        yield ask


@contextmanager
def ask_gradio(port: int) -> Iterator[Ask]:
    """Join the queue, then wait for its event: Gradio's documented API for other languages."""
    with _connected(port) as connection:

        def ask(photo: bytes) -> NDArray[np.float32]:
            path = "/gradio_api/call/landmarks"
            joined = json.loads(_answer(connection, "POST", path, _gradio_body(photo), "application/json"))
            events = _answer(connection, "GET", f"{path}/{joined['event_id']}", None, "").decode()
            kind, _, data = events.strip().split("\n\n")[-1].partition("\ndata: ")
            if kind != "event: complete":
                raise ServerError(f"Gradio answered: {events[-500:]}")
            return _from_lists(json.loads(data)[0])

        yield ask


@contextmanager
def ask_gradio_directly(port: int) -> Iterator[Ask]:
    """Go past the queue, which a server allows only if it was told to: one request instead of two."""
    with _connected(port) as connection:

        def ask(photo: bytes) -> NDArray[np.float32]:
            body = _answer(connection, "POST", "/gradio_api/run/landmarks", _gradio_body(photo), "application/json")
            return _from_lists(json.loads(body)["data"][0])

        yield ask


@contextmanager
def ask_pytriton(grpc_port: int) -> Iterator[Ask]:
    """Ask over gRPC."""
    client = triton.InferenceServerClient(f"127.0.0.1:{grpc_port}", channel_args=[("grpc.enable_http_proxy", 0)])

    def ask(photo: bytes) -> NDArray[np.float32]:
        image = triton.InferInput("IMAGE", [1], "BYTES")
        image.set_data_from_numpy(np.array([photo], np.object_))
        answer = client.infer("face_mesh", [image], client_timeout=TIMEOUT_S).as_numpy("LANDMARKS")
        return np.asarray(answer, np.float32)

    try:
        yield ask
    finally:
        client.close()


@contextmanager
def _connected(port: int) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        yield connection
    finally:
        connection.close()


def _answer(connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None, kind: str) -> bytes:
    connection.request(method, path, body, {"Content-Type": kind} if body is not None else {})
    response = connection.getresponse()
    content = response.read()
    if response.status != 200:
        raise ServerError(f"{path} answered {response.status}: {content[:500]!r}")
    return content


def _gradio_body(photo: bytes) -> bytes:
    # A data URL saves the upload, which is one more request.
    url = "data:image/jpeg;base64," + base64.b64encode(photo).decode("ascii")
    return json.dumps({"data": [{"url": url, "meta": {"_type": "gradio.FileData"}}]}).encode()


def _from_lists(faces: list[list[list[float]]]) -> NDArray[np.float32]:
    return np.array(faces, np.float32).reshape(-1, 468, 3)


def _stack(faces: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    return np.stack(faces) if faces else np.zeros((0, 468, 3), np.float32)
