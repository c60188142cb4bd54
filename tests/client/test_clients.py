"""Both clients over both protocols against addresses where no Triton is; tests/integration has a real one."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator

import pytest
from facegraph_client import (
    AsyncFaceClient,
    FaceClient,
    InputError,
    ServerTimeoutError,
    ServerUnavailableError,
)


def _landmarks(url: str, timeout_s: float, *, asynchronous: bool) -> None:
    if not asynchronous:
        with FaceClient(url, timeout_s=timeout_s) as client:
            client.landmarks(b"photo")
        return

    async def call() -> None:
        async with AsyncFaceClient(url, timeout_s=timeout_s) as client:
            await client.landmarks(b"photo")

    asyncio.run(call())


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that accepts connections and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture
def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


asynchronous = pytest.mark.parametrize("asynchronous", [False, True], ids=["blocking", "asyncio"])
scheme = pytest.mark.parametrize("scheme", ["", "http://"], ids=["grpc", "http"])


@asynchronous
@scheme
def test_nobody_there(scheme: str, asynchronous: bool, free_port: int) -> None:
    with pytest.raises(ServerUnavailableError, match=f"no server is ready at {scheme}127.0.0.1:{free_port}"):
        _landmarks(f"{scheme}127.0.0.1:{free_port}", 5, asynchronous=asynchronous)


@asynchronous
@scheme
def test_no_answer_in_time(scheme: str, asynchronous: bool, silent_port: int) -> None:
    start = time.monotonic()
    with pytest.raises(ServerTimeoutError, match=r"within 0\.5 s"):
        _landmarks(f"{scheme}127.0.0.1:{silent_port}", 0.5, asynchronous=asynchronous)
    assert 0.4 < time.monotonic() - start < 3


@scheme
def test_waiting_for_a_server_ends(scheme: str, free_port: int) -> None:
    url = f"{scheme}127.0.0.1:{free_port}"
    with FaceClient(url) as client, pytest.raises(ServerTimeoutError, match=r"not ready within 0\.3 s"):
        client.wait_until_ready(0.3)


def test_waiting_for_a_server_ends_in_asyncio(free_port: int) -> None:
    async def wait() -> None:
        async with AsyncFaceClient(f"127.0.0.1:{free_port}") as client:
            await client.wait_until_ready(0.3)

    with pytest.raises(ServerTimeoutError, match=r"not ready within 0\.3 s"):
        asyncio.run(wait())


def test_a_closed_client_says_so(free_port: int) -> None:
    client = FaceClient(f"127.0.0.1:{free_port}")
    client.close()
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.landmarks(b"photo")


@pytest.mark.parametrize("kind", [FaceClient, AsyncFaceClient])
def test_repr_and_arguments(kind: type[FaceClient] | type[AsyncFaceClient]) -> None:
    client = kind("http://127.0.0.1:8000", timeout_s=5)
    assert repr(client) == f"{kind.__name__}('http://127.0.0.1:8000', timeout_s=5)"
    with pytest.raises(InputError):
        kind("nonsense")
    with pytest.raises(InputError):
        kind("127.0.0.1:8001", timeout_s=0)
