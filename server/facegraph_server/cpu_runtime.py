"""Run one of the ONNX networks on the CPU (profile ``cpu``).

OpenVINO is the fastest of the runtimes that were measured on these networks (see docs/detector.md): ONNX Runtime
spends most of the landmark network in PReLU.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
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
        # On CPUs with AMX, OpenVINO gives the thread that compiles an alternate signal stack and frees it: the next
        # signal there, such as Ctrl-C, would end the process. So that thread is one that ends at once.
        with ThreadPoolExecutor(1) as thread:
            compiled = thread.submit(core.compile_model, model, "CPU", options).result()
        self._request = compiled.create_infer_request()
        self._outputs = {
            output.any_name: (self._request.get_output_tensor(i), tuple(output.shape)[1:])
            for i, output in enumerate(compiled.outputs)
        }

    def run(self, batch: NDArray[np.uint8]) -> dict[str, NDArray[np.float32]]:
        """Return each output by its name, FP32 [B,...], for a batch UINT8 [B,H,W,3], B >= 1."""
        results = {name: np.empty((len(batch), *shape), np.float32) for name, (_, shape) in self._outputs.items()}
        for row in range(len(batch)):
            self._request.infer({0: batch[row : row + 1]}, share_inputs=True, share_outputs=True)
            for name, (tensor, _) in self._outputs.items():
                results[name][row] = tensor.data[0]
        return results
