"""The face detector on a CPU (profile cpu): OpenVINO runs the ONNX file that the TensorRT engine is built from."""

from pathlib import Path
from typing import Any

from facegraph_server.cpu_runtime import CpuNetwork
from facegraph_server.triton_step import Arrays, respond


class TritonPythonModel:
    """Triton's entry point."""

    def initialize(self, _args: dict[str, str]) -> None:
        """Compile the network."""
        self._network = CpuNetwork(Path(__file__).with_name("model.onnx"))

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer a list of requests."""
        return respond(requests, self._infer)

    def _infer(self, inputs: Arrays) -> Arrays:
        return dict(self._network.run(inputs["DETECTOR_INPUT"]))
