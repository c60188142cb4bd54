"""Level one of the verification: each network alone, with CUDA graphs against without."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from facegraph_client import ServerError
from numpy.typing import NDArray

from facegraph_server.checks import Check, at_most, not_judged
from facegraph_server.contract import DETECTOR_SIZE_PX, MAX_BATCH, MESH_SIZE_PX
from facegraph_server.paths import NETWORKS, onnx_path

LEVEL = "networks"

GRAPH_TOLERANCE = 1e-5
"""Largest difference between graph and eager, as a part of the output's range, in FP32."""

RUNTIME_TOLERANCE = 1e-4
"""Likewise between two libraries that add up in different orders: torch against OpenVINO, on a CPU."""

Arrays = dict[str, NDArray[Any]]
Answers = dict[tuple[str, int], Arrays]
"""Outputs by name, for each network and batch size."""

_SIZE_PX = {"face_detector": DETECTOR_SIZE_PX, "face_mesh": MESH_SIZE_PX}
_PROBABILITIES = ("SCORES", "PRESENCE")
_IN_PROCESS_BATCHES = (1, 3, MAX_BATCH)
_TIMEOUT_S = 30.0


def pixels(network: str, batch: int) -> NDArray[np.uint8]:
    """Return a batch of noise, UINT8 [batch,S,S,3]: another one for each network and batch size."""
    side = _SIZE_PX[network]
    rng = np.random.default_rng([NETWORKS.index(network), batch])
    return rng.integers(0, 256, (batch, side, side, 3), np.uint8)


def largest_difference(found: Mapping[str, NDArray[Any]], expected: Mapping[str, NDArray[Any]]) -> float:
    """Return the largest difference between two sets of outputs, as a part of the range, 1 for probabilities."""
    if found.keys() != expected.keys():
        return float("inf")
    worst = 0.0
    for name, value in expected.items():
        if found[name].shape != value.shape or not np.isfinite(found[name]).all():
            return float("inf")
        extent = 1.0 if name in _PROBABILITIES else float(np.ptp(value)) or 1.0
        worst = max(worst, float(np.abs(found[name].astype(np.float64) - value).max()) / extent)
    return worst


def check_in_process(device: str) -> list[Check]:
    """Compare the torch networks with a CUDA graph and without, or on a CPU with the ONNX files in OpenVINO."""
    from facegraph_server.torch_networks import TorchNetwork  # noqa: PLC0415  (torch is optional: for ``fused`` only)

    checks = []
    for name in NETWORKS:
        network = TorchNetwork(onnx_path(name), channels_last=True).eval().to(device)
        for batch in _IN_PROCESS_BATCHES:
            checks += _check_batch(name, network, batch, device)
    return checks


def _check_batch(name: str, network: Any, batch: int, device: str) -> list[Check]:
    import torch  # noqa: PLC0415

    from facegraph_server.frame_graph import FrameGraph  # noqa: PLC0415

    data = pixels(name, batch)
    graph, eager = (
        FrameGraph(
            lambda inputs: network(inputs["PIXELS"]),
            {"PIXELS": (data.shape, torch.uint8)},
            device=device,
            graphs=graphs,
        )
        for graphs in (True, False)
    )
    with graph, eager:
        first, _, again = (graph.run({"PIXELS": batch}) for batch in (data, 255 - data, data))
        if graph.captured:
            how, limit = "graph against eager", GRAPH_TOLERANCE
            expected = eager.run({"PIXELS": data})
        else:
            how, limit = "torch against OpenVINO (no GPU, no graph)", RUNTIME_TOLERANCE
            expected = _run_openvino(name, data)
    title = f"{name}, batch {batch}"
    return [
        at_most(LEVEL, f"{title}: {how}", largest_difference(first, expected), limit, "of range"),
        at_most(LEVEL, f"{title}: A, B, A gives A again", largest_difference(again, first), 0.0, "of range"),
    ]


def ask_served_networks(grpc_address: str) -> tuple[Answers, float]:
    """Send every batch size 1..16, up and then down, to the networks that a server has as models of their own.

    Returns:
        The answers on the way up, and the largest difference of those on the way down from them.

    Raises:
        ServerError: the server could not answer.

    """
    # Both take most of a second to import.
    from tritonclient.grpc import InferenceServerClient  # noqa: PLC0415
    from tritonclient.utils import InferenceServerException  # noqa: PLC0415

    with InferenceServerClient(grpc_address) as client:
        try:
            return _ask(client)
        except InferenceServerException as error:
            raise ServerError(f"the server at {grpc_address} did not answer for its networks: {error}") from error


def _ask(client: Any) -> tuple[Answers, float]:
    from tritonclient.grpc import InferInput  # noqa: PLC0415

    answers: Answers = {}
    drift = 0.0
    for name in NETWORKS:
        if not client.is_model_ready(name, client_timeout=_TIMEOUT_S):
            continue
        config = client.get_model_config(name, client_timeout=_TIMEOUT_S).config
        for batch in (*range(1, MAX_BATCH + 1), *range(MAX_BATCH, 0, -1)):
            data = pixels(name, batch)
            tensor = InferInput(config.input[0].name, list(data.shape), "UINT8").set_data_from_numpy(data)
            result = client.infer(name, [tensor], client_timeout=_TIMEOUT_S)
            found = {output.name: result.as_numpy(output.name) for output in config.output}
            drift = max(drift, largest_difference(found, answers.setdefault((name, batch), found)))
    return answers, drift


def compare_served(found: tuple[Answers, float], expected: tuple[Answers, float]) -> list[Check]:
    """Compare what two servers' networks answered, see :func:`ask_served_networks`."""
    common = sorted(found[0].keys() & expected[0].keys())
    if not common:
        return [not_judged(LEVEL, "served networks", "one of the profiles has no networks as models of their own")]
    checks = []
    for name in NETWORKS:
        worst = max(largest_difference(found[0][key], expected[0][key]) for key in common if key[0] == name)
        title = f"{name}, served: batches 1 to {MAX_BATCH}, first profile against second"
        checks.append(at_most(LEVEL, title, worst, GRAPH_TOLERANCE, "of range"))
    for which, (_, drift) in (("first", found), ("second", expected)):
        title = f"networks served by the {which} profile: batches going up and coming down give the same"
        checks.append(at_most(LEVEL, title, drift, GRAPH_TOLERANCE, "of range"))
    return checks


def _run_openvino(name: str, data: NDArray[np.uint8]) -> Arrays:
    from facegraph_server.cpu_runtime import CpuNetwork  # noqa: PLC0415

    return dict(CpuNetwork(onnx_path(name)).run(data))
