"""The server under measurement: one that the sweep starts for a profile, or one that runs already."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from facegraph_server.embedded import EmbeddedServer
from facegraph_server.errors import ServerStartError
from facegraph_server.paths import MODEL_REPOSITORY
from facegraph_server.profiles import PROFILES, verify_profile
from facegraph_server.triton_install import find_triton
from facegraph_server.verification.soak import server_memory

from perf_sweep.errors import SweepError
from perf_sweep.measurement import Addresses

_TIMEOUT_S = 10.0
_IDLE_TIMEOUT_S = 120.0
_IDLE_POLL_S = 0.1
_MEMORY_INTERVAL_S = 1.0  # a sample takes 13 ms of a core
_SHARED_MEMORY_OPTION = "--allow-client-shm"
_PENDING = "nv_inference_pending_request_count"


@dataclass(frozen=True)
class ServedProfile:
    """A server that answers.

    Attributes:
        profile: its name.
        addresses: where.
        own: whether the sweep started it, so that its memory can be seen.

    """

    profile: str
    addresses: Addresses
    own: bool

    def models(self) -> set[str]:
        """Return the models that are ready."""
        request = json.loads(_post(f"http://{self.addresses.http}/v2/repository/index"))
        return {model["name"] for model in request if model.get("state") == "READY"}

    def steps(self, model: str) -> list[str]:
        """Return the models that an ensemble calls, in order; none for another model."""
        config = _get_json(f"http://{self.addresses.http}/v2/models/{model}/config")
        return [step["model_name"] for step in config.get("ensemble_scheduling", {}).get("step", [])]

    def triton_version(self) -> str:
        """Return the server's version."""
        return str(_get_json(f"http://{self.addresses.http}/v2")["version"])

    def wait_until_idle(self) -> None:
        """Wait for the requests that an overload has left in the queues: they would disturb the next case.

        Raises:
            SweepError: they do not end.

        """
        deadline = time.monotonic() + _IDLE_TIMEOUT_S
        while pending := pending_requests(_get(f"http://{self.addresses.metrics}/metrics").decode()):
            if time.monotonic() > deadline:
                raise SweepError(
                    f"{pending:.0f} requests still wait {_IDLE_TIMEOUT_S:.0f} s after the last; use lower rates"
                )
            time.sleep(_IDLE_POLL_S)


@contextmanager
def start_profile(profile: str, *, shared_memory: bool) -> Iterator[ServedProfile]:
    """Start a server of a profile and stop it at the end.

    Args:
        profile: one of :data:`facegraph_server.profiles.PROFILES`.
        shared_memory: whether clients will use it: newer Tritons have to be told.

    Raises:
        ServerStartError: it does not start.

    """
    arguments = (f"{_SHARED_MEMORY_OPTION}=true",) if shared_memory and _knows_shared_memory_option() else ()
    with EmbeddedServer(profile=profile, arguments=arguments) as server:
        yield ServedProfile(
            profile, Addresses(server.http_address, server.grpc_address, server.metrics_address), own=True
        )


def find_running(addresses: Addresses) -> ServedProfile:
    """Return a server that runs already.

    Raises:
        SweepError: nobody answers, or it serves no profile of this repository.

    """
    try:
        _get(f"http://{addresses.http}/v2/health/ready")
        _get(f"http://{addresses.metrics}/metrics")
    except (URLError, OSError) as error:
        raise SweepError(
            f"no Triton answers on HTTP {addresses.http} and metrics {addresses.metrics}: {error}"
        ) from error
    for profile in PROFILES:
        try:
            verify_profile(addresses.http, MODEL_REPOSITORY, profile)
        except (ServerStartError, URLError, OSError):
            continue
        return ServedProfile(profile, addresses, own=False)
    raise SweepError(
        f"the Triton at {addresses.http} serves none of the profiles {', '.join(PROFILES)} of this repository"
    )


def pending_requests(metrics: str) -> float:
    """Return how many requests wait in queues, of all models, in the text of Triton's metrics."""
    lines = [line for line in metrics.splitlines() if line.startswith(f"{_PENDING}{{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


class MemoryPeak:
    """Watch the memory of the servers that this process started while the ``with`` block lasts.

    Attributes:
        peak_mib: the largest sum so far; None where there is no server.

    """

    def __init__(self, *, watch: bool) -> None:
        self.peak_mib: float | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True) if watch else None

    def __enter__(self) -> MemoryPeak:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end.set()
        if self._thread is not None:
            self._thread.join()

    def _sample(self) -> None:
        while True:
            memory = server_memory()
            if memory is not None:
                self.peak_mib = max(self.peak_mib or 0.0, sum(memory))
            if self._end.wait(_MEMORY_INTERVAL_S):
                return


def _knows_shared_memory_option() -> bool:
    installation = find_triton()
    done = subprocess.run(
        [str(installation.binary), "--help"],
        env=installation.environment(),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    return _SHARED_MEMORY_OPTION in done.stdout + done.stderr


def _get(url: str) -> bytes:
    with urlopen(url, timeout=_TIMEOUT_S) as answer:
        return bytes(answer.read())


def _get_json(url: str) -> dict[str, Any]:
    return dict(json.loads(_get(url)))


def _post(url: str) -> bytes:
    with urlopen(url, data=b"", timeout=_TIMEOUT_S) as answer:
        return bytes(answer.read())
