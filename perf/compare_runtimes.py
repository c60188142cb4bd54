"""Time the two networks on the CPU runtimes that could run them. Needs: pip install -e '.[server,perf]'."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
from ai_edge_litert.interpreter import Interpreter
from facegraph_server import weights
from facegraph_server.cpu_runtime import CpuNetwork
from facegraph_server.networks import DETECTOR_NATIVE_SIZE_PX, build_detector
from facegraph_server.paths import BUILD, WEIGHTS, onnx_path
from rich.console import Console
from rich.table import Table

_ROUNDS, _CALLS = 30, 5


def openvino_call(path: Path, image: np.ndarray) -> Callable[[], object]:
    """Return one inference by OpenVINO, one thread."""
    network = CpuNetwork(path)
    return lambda: network.run(image)


def onnxruntime_call(path: Path, image: np.ndarray) -> Callable[[], object]:
    """Return one inference by ONNX Runtime, one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options)
    name = session.get_inputs()[0].name
    return lambda: session.run(None, {name: image})


def litert_call(path: Path, image: np.ndarray) -> Callable[[], object]:
    """Return one inference of the original file by LiteRT, one thread, pixels converted as ours does inside."""
    interpreter = Interpreter(str(path), num_threads=1)
    interpreter.allocate_tensors()
    index = interpreter.get_input_details()[0]["index"]

    def call() -> None:
        interpreter.set_tensor(index, image.astype(np.float32) / 127.5 - 1)
        interpreter.invoke()

    return call


def main() -> None:
    """Print a table: each runtime in turn, medians, all at the same input size."""
    native = BUILD / "face_detector_256.onnx"
    native.write_bytes(
        build_detector((WEIGHTS / weights.DETECTOR.name).read_bytes(), DETECTOR_NATIVE_SIZE_PX).SerializeToString()
    )
    table = Table("network", "runtime", "median ms", "fastest tenth ms", title="one image, one thread")
    networks = {
        "face_detector at 256": (native, WEIGHTS / weights.DETECTOR.name, DETECTOR_NATIVE_SIZE_PX),
        "face_mesh": (onnx_path("face_mesh"), WEIGHTS / weights.MESH.name, 192),
    }
    for name, (onnx_file, tflite_file, size_px) in networks.items():
        image = np.random.default_rng(0).integers(0, 256, (1, size_px, size_px, 3), np.uint8)
        calls = {
            "OpenVINO": openvino_call(onnx_file, image),
            "ONNX Runtime": onnxruntime_call(onnx_file, image),
            "LiteRT": litert_call(tflite_file, image),
        }
        times_ms: dict[str, list[float]] = {runtime: [] for runtime in calls}
        for _ in range(_ROUNDS):
            for runtime, call in calls.items():
                call()
                for _ in range(_CALLS):
                    start = time.perf_counter()
                    call()
                    times_ms[runtime].append((time.perf_counter() - start) * 1000)
        for runtime, values in times_ms.items():
            table.add_row(name, runtime, f"{np.median(values):.2f}", f"{np.quantile(values, 0.1):.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
