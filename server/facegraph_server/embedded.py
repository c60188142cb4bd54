"""A private Triton on this machine: loopback only, own ports, own backend folder, gone when its owner is."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO
from urllib.error import URLError
from urllib.request import urlopen

from facegraph_server import supervisor
from facegraph_server.engine_store import require_engine
from facegraph_server.errors import ServerStartError
from facegraph_server.paths import MODEL_REPOSITORY, NETWORKS, onnx_path
from facegraph_server.profiles import check_profile, default_profile, loaded_models, verify_profile
from facegraph_server.triton_install import find_triton

START_TIMEOUT_S = 120.0
"""How long loading may take; TensorRT profiles build nothing here, they only capture graphs."""

_POLL_S = 0.1
_LOG_LINES = 20
_LOG_COLUMNS = 300
_LOG_ERROR = re.compile(  # glog's error level with month and day, a refused option, or the supervisor's own word
    rf"E\d{{4}} (?!.*CudaDriverHelper)|\S+tritonserver: |{supervisor.NAME}: "  # without a GPU Triton logs the helper's
)
_SHM_BYTES = 64 << 20
_SHM_GROWTH_BYTES = 16 << 20


class EmbeddedServer:
    """Start Triton, wait until it is ready, and always stop it.

    The server lives in processes of its own session, so Ctrl-C in a terminal reaches only its owner; it ends with
    the ``with`` block, or with the owner's death in whatever way.

    Args:
        profile: one of :data:`facegraph_server.profiles.PROFILES`; None chooses by what the machine has.
        model_repository: the folder of models.
        address: the interface to listen on.
        http_port: None takes a free one; likewise the others.
        grpc_port: see ``http_port``.
        metrics_port: see ``http_port``.
        start_timeout_s: how long the server may take to become ready.
        log_file: where Triton's log goes; None keeps it in a temporary file for as long as the server lives.
        arguments: more arguments for ``tritonserver``.

    Raises:
        ServerStartError: on entering, when the server does not become ready; the message ends with its log.
        ModelBuildError: on entering, when the profile's engines are missing, stale, or of another GPU.

    """

    def __init__(
        self,
        *,
        profile: str | None = None,
        model_repository: Path = MODEL_REPOSITORY,
        address: str = "127.0.0.1",
        http_port: int | None = None,
        grpc_port: int | None = None,
        metrics_port: int | None = None,
        start_timeout_s: float = START_TIMEOUT_S,
        log_file: Path | None = None,
        arguments: tuple[str, ...] = (),
    ) -> None:
        self._installation = find_triton()
        self.profile = check_profile(profile or default_profile(self._installation))
        self._model_repository = model_repository
        self._address = address
        self._ports = (http_port, grpc_port, metrics_port)
        self._start_timeout_s = start_timeout_s
        self._log_file = log_file
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None
        self.http_address = self.grpc_address = self.metrics_address = ""
        self.log_path = Path()
        self._log: BinaryIO | None = None
        self._log_text = ""

    def __enter__(self) -> EmbeddedServer:
        """Start the server and return when it is ready."""
        self._check_models()
        self._choose_addresses()
        folder = Path(tempfile.mkdtemp(prefix="facegraph-triton-"))
        try:
            self._start(folder)
            self._wait_until_ready()
            verify_profile(self.http_address, self._model_repository, self.profile)
        except BaseException:
            self.stop()
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return self

    def _start(self, folder: Path) -> None:
        """Start the supervisor, and so the server, with what it needs in ``folder``."""
        self.log_path = self._log_file or folder / "triton.log"
        shm_prefix = f"facegraph-{uuid.uuid4().hex[:12]}-"
        command = [sys.executable, "-E", "-s", supervisor.__file__, shm_prefix, str(folder), "--"]
        command += self._command(folder, shm_prefix)
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._installation.environment(),
                start_new_session=True,
            )
        self._log = self.log_path.open("rb")  # stays readable when the supervisor has removed the folder

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the server."""
        self.stop()

    def stop(self) -> None:
        """Stop the server and remove what it left; harmless when it is stopped already."""
        if self._process is None:
            return
        process, self._process = self._process, None
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(supervisor.GRACE_S + 5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        finally:  # an impatient second Ctrl-C ends the waiting only: the supervisor finishes its work alone
            if self._log is not None:
                self.log()  # keeps the text
                self._log.close()
                self._log = None

    def wait(self, timeout_s: float | None = None) -> int:
        """Block until the server ends by itself; return its exit status.

        Raises:
            TimeoutExpired: of ``subprocess``: it has not ended after ``timeout_s``.

        """
        return self._running().wait(timeout_s)

    def log(self, lines: int = _LOG_LINES) -> str:
        """Return the errors in Triton's log, or its last lines; also after the server has ended."""
        if self._log is not None:
            self._log.seek(0)
            self._log_text = self._log.read().decode(errors="replace")
        text = self._log_text.splitlines()
        errors = [line[:_LOG_COLUMNS] for line in text if _LOG_ERROR.match(line)]
        return "\n".join(errors[:lines] or text[-lines:])

    def _check_models(self) -> None:
        """Refuse to start without what the profile's networks run on: Triton would say it less clearly, and later."""
        if self.profile in ("tensorrt", "nograph"):
            if not self._installation.has_tensorrt:
                raise ServerStartError(
                    f"the profile {self.profile} needs Triton's TensorRT backend, which this Triton does not have: use "
                    "NVIDIA's Triton container, or --profile cpu"
                )
            for name in NETWORKS:
                require_engine(name, model_repository=self._model_repository)
        for name in NETWORKS:
            if not (path := onnx_path(name, self._model_repository)).is_file():
                raise ServerStartError(f"{path} is missing; build the models first: python scripts/build_models.py")

    def _choose_addresses(self) -> None:
        with _FreePorts(self._address) as free:
            ports = [port or free.take() for port in self._ports]
        for port in filter(None, self._ports):
            _check_port_is_free(self._address, port)
        reachable = "127.0.0.1" if self._address == "0.0.0.0" else self._address
        self.http_address, self.grpc_address, self.metrics_address = (f"{reachable}:{port}" for port in ports)

    def _command(self, folder: Path, shm_prefix: str) -> list[str]:
        http, grpc, metrics = (address.rpartition(":")[2] for address in self._addresses)
        options: dict[str, Any] = {
            "model-repository": self._model_repository,
            "backend-directory": self._installation.prepare_backends(folder),
            "http-address": self._address,
            "http-port": http,
            "grpc-address": self._address,
            "grpc-port": grpc,
            "metrics-address": self._address,
            "metrics-port": metrics,
            "exit-timeout-secs": int(supervisor.GRACE_S) - 2,
        }
        if self.profile != "tensorrt":
            options["model-config-name"] = self.profile
        if self._installation.caches is not None:
            options["cache-directory"] = self._installation.caches
        command = [str(self._installation.binary), *(f"--{name}={value}" for name, value in options.items())]
        python_backend = {
            "shm-region-prefix-name": shm_prefix,
            "shm-default-byte-size": _SHM_BYTES,
            "shm-growth-byte-size": _SHM_GROWTH_BYTES,
        }
        command += [f"--backend-config=python,{name}={value}" for name, value in python_backend.items()]
        if self.profile == "fused":
            models = loaded_models(self._model_repository, self.profile)
            command += ["--model-control-mode=explicit", *(f"--load-model={name}" for name in models)]
        return [*command, "--disable-auto-complete-config", *self._arguments]

    @property
    def _addresses(self) -> tuple[str, str, str]:
        return self.http_address, self.grpc_address, self.metrics_address

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ServerStartError("the server is not running; use it inside a with block")
        return self._process

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self._start_timeout_s
        while time.monotonic() < deadline:
            if self._running().poll() is not None:
                raise ServerStartError(f"Triton ended while loading the models. The end of its log:\n{self.log()}")
            try:
                with urlopen(f"http://{self.http_address}/v2/health/ready", timeout=1):
                    return
            except (URLError, OSError):
                time.sleep(_POLL_S)
        raise ServerStartError(
            f"Triton was not ready after {self._start_timeout_s:.0f} s. The end of its log:\n{self.log()}"
        )


class _FreePorts:
    """Find free ports that differ from each other: all stay bound until the block ends."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> _FreePorts:
        return self

    def take(self) -> int:
        """Return one more free port."""
        holder = socket.socket()
        holder.bind((self._address, 0))
        self._sockets.append(holder)
        return int(holder.getsockname()[1])

    def __exit__(self, *_: object) -> None:
        for holder in self._sockets:
            holder.close()


def _check_port_is_free(address: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            raise ServerStartError(
                f"port {port} on {address} cannot be used ({error.strerror}); use the server that runs there, or "
                "choose other ports (of scripts/serve.py: --http-port, --grpc-port, --metrics-port)"
            ) from error
