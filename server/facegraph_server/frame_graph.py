"""One torch function of fixed shape, captured as one CUDA graph and replayed request by request.

A graph replays the same kernels on the same addresses, so :class:`FrameGraph` owns every buffer: page-locked host
memory and device memory, one block each for all inputs together and for all outputs together. A request is then one
copy in, one launch, one copy out. On a CPU, or with graphs switched off, the same function runs eagerly on the same
buffers.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import torch
from facegraph_client import InputError
from numpy.typing import NDArray
from torch import Tensor

from facegraph_server.errors import ModelBuildError

Spec = tuple[tuple[int, ...], torch.dtype]
Function = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]

_ALIGNMENT = (
    256  # what CUDA gives an allocation of its own, so a tensor in the block is as well aligned as a separate one
)


@dataclass
class GraphCounters:
    """What happened since the start; several graphs may share one.

    Attributes:
        captures: graphs captured.
        replays: runs that replayed a graph.
        eager_runs: runs without a graph, because graphs are off, there is no GPU, or no graph fits the request.
        fallbacks: those of the eager runs that had no graph although graphs are on.

    """

    captures: int = 0
    replays: int = 0
    eager_runs: int = 0
    fallbacks: int = 0


class _Slot(NamedTuple):
    start: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def view(self, block: Tensor) -> Tensor:
        size = math.prod(self.shape) * self.dtype.itemsize
        return block[self.start : self.start + size].view(self.dtype).view(self.shape)


class _Turn(NamedTuple):
    """What graphs share that never run at the same time."""

    lock: threading.Lock
    stream: torch.cuda.Stream | None
    pool: Any


class FrameGraph:
    """A function with buffers of its own: arrays in, arrays out, one launch in between.

    Use it as a context manager, or call :meth:`setup` and :meth:`close`. Runs exclude each other by a lock.

    Args:
        function: maps tensors by name to tensors by name, all on ``device``. It must be safe to capture: shapes that
            depend on shapes only, no look at a value from the host.
        inputs: shape and type of each input, or an example array. The last one is copied only as far as it is filled.
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:N"``.
        graphs: capture and replay; False runs the function eagerly.
        warmup_runs: runs before the capture, in which libraries choose algorithms and allocate their workspaces.
        partial: inputs that may be smaller than their buffer; they fill its upper left corner, and what lies beyond
            is left over from earlier runs.
        count_output: name of an integer output [1] that tells how many rows of ``row_outputs`` mean something.
        row_outputs: outputs of which only that many rows are copied to the host and returned.
        counters: where to count; a new one if not given.
        share_with: another graph on the same device that never needs to run at the same time. Both take turns by one
            lock on one stream, and their intermediate results use the same memory: set the larger one up first.

    """

    def __init__(
        self,
        function: Function,
        inputs: Mapping[str, Spec | NDArray[Any]],
        *,
        device: str | torch.device,
        graphs: bool = True,
        warmup_runs: int = 3,
        partial: Sequence[str] = (),
        count_output: str | None = None,
        row_outputs: Sequence[str] = (),
        counters: GraphCounters | None = None,
        share_with: FrameGraph | None = None,
    ) -> None:
        self.device = torch.device(device)
        self.counters = counters or GraphCounters()
        self._function = function
        self._is_cuda = self.device.type == "cuda"
        self._graphs = graphs and self._is_cuda
        self._warmup_runs = max(warmup_runs, 1)
        self._partial = frozenset(partial)
        self._count_output, self._row_outputs = count_output, tuple(row_outputs)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._closed = False
        if share_with is not None:
            turn = share_with._turn
        else:
            stream = torch.cuda.Stream(self.device) if self._is_cuda else None  # type: ignore[no-untyped-call]
            turn = _Turn(threading.Lock(), stream, torch.cuda.graph_pool_handle() if self._is_cuda else None)
        self._turn: _Turn = turn
        self._lock, self._stream, self._pool = turn

        self._input_slots, size = _pack({name: _spec(value) for name, value in inputs.items()})
        self._device_in = torch.zeros(size, dtype=torch.uint8, device=self.device)
        self._host_in = torch.zeros(size, dtype=torch.uint8, pin_memory=True) if self._is_cuda else self._device_in
        self._inputs = {name: slot.view(self._device_in) for name, slot in self._input_slots.items()}
        self._host_inputs = {name: slot.view(self._host_in).numpy() for name, slot in self._input_slots.items()}
        self._output_slots: dict[str, _Slot] = {}
        self._small_bytes = 0
        self._device_out = self._host_out = torch.empty(0, dtype=torch.uint8)
        if self._is_cuda:
            torch.cuda.synchronize(self.device)  # the buffers, and the weights, were filled on another stream

    def __enter__(self) -> FrameGraph:
        """Set up."""
        self.setup()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def setup(self) -> None:
        """Warm up and capture, so that the first request is as fast as the others; nothing to do without graphs.

        Raises:
            ModelBuildError: the function cannot be captured.

        """
        with self._lock:
            self._check_open()
            if not self._graphs or self._graph is not None:
                return
            with torch.inference_mode(), torch.cuda.stream(self._stream):
                for _ in range(self._warmup_runs):
                    self._compute()
            self._synchronise()
            graph = torch.cuda.CUDAGraph()
            try:
                with (
                    torch.inference_mode(),
                    # thread_local: a call that a capture forbids, made by another thread, must not spoil this one
                    torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"),
                ):
                    self._compute()
            except RuntimeError as error:
                raise ModelBuildError(
                    f"the function cannot be captured as a CUDA graph ({error}); switch graphs off to run it eagerly"
                ) from error
            self._graph = graph
            self.counters.captures += 1

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run the function on host arrays.

        Args:
            inputs: an array for each input; those named ``partial`` may be smaller than their buffer.

        Returns:
            An array for each output: a copy of its own, that later runs leave alone.

        Raises:
            InputError: names, shapes or types are not those of the buffers.

        """
        with self._lock, torch.inference_mode():
            self._check_open()
            used = self._fill(inputs)
            if self._stream is None:
                self._compute()
            else:
                with torch.cuda.stream(self._stream):
                    self._device_in[:used].copy_(self._host_in[:used], non_blocking=True)
                    if self._graph is not None:
                        self._graph.replay()
                    else:
                        self._compute()
            self.counters.replays += self._graph is not None
            self.counters.eager_runs += self._graph is None
            return self._collect()

    def close(self) -> None:
        """Free the graph and all buffers; harmless when closed already."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._is_cuda:
                self._synchronise()
            if self._graph is not None:
                self._graph.reset()
            self._graph = None
            self._inputs, self._host_inputs = {}, {}
            self._device_in = self._host_in = self._device_out = self._host_out = torch.empty(0, dtype=torch.uint8)

    @property
    def captured(self) -> bool:
        """Whether runs replay a graph."""
        return self._graph is not None

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("this FrameGraph is closed; make a new one")

    def _fill(self, inputs: Mapping[str, NDArray[Any]]) -> int:
        """Put the arrays into the host block; return how many of its bytes from the start are in use."""
        if inputs.keys() != self._host_inputs.keys():
            raise InputError(f"the inputs are {sorted(inputs)}, but the graph has {sorted(self._host_inputs)}")
        for name, value in inputs.items():
            self._check(name, value)
        used = 0
        for name, buffer in self._host_inputs.items():
            value = inputs[name]
            buffer[tuple(slice(length) for length in value.shape)] = value
            slot = self._input_slots[name]
            used = slot.start + value.shape[0] * slot.row_bytes
        return used

    def _check(self, name: str, value: NDArray[Any]) -> None:
        buffer = self._host_inputs[name]
        if value.dtype != buffer.dtype:
            raise InputError(f"{name} is {value.dtype}, but the graph takes {buffer.dtype}")
        fits = value.shape == buffer.shape
        if name in self._partial and value.ndim == buffer.ndim:
            fits = all(0 < length <= limit for length, limit in zip(value.shape, buffer.shape, strict=True))
        if not fits:
            most = "at most " if name in self._partial else ""
            raise InputError(
                f"{name} has the shape {list(value.shape)}, but the graph takes {most}{list(buffer.shape)}"
            )

    def _compute(self) -> None:
        """Run the function and put its results into the device's output block."""
        results = self._function(self._inputs)
        if not self._output_slots:
            small = {name: value for name, value in results.items() if name not in self._row_outputs}
            large = {name: results[name] for name in self._row_outputs}
            specs = {name: (tuple(value.shape), value.dtype) for name, value in (small | large).items()}
            self._output_slots, size = _pack(specs)
            self._small_bytes = min((self._output_slots[name].start for name in large), default=size)
            self._device_out = torch.zeros(size, dtype=torch.uint8, device=self.device)
            self._host_out = (
                torch.zeros(size, dtype=torch.uint8, pin_memory=True) if self._is_cuda else self._device_out
            )
        for name, slot in self._output_slots.items():
            slot.view(self._device_out).copy_(results[name])

    def _collect(self) -> dict[str, NDArray[Any]]:
        """Copy the results to the host: one copy, and one for each output whose rows must be counted first."""
        self._fetch(0, self._small_bytes)
        self._synchronise()
        host = {name: slot.view(self._host_out).numpy() for name, slot in self._output_slots.items()}
        if self._count_output is not None:
            count = int(host[self._count_output][0])
            for name in self._row_outputs:
                slot = self._output_slots[name]
                host[name] = host[name][:count]
                self._fetch(slot.start, slot.start + len(host[name]) * slot.row_bytes)
            self._synchronise()
        return {name: value.copy() for name, value in host.items()}

    def _fetch(self, start: int, stop: int) -> None:
        if self._stream is not None and stop > start:
            with torch.cuda.stream(self._stream):
                self._host_out[start:stop].copy_(self._device_out[start:stop], non_blocking=True)

    def _synchronise(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()


def _spec(value: Spec | NDArray[Any]) -> Spec:
    if isinstance(value, np.ndarray):
        return tuple(value.shape), torch.from_numpy(np.empty(0, value.dtype)).dtype
    return tuple(value[0]), value[1]


def _pack(specs: Mapping[str, Spec]) -> tuple[dict[str, _Slot], int]:
    """Place tensors one after the other in a block; return their places and the block's size in bytes."""
    slots, end = {}, 0
    for name, (shape, dtype) in specs.items():
        slots[name] = _Slot(end, shape, dtype)
        end += -(-math.prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
    return slots, end
