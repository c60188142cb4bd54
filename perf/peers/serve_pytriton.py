"""Program: MediaPipe behind PyTriton, two instances with one FaceMesh each, as the model face_mesh."""

from __future__ import annotations

import os
import sys

import numpy as np
from numpy.typing import NDArray
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

from peers.face_mesh import FaceMesh, decode_with_simplejpeg
from peers.owner import end_with_owner

_INSTANCES = 2


class Instance:
    """One FaceMesh as PyTriton calls it."""

    def __init__(self) -> None:
        self._mesh = FaceMesh()

    def __call__(self, requests: list[dict[str, NDArray[np.object_]]]) -> list[dict[str, NDArray[np.float32]]]:
        """Take IMAGE BYTES [1], return LANDMARKS FP32 [F,468,3]."""
        return [
            {"LANDMARKS": self._mesh.landmarks_px(decode_with_simplejpeg(request["IMAGE"].item()))}
            for request in requests
        ]


def main() -> None:
    """Serve on 127.0.0.1 and the ports given: HTTP, gRPC, metrics."""
    end_with_owner()
    # PyTriton's shared memory does not start in every Python 3.11: its stub's own interpreter may be older than the
    # standard library that it finds. This is PyTriton's other way to pass arrays.
    os.environ["PYTRITON_NO_TENSORSTORE"] = "1"
    http_port, grpc_port, metrics_port = (int(port) for port in sys.argv[1:])
    settings = TritonConfig(
        http_address="127.0.0.1",
        http_port=http_port,
        grpc_address="127.0.0.1",
        grpc_port=grpc_port,
        metrics_port=metrics_port,
        log_verbose=0,
    )
    with Triton(config=settings) as triton:
        triton.bind(
            model_name="face_mesh",
            infer_func=[Instance() for _ in range(_INSTANCES)],
            inputs=[Tensor(name="IMAGE", dtype=bytes, shape=(1,))],
            outputs=[Tensor(name="LANDMARKS", dtype=np.float32, shape=(-1, 468, 3))],
            config=ModelConfig(batching=False, batcher=DynamicBatcher()),
        )
        triton.serve()


if __name__ == "__main__":
    main()
