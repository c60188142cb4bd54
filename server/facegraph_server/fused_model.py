"""What the three models of the fused profile share as Triton models: parameters, graphs, metrics."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import asdict
from typing import Any

import triton_python_backend_utils as pb_utils

from facegraph_server.frame_graph import GraphCounters
from facegraph_server.fused_service import FusedFrames, FusedSettings
from facegraph_server.torch_frame import TextureFunction
from facegraph_server.triton_step import Arrays, respond

_HELP = {
    "captures": "CUDA graphs captured",
    "replays": "Runs that replayed a CUDA graph",
    "eager_runs": "Runs without a CUDA graph",
    "fallbacks": "Runs without a CUDA graph although graphs are on",
}


class FusedModel(ABC):
    """Base of a ``TritonPythonModel``: a subclass answers one request in :meth:`answer`."""

    tracking = False
    unwrap: TextureFunction | None = None

    def initialize(self, args: dict[str, str]) -> None:
        """Build, warm up and capture; a model that cannot be captured does not load."""
        config = json.loads(args["model_config"])
        parameters = {name: value["string_value"] for name, value in config.get("parameters", {}).items()}
        settings = FusedSettings.from_parameters(
            parameters, args["model_instance_kind"], args["model_instance_device_id"]
        )
        self.frames = FusedFrames(settings, tracking=self.tracking, unwrap=self.unwrap)
        self._metrics = GraphMetrics(args["model_name"])
        self.frames.setup()
        self._metrics.publish(self.frames.counters)
        pb_utils.Logger.log_info(
            f"{args['model_name']}: device {settings.device}, {self.frames.counters.captures} CUDA graphs captured"
        )

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer a list of requests."""
        try:
            return respond(requests, self.answer)
        finally:
            self._metrics.publish(self.frames.counters)

    def finalize(self) -> None:
        """Free the graphs."""
        self.frames.close()

    @abstractmethod
    def answer(self, inputs: Arrays) -> Arrays:
        """Map input arrays by name to output arrays by name."""


class GraphMetrics:
    """The counters of a model's graphs as Triton metrics ``facegraph_graph_<counter>_total``."""

    def __init__(self, model: str) -> None:
        self._metrics: dict[str, Any] = {}
        self._published = dict.fromkeys(_HELP, 0)
        # A metric lives as long as its family: both are kept.
        self._families = {}
        for name, text in _HELP.items():
            family = pb_utils.MetricFamily(
                name=f"facegraph_graph_{name}_total", description=text, kind=pb_utils.MetricFamily.COUNTER
            )
            self._families[name] = family
            self._metrics[name] = family.Metric(labels={"model": model})

    def publish(self, counters: GraphCounters) -> None:
        """Add what was counted since the last time."""
        for name, value in asdict(counters).items():
            if value > self._published[name]:
                self._metrics[name].increment(value - self._published[name])
                self._published[name] = value
