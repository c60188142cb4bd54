"""Run one of the ONNX networks on the CPU (profile ``cpu``).

OpenVINO is the fastest of the runtimes that were measured on these networks (see docs/detector.md): ONNX Runtime
spends most of the landmark network in PReLU.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino
from numpy.typing import NDArray

from facegraph_server.errors import ModelBuildError


class CpuNetwork:
    """One network, compiled for one image at a time: on a CPU a batch of n takes as long as n batches of one.

    Not thread-safe: one instance per Python-backend instance.

    Args:
        onnx_path: the model; its one input is UINT8 [B,H,W,3].
        threads: CPU threads of one inference.

    Raises:
        ModelBuildError: the file is missing or is no ONNX model.

    """

    def __init__(self, onnx_path: Path, *, threads: int = 1) -> None:
        if not onnx_path.is_file():
            raise ModelBuildError(f"{onnx_path} is missing; build the models first: python scripts/build_models.py")
        core = openvino.Core()
        try:
            model = core.read_model(onnx_path)
        except RuntimeError as error:
            raise ModelBuildError(
                f"{onnx_path} is no readable ONNX model ({error}); build it again: "
                "python scripts/build_models.py --force"
            ) from error
        model.reshape({model.inputs[0]: [1, *list(model.inputs[0].partial_shape)[1:]]})
        options = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": "f32",
            # Pinning gives the first thread of every process the first core: with an instance a core, all but one idle.
            "ENABLE_CPU_PINNING": False,
        }
        compiled = core.compile_model(model, "CPU", options)
        self._request = compiled.create_infer_request()
        self._names = [output.any_name for output in compiled.outputs]

    def run(self, batch: NDArray[np.uint8]) -> dict[str, NDArray[np.float32]]:
        """Return each output by its name, FP32 [B,...], for a batch UINT8 [B,H,W,3], B >= 1."""
        rows: dict[str, list[NDArray[np.float32]]] = {name: [] for name in self._names}
        for image in batch:
            self._request.infer({0: image[None]}, share_inputs=True)
            for i, name in enumerate(self._names):
                rows[name].append(self._request.get_output_tensor(i).data.copy())
        return {name: np.concatenate(values) for name, values in rows.items()}
