"""Which server the command talks to: the one named, one that runs on this machine, or a private one for the call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from facegraph_client._client import DEFAULT_ADDRESS, FaceClient
from facegraph_client._errors import ServerUnavailableError, SetupError


@contextmanager
def connect(
    address: str | None, *, timeout_s: float, waiting: Callable[[str], AbstractContextManager[None]]
) -> Iterator[FaceClient]:
    """Yield a client of a server that is ready.

    Args:
        address: the server named by the user. None takes the one at :data:`DEFAULT_ADDRESS` if it is ready, else starts
            an embedded one and stops it at the end.
        timeout_s: for each request.
        waiting: entered with a line to show while an embedded server starts, which takes seconds.

    Raises:
        InputError: the address makes no sense.
        ServerUnavailableError: the server named does not answer or is not ready.
        SetupError: an embedded server is needed and cannot be started.

    """
    with FaceClient(address or DEFAULT_ADDRESS, timeout_s=timeout_s) as client:
        if client.is_ready():
            yield client
            return
        if address is not None:
            raise ServerUnavailableError(
                f"no server is ready at {address}: one that is starting says ready when it is; gRPC has port 8001, and"
                " HTTP is named http://HOST:8000; start one with scripts/serve.py, or leave the address out for a"
                " private one"
            )
    with _embedded_address(waiting) as embedded, FaceClient(embedded, timeout_s=timeout_s) as client:
        yield client


@contextmanager
def _embedded_address(waiting: Callable[[str], AbstractContextManager[None]]) -> Iterator[str]:
    try:
        from facegraph_server.embedded import EmbeddedServer  # noqa: PLC0415  (not part of the base install)
    except ImportError as error:
        raise SetupError(
            f"no server runs at {DEFAULT_ADDRESS}, and an embedded one cannot be started ({error}):"
            " pip install 'facegraph[server]', or start a server with scripts/serve.py and name it with --server"
        ) from error
    with ExitStack() as stack:
        with waiting(f"No server at {DEFAULT_ADDRESS}: starting a private one for this call."):
            server = stack.enter_context(EmbeddedServer())
        yield server.grpc_address
