"""The lines are in the form that Triton's TensorRT backend writes, see its src/instance_state.cc."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from facegraph_server.paths import MODEL_REPOSITORY, NETWORKS
from facegraph_server.profiles import config_file, read_config
from facegraph_server.verification.graph_use import GraphLog, expected_captures, read_graph_log, set_verbose_level

PREFIX = "I1201 06:54:23.000000 1 instance_state.cc:3991] "
BATCHES = (1, 2, 4, 8, 16)


def captured(instance: str, batch: int) -> str:
    return f'{PREFIX}"captured CUDA graph for {instance}, batch size {batch}"'


def launched(instance: str) -> str:
    return f'{PREFIX}"Context with profile default [0] is launching CUDA graph for {instance}"'


def enqueued(instance: str) -> str:
    return f'{PREFIX}"Context with profile default [0] is being executed for {instance}"'


def test_counts_by_model_and_instance() -> None:
    lines = [captured("face_mesh_0_0", batch) for batch in BATCHES * 3]
    lines += [captured("face_detector_0_0", 4), captured("face_detector_0_1", 4), captured("stranger_0_0", 1)]
    lines += [launched("face_mesh_0_0")] * 7 + [enqueued("face_mesh_0_0")] * 2 + [launched("face_detector_0_1")]
    lines += [enqueued("stranger_0_0"), "I1201 06:54:23 1 http_server.cc:1] started"]
    logs, failures = read_graph_log("\n".join(lines), NETWORKS)
    assert failures == []
    assert logs["face_mesh"] == GraphLog({("face_mesh_0_0", batch): 3 for batch in BATCHES}, launched=7, enqueued=2)
    assert logs["face_detector"].batches() == {"face_detector_0_0": [4], "face_detector_0_1": [4]}
    assert (logs["face_detector"].launched, logs["face_detector"].enqueued) == (1, 0)


def test_the_longest_model_name_wins() -> None:
    logs, _ = read_graph_log(launched("face_mesh_large_0_0"), ["face_mesh", "face_mesh_large"])
    assert (logs["face_mesh"].launched, logs["face_mesh_large"].launched) == (0, 1)


@pytest.mark.parametrize(
    "text",
    [
        "unable to record CUDA graph for face_mesh_0_0",
        "unable to finish CUDA graph for face_mesh_0_0: operation not permitted",
        "Failed to set cuda graph shape for face_mesh_0_0: unknown input",
        "Detected shape tensor, CUDA graph is not captured for face_mesh_0_0",
    ],
    ids=["record", "finish", "shape", "shape-tensor"],
)
def test_failures_are_found(text: str) -> None:
    _, failures = read_graph_log(
        f"W1201 06:54:23.1 1 instance_state.cc:3900] {text}\n{launched('face_mesh_0')}", NETWORKS
    )
    assert [line.partition("] ")[2] for line in failures] == [text]


@pytest.mark.parametrize(("profile", "sizes"), [("tensorrt", list(BATCHES)), ("nograph", [])])
@pytest.mark.parametrize("name", NETWORKS)
def test_expected_captures_are_those_of_the_configuration(name: str, profile: str, sizes: list[int]) -> None:
    config = read_config(config_file(MODEL_REPOSITORY / name, profile))
    assert expected_captures(config) == (1, sizes)


def test_the_verbose_level_is_posted() -> None:
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        set_verbose_level(f"127.0.0.1:{server.server_port}", 1)
        thread.join()
    assert asked == [("/v2/logging", {"log_verbose_level": 1})]
