"""The embedded server starts, tells why when it cannot, and leaves nothing behind however its owner ends."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from facegraph_client import FaceClient, ServerUnavailableError
from facegraph_server.embedded import EmbeddedServer
from facegraph_server.errors import ServerStartError
from facegraph_server.paths import MODEL_REPOSITORY
from facegraph_server.profiles import verify_profile
from facegraph_server.triton_install import find_triton

OWNER = """
import sys, time
from facegraph_server.embedded import EmbeddedServer
with EmbeddedServer(profile="cpu") as server:
    print(server.grpc_address, flush=True)
    {then}
"""


def own_processes() -> set[int]:
    """Process ids of Triton servers, stubs and supervisors on this machine."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:
            continue
        if b"tritonserver" in command or b"triton_python_backend_stub" in command or b"supervisor.py" in command:
            found.add(int(path.parent.name))
    return found


def regions() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("facegraph-*")}


def folders() -> set[str]:
    return {path.name for path in Path("/tmp").glob("facegraph-triton-*")}


def everything() -> tuple[set[int], set[str], set[str]]:
    return own_processes(), regions(), folders()


def wait_until(condition: Callable[[], bool], timeout_s: float = 25.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
    return condition()


@pytest.mark.parametrize(
    ("then", "end"),
    [
        pytest.param("pass", None, id="with-block-ends"),
        pytest.param("raise RuntimeError('owner fails')", None, id="exception"),
        pytest.param("time.sleep(60)", signal.SIGINT, id="ctrl-c"),
        pytest.param("time.sleep(60)", signal.SIGTERM, id="terminated"),
        pytest.param("time.sleep(60)", signal.SIGKILL, id="killed"),
    ],
)
def test_nothing_is_left_behind(then: str, end: signal.Signals | None) -> None:
    before = everything()
    script = OWNER.format(then=then)
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as owner:
        assert owner.stdout is not None
        address = owner.stdout.readline().decode().strip()
        assert address
        if end is not None:
            os.killpg(owner.pid, end)  # as a terminal does: the whole foreground group
        owner.wait(30)
    assert wait_until(lambda: everything() == before), (everything(), before)
    with pytest.raises(ServerUnavailableError), FaceClient(address) as client:
        client.landmarks(b"x")


def test_an_unknown_profile_is_refused() -> None:
    with pytest.raises(ServerStartError, match="no profile 'cpuu'; choose one of"):
        EmbeddedServer(profile="cpuu")


@pytest.mark.parametrize("profile", ["tensorrt", "nograph"])
def test_a_profile_that_this_triton_cannot_run_says_what_it_needs(profile: str) -> None:
    if find_triton().has_tensorrt:
        pytest.skip("this Triton has the TensorRT backend")
    with pytest.raises(ServerStartError, match=r"TensorRT backend.*--profile cpu"), EmbeddedServer(profile=profile):
        pass


def test_a_port_in_use_is_named() -> None:
    before = everything()
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(ServerStartError, match=f"port {port} "), EmbeddedServer(profile="cpu", http_port=port):
            pass
    assert everything() == before


def repository_copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MODEL_REPOSITORY, tmp_path / "models"))


def test_missing_models_say_how_to_build_them(tmp_path: Path) -> None:
    models = repository_copy(tmp_path)
    (models / "face_mesh" / "1" / "model.onnx").unlink()
    with (
        pytest.raises(ServerStartError, match=r"scripts/build_models\.py"),
        EmbeddedServer(profile="cpu", model_repository=models),
    ):
        pass


def test_a_model_that_does_not_load_shows_tritons_log(tmp_path: Path) -> None:
    before = everything()
    models = repository_copy(tmp_path)
    (models / "postprocess" / "1" / "model.py").write_text("raise ValueError('broken on purpose')\n")
    with (
        pytest.raises(ServerStartError, match="broken on purpose"),
        EmbeddedServer(profile="cpu", model_repository=models),
    ):
        pass
    assert wait_until(lambda: everything() == before)


def test_a_server_that_takes_too_long_is_stopped() -> None:
    before = everything()
    with pytest.raises(ServerStartError, match="not ready after"), EmbeddedServer(profile="cpu", start_timeout_s=0.2):
        pass
    assert wait_until(lambda: everything() == before)


def test_the_profile_is_verified_on_the_running_server(server: EmbeddedServer) -> None:
    verify_profile(server.http_address, MODEL_REPOSITORY, "cpu")
    with pytest.raises(ServerStartError, match="model-config-name=nograph"):
        verify_profile(server.http_address, MODEL_REPOSITORY, "nograph")


def test_serve_script_runs_until_interrupted(tmp_path: Path) -> None:
    before = everything()
    script = Path(__file__).parents[2] / "scripts" / "serve.py"
    with socket.socket() as a, socket.socket() as b, socket.socket() as c:
        for holder in (a, b, c):
            holder.bind(("127.0.0.1", 0))
        ports = [str(holder.getsockname()[1]) for holder in (a, b, c)]
    command = [sys.executable, str(script), "--profile", "cpu", "--http-port", ports[0], "--grpc-port", ports[1]]
    with subprocess.Popen(
        [*command, "--metrics-port", ports[2]], stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as serving:
        assert serving.stderr is not None
        assert "ready: profile cpu" in serving.stderr.readline()
        with FaceClient(f"127.0.0.1:{ports[1]}") as client:
            assert client.is_ready()
        os.killpg(serving.pid, signal.SIGINT)
        assert serving.wait(30) == 0
    assert wait_until(lambda: everything() == before)


def test_a_server_whose_step_was_killed_stops_and_says_so() -> None:
    """Triton would stay ready and fail every request that the step should have answered."""
    before = everything()
    with EmbeddedServer(profile="cpu") as server:
        stubs = own_processes() - before[0]
        victim = next(pid for pid in stubs if b"/crop_faces/" in Path(f"/proc/{pid}/cmdline").read_bytes())
        os.kill(victim, signal.SIGKILL)
        ended = server.wait(20)
        assert ended == 1
        assert "a process of a Python model died, so the server was stopped" in server.log()
    assert wait_until(lambda: everything() == before)
