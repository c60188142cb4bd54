"""Run a TensorRT engine on torch tensors, so that it can enter the same CUDA graph as torch code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from facegraph_server.errors import ModelBuildError


class TensorRtNetwork:
    """An engine with one input and buffers of its own for one batch size.

    It runs on torch's current stream, so it may be called while a graph is captured; the buffers are made and the
    shapes set before. One execution context for one captured graph, as TensorRT advises.

    Args:
        trt: the module ``tensorrt`` or ``tensorrt_rtx``.
        plan: the serialized engine.
        shape: of the input, UINT8.
        device: where the engine runs.
        stream: returns the stream to run on.

    Raises:
        ModelBuildError: the engine cannot be loaded here or refuses the shape.

    """

    def __init__(
        self,
        trt: Any,
        plan: bytes,
        shape: tuple[int, ...],
        *,
        device: str = "cuda",
        stream: Callable[[], int] = lambda: int(torch.cuda.current_stream().cuda_stream),
    ) -> None:
        self._stream = stream
        self._runtime = trt.Runtime(trt.Logger(trt.Logger.WARNING))  # must outlive the engine
        self._engine = self._runtime.deserialize_cuda_engine(plan)
        if self._engine is None:
            raise ModelBuildError("TensorRT cannot load the engine: it is of another version or GPU; build it here")
        self._context = self._engine.create_execution_context()
        names = [self._engine.get_tensor_name(i) for i in range(self._engine.num_io_tensors)]
        self._input, *more = [n for n in names if self._engine.get_tensor_mode(n) == trt.TensorIOMode.INPUT]
        if more or not self._context.set_input_shape(self._input, shape):
            raise ModelBuildError(f"the engine does not take one input of the shape {list(shape)}")
        self._outputs = {
            name: torch.empty(tuple(self._context.get_tensor_shape(name)), dtype=torch.float32, device=device)
            for name in names
            if name != self._input
        }
        for name, buffer in self._outputs.items():
            self._context.set_tensor_address(name, buffer.data_ptr())

    def __call__(self, pixels: Tensor) -> dict[str, Tensor]:
        """Enqueue the engine; the results are valid on the same stream, until the next call."""
        self._context.set_tensor_address(self._input, pixels.data_ptr())
        if not self._context.execute_async_v3(self._stream()):
            raise RuntimeError("TensorRT could not enqueue the engine; its log says why")
        return self._outputs
