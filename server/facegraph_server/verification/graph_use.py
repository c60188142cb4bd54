"""Proof that CUDA graphs are used: Triton's log for the engines, its metrics for the fused profile.

The lines are those of Triton's TensorRT backend, src/instance_state.cc. Captures and runs are logged from verbose
level 1 on, failures always. No metric counts either; the fused models count for themselves.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from facegraph_server.checks import Check, at_least, equal, not_judged
from facegraph_server.paths import MODEL_REPOSITORY, NETWORKS
from facegraph_server.profiles import config_file, read_config

LEVEL = "log"
ENGINE_PROFILES = ("tensorrt", "nograph")

_TIMEOUT_S = 10.0
_CAPTURED = re.compile(r"captured CUDA graph for (\S+), batch size (\d+)")
_LAUNCHED = re.compile(r"Context with profile .*? is launching CUDA graph for (\S+)")
_ENQUEUED = re.compile(r"Context with profile .*? is being executed for (\S+)")
_FAILURES = (
    "unable to record CUDA graph for",
    "unable to finish CUDA graph for",
    "Failed to set cuda graph shape for",
    "Detected shape tensor, CUDA graph is not captured for",
)


@dataclass(frozen=True)
class GraphLog:
    """CUDA graphs of one model as its log tells them.

    Attributes:
        captured: number of capture lines by (instance, batch size).
        launched: runs that replayed a graph.
        enqueued: runs without one.

    """

    captured: Mapping[tuple[str, int], int] = field(default_factory=dict)
    launched: int = 0
    enqueued: int = 0

    def batches(self) -> dict[str, list[int]]:
        """Return the captured batch sizes of each instance, ascending."""
        found: dict[str, set[int]] = {}
        for instance, batch in self.captured:
            found.setdefault(instance, set()).add(batch)
        return {instance: sorted(sizes) for instance, sizes in sorted(found.items())}


def read_graph_log(text: str, models: Iterable[str]) -> tuple[dict[str, GraphLog], list[str]]:
    """Count captures, launches and runs without a graph.

    Args:
        text: Triton's log.
        models: the models to look for. An instance belongs to the model whose name it starts with, the longest one.

    Returns:
        The counts of each model, and the lines that tell of a failed capture.

    """
    names = sorted(models, key=len, reverse=True)
    captured: dict[str, Counter[tuple[str, int]]] = {name: Counter() for name in names}
    launched: Counter[str] = Counter()
    enqueued: Counter[str] = Counter()
    failures = []
    for line in text.splitlines():
        if any(failure in line for failure in _FAILURES):
            failures.append(line.strip())
        elif match := _CAPTURED.search(line):
            if model := _model_of(match[1], names):
                captured[model][match[1], int(match[2])] += 1
        elif match := _LAUNCHED.search(line):
            launched[_model_of(match[1], names)] += 1
        elif match := _ENQUEUED.search(line):
            enqueued[_model_of(match[1], names)] += 1
    logs = {name: GraphLog(dict(captured[name]), launched[name], enqueued[name]) for name in names}
    return logs, failures


def expected_captures(config: Any) -> tuple[int, list[int]]:
    """Return how many instances a parsed configuration has on one GPU, and the batch sizes that each must capture.

    The graphs are those of an explicit ``graph_spec``; with ``graphs: false`` there are none.
    """
    cuda = config.optimization.cuda
    sizes = sorted({spec.batch_size for spec in cuda.graph_spec}) if cuda.graphs else []
    return sum(max(group.count, 1) for group in config.instance_group) or 1, sizes


def check_log(log: str, profile: str, model_repository: Path = MODEL_REPOSITORY) -> list[Check]:
    """Judge Triton's log: every graph of the configuration captured, every run of an engine as the profile says.

    Args:
        log: the text, written at verbose level 1.
        profile: which configuration to compare with; only those with engines log anything.
        model_repository: the folder of models.

    """
    if profile not in ENGINE_PROFILES:
        return []
    logs, failures = read_graph_log(log, NETWORKS)
    checks = [equal(LEVEL, f"{profile}: lines that tell of a failed capture", len(failures), 0)]
    for name, found in logs.items():
        instances, sizes = expected_captures(read_config(config_file(model_repository / name, profile)))
        expected = [sizes] * instances if sizes else []
        title = f"{profile}, {name}"
        checks.append(equal(LEVEL, f"{title}: batch sizes captured", list(found.batches().values()), expected))
        used, unused = (found.launched, found.enqueued) if sizes else (found.enqueued, found.launched)
        with_, without = (
            ("that replayed a graph", "without a graph") if sizes else ("without a graph", "that replayed a graph")
        )
        checks.append(at_least(LEVEL, f"{title}: runs {with_}", used, 1))
        checks.append(equal(LEVEL, f"{title}: runs {without}", unused, 0))
    return checks


def check_counters(metrics: str, *, has_gpu: bool, graphs: bool = True) -> list[Check]:
    """Judge the counters of the fused models: with a GPU every run replayed a graph, or none where they are off.

    Args:
        metrics: the text of Triton's metrics endpoint.
        has_gpu: whether the server runs on a machine with a GPU.
        graphs: whether graphs are on.

    """
    counts = graph_counters(metrics)
    replayed = "fused: runs that replayed a graph"
    if not graphs:
        return [
            at_least(LEVEL, "fused with its graphs off: runs without a graph", counts["eager_runs"], 1),
            equal(LEVEL, "fused with its graphs off: runs that replayed a graph", counts["replays"], 0),
        ]
    if not has_gpu:
        return [
            at_least(LEVEL, "fused without a GPU: runs without a graph", counts["eager_runs"], 1),
            equal(LEVEL, "fused without a GPU: runs counted as fallbacks", counts["fallbacks"], 0),
            not_judged(LEVEL, replayed, "no GPU: graphs are not applicable", counts["replays"]),
        ]
    return [
        at_least(LEVEL, "fused: graphs captured", counts["captures"], 1),
        at_least(LEVEL, replayed, counts["replays"], 1),
        equal(LEVEL, "fused: runs without a graph", counts["eager_runs"], 0),
    ]


def graph_counters(metrics: str) -> dict[str, float]:
    """Add up the fused models' graph counters in the text of Triton's metrics endpoint."""
    totals = dict.fromkeys(("captures", "replays", "eager_runs", "fallbacks"), 0.0)
    for line in metrics.splitlines():
        for name in totals:
            if line.startswith(f"facegraph_graph_{name}_total{{"):
                totals[name] += float(line.rpartition(" ")[2])
    return totals


def set_verbose_level(http_address: str, level: int) -> None:
    """Switch the verbose log of a running server on (1) or off (0).

    Raises:
        OSError: nobody answers, or the server does not allow it.

    """
    body = json.dumps({"log_verbose_level": level}).encode()
    with urlopen(Request(f"http://{http_address}/v2/logging", body, method="POST"), timeout=_TIMEOUT_S) as answer:
        answer.read()


def _model_of(instance: str, names: list[str]) -> str:
    """Return the model that an instance belongs to; ``""`` if it is none of them."""
    return next((name for name in names if instance == name or instance.startswith(f"{name}_")), "")
