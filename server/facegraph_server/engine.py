"""Compile an ONNX network with TensorRT, or with TensorRT for RTX: one builder for both, their Python APIs agree.

TensorRT builds for the GPU of this machine by timing kernels on it. TensorRT for RTX builds for a named compute
capability, on any machine, and leaves the choice of kernels to the first run. Triton's TensorRT backend loads only the
former; the latter is for running the networks in-process, and for testing the builder where there is no GPU.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from facegraph_server.contract import MAX_BATCH
from facegraph_server.cuda_device import GpuType, first_gpu
from facegraph_server.errors import ModelBuildError

logger = logging.getLogger(__name__)

Flavour = Literal["tensorrt", "tensorrt_rtx"]
Precision = Literal["fp32", "tf32", "fp16"]
Progress = Callable[[str, int, int], None]
"""Called as ``progress(phase, done, total)`` while TensorRT works; ``done`` never falls within one engine.

An exception that it raises (KeyboardInterrupt is one) stops the build.
"""

PROGRESS_TOTAL = 1000
"""What ``total`` is: TensorRT's phases are nested, so their steps are put on one scale."""

# Import names and distribution names under which each flavour is found.
_MODULES: dict[Flavour, tuple[str, ...]] = {
    "tensorrt": ("tensorrt", "tensorrt_bindings"),
    "tensorrt_rtx": ("tensorrt_rtx", "tensorrt_rtx_bindings"),
}
_DISTRIBUTIONS: dict[Flavour, tuple[str, ...]] = {
    "tensorrt": ("tensorrt", "tensorrt-cu13", "tensorrt-cu12", "tensorrt-cu13-bindings", "tensorrt-cu12-bindings"),
    "tensorrt_rtx": ("tensorrt-rtx", "tensorrt-rtx-cu13-bindings", "tensorrt-rtx-cu12-bindings"),
}
_OLDEST_MAJOR: dict[Flavour, int] = {"tensorrt": 10, "tensorrt_rtx": 1}


@dataclass(frozen=True)
class BatchProfile:
    """The batch sizes of the engine's one optimization profile.

    ``opt`` is the size that kernels are chosen for. 4 is the geometric middle of 1..16: between the single photo and
    the full batch of a busy server no size is further than four-fold from it.
    """

    min: int = 1
    opt: int = 4
    max: int = MAX_BATCH

    def __post_init__(self) -> None:
        if not 1 <= self.min <= self.opt <= self.max:
            raise ModelBuildError(f"the batch sizes must satisfy 1 <= min <= opt <= max, but are {self}")


@dataclass(frozen=True)
class TensorRT:
    """An installed TensorRT, found but not imported."""

    flavour: Flavour
    module_name: str
    version: str

    def __str__(self) -> str:
        return f"{self.flavour} {self.version}"

    def load(self) -> Any:
        """Import it.

        Raises:
            ModelBuildError: it does not import, mostly for a missing library.

        """
        try:
            return importlib.import_module(self.module_name)
        except Exception as error:  # a missing shared library raises OSError, ImportError or RuntimeError
            raise ModelBuildError(f"{self} is installed but cannot be imported: {error}") from error


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of an engine: shapes hold -1 for the batch; the profile's shapes are of inputs only."""

    name: str
    mode: Literal["input", "output"]
    dtype: str
    shape: tuple[int, ...]
    profile: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None = None


@dataclass(frozen=True)
class Plan:
    """A serialized engine, its tensors, and TensorRT's timing cache (empty where it keeps none)."""

    data: bytes
    tensors: tuple[TensorSpec, ...]
    timing_cache: bytes = b""


def find_tensorrt(flavour: Flavour | None = None) -> TensorRT:
    """Find an installed TensorRT without importing it; the full one comes first.

    Args:
        flavour: take only this one.

    Raises:
        ModelBuildError: there is none, or it is too old.

    """
    for candidate in (flavour,) if flavour else ("tensorrt", "tensorrt_rtx"):
        for name in _MODULES[candidate]:
            if importlib.util.find_spec(name) is None:
                continue
            found = TensorRT(candidate, name, _installed_version(candidate, name))
            if int(found.version.split(".")[0]) < _OLDEST_MAJOR[candidate]:
                raise ModelBuildError(f"{found} is too old; install version {_OLDEST_MAJOR[candidate]} or newer")
            return found
    raise ModelBuildError(
        f"{flavour or 'TensorRT'} is not installed. Build the engines inside NVIDIA's Triton container, with the "
        "Python package of exactly the TensorRT version that the container has (pip install tensorrt==VERSION): an "
        "engine loads only in the version that built it. The CPU profile needs no engine"
    )


def build_plan(
    onnx_data: bytes,
    tensorrt: TensorRT,
    gpu: GpuType,
    *,
    precision: Precision = "fp32",
    batch: BatchProfile = BatchProfile(),  # noqa: B008 - frozen
    timing_cache: bytes = b"",
    allow_warnings: bool = False,
    progress: Progress | None = None,
    local_gpu: Callable[[], GpuType | None] = first_gpu,
) -> Plan:
    """Compile an ONNX network whose inputs are static but for their first, the batch, dimension.

    Args:
        onnx_data: the serialized FP32 model; for ``fp16`` its inside is put into FP16 first, see ``half_precision``.
        tensorrt: what compiles it.
        gpu: what it is compiled for. TensorRT compiles only for this machine's GPU.
        precision: ``fp32`` computes FP32 exactly; ``tf32`` lets tensor cores round FP32 factors to 10 bits of mantissa.
        batch: the range of batch sizes.
        timing_cache: what an earlier build returned; only TensorRT uses one.
        allow_warnings: go on where the parser warns.
        progress: told how far the build is.
        local_gpu: finds this machine's GPU.

    Raises:
        ModelBuildError: TensorRT cannot be loaded, has no GPU to build on, does not know the compute capability, does
            not parse the network, warns, or fails to build; the message ends with TensorRT's own words.

    """
    _check_gpu(tensorrt, gpu, local_gpu)
    if precision == "fp16":
        onnx_data = _half(onnx_data)
    trt = tensorrt.load()
    log = _process_logger(trt)
    with _said(log, "TensorRT cannot start"):
        builder = trt.Builder(log)
        network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        parser = trt.OnnxParser(network, log)
    _parse(trt, parser, log, onnx_data, allow_warnings=allow_warnings)
    profile = _profile(builder, network, batch)
    config = builder.create_builder_config()
    config.add_optimization_profile(profile)
    if precision == "tf32":
        config.set_flag(trt.BuilderFlag.TF32)
    else:
        config.clear_flag(trt.BuilderFlag.TF32)
    _set_target(trt, config, tensorrt, gpu)
    cache_handle = _set_timing_cache(config, tensorrt, timing_cache)
    monitor = _monitor(trt, progress) if progress is not None else None
    if monitor is not None:
        config.progress_monitor = monitor
    with _said(log, f"{tensorrt} cannot build the network for {gpu}"):
        data = builder.build_serialized_network(network, config)
        stopped_by = monitor.error if monitor is not None else None
        if data is None and stopped_by is None:
            raise _NoResultError
    if stopped_by is not None:
        raise stopped_by
    return Plan(
        bytes(data),
        _tensors(trt, network, profile),
        bytes(cache_handle.serialize()) if cache_handle is not None else b"",
    )


def _installed_version(flavour: Flavour, module_name: str) -> str:
    """Read the version from the installed package's metadata: reading it from the module would import it."""
    for distribution in _DISTRIBUTIONS[flavour]:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return str(TensorRT(flavour, module_name, "unknown").load().__version__)


def _check_gpu(tensorrt: TensorRT, gpu: GpuType, local_gpu: Callable[[], GpuType | None]) -> None:
    if tensorrt.flavour != "tensorrt":
        return
    local = local_gpu()
    if local is None:
        raise ModelBuildError(
            f"{tensorrt} builds on the GPU that it builds for, but the NVIDIA driver answers no GPU here; run this on "
            "the serving machine (in a container: docker run --gpus all), or use the CPU profile"
        )
    if local.compute_capability != gpu.compute_capability:
        raise ModelBuildError(
            f"{tensorrt} builds only for the GPU of this machine, {local}, not for {gpu}; run this on such a machine "
            "and copy its .plan and .plan.json files into the model repository"
        )


def _half(onnx_data: bytes) -> bytes:
    import onnx  # noqa: PLC0415 - for FP16 only; a fresh engine must be found at once

    from facegraph_server.half_precision import to_half  # noqa: PLC0415

    return bytes(to_half(onnx.load_from_string(onnx_data)).SerializeToString(deterministic=True))


def _parse(trt: Any, parser: Any, log: Any, onnx_data: bytes, *, allow_warnings: bool) -> None:
    log.take()
    parsed = parser.parse(onnx_data)
    errors = [_describe(parser.get_error(i)) for i in range(parser.num_errors)]
    messages = log.take()
    if not parsed or errors:
        lines = errors or [text for _, text in messages] or ["TensorRT gave no reason"]
        raise ModelBuildError("TensorRT's parser refuses the network:\n  " + "\n  ".join(lines))
    warnings = [text for severity, text in messages if severity <= int(trt.ILogger.WARNING)]
    if warnings and not allow_warnings:
        raise ModelBuildError(
            "TensorRT's parser reads the network with warnings, so the engine may compute something else; allow "
            "warnings once you know that they are harmless:\n  " + "\n  ".join(warnings)
        )


def _describe(error: Any) -> str:
    where = f"node {error.node()}"
    for attribute in ("node_name", "node_operator"):
        if value := getattr(error, attribute, str)():
            where += f" {value}"
    return f"{where}: {error.desc()}"


def _profile(builder: Any, network: Any, batch: BatchProfile) -> Any:
    profile = builder.create_optimization_profile()
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        sample = tuple(tensor.shape)[1:]
        if not tensor.shape or tensor.shape[0] != -1 or -1 in sample or tensor.is_shape_tensor:
            raise ModelBuildError(
                f"the input {tensor.name} has shape {list(tensor.shape)}; one profile covers inputs whose first "
                "dimension, the batch, is free and whose others are fixed: export the network so"
            )
        profile.set_shape(tensor.name, *((size, *sample) for size in (batch.min, batch.opt, batch.max)))
    return profile


def _set_target(trt: Any, config: Any, tensorrt: TensorRT, gpu: GpuType) -> None:
    if tensorrt.flavour != "tensorrt_rtx":
        return  # TensorRT knows but its own GPU
    name = f"SM{gpu.compute_capability.replace('.', '')}"
    target = trt.ComputeCapability.__members__.get(name)
    if target is None:
        known = ", ".join(m[2:-1] + "." + m[-1] for m in trt.ComputeCapability.__members__ if m.startswith("SM"))
        raise ModelBuildError(
            f"{tensorrt} does not build for compute capability {gpu.compute_capability}, only {known}"
        )
    config.num_compute_capabilities = 1
    config.set_compute_capability(target, 0)


def _set_timing_cache(config: Any, tensorrt: TensorRT, data: bytes) -> Any:
    if tensorrt.flavour != "tensorrt":
        return None  # TensorRT for RTX times nothing at build time; its API keeps the calls as deprecated no-ops
    handle = config.create_timing_cache(data)
    if not config.set_timing_cache(handle, False):  # made by another version or GPU
        handle = config.create_timing_cache(b"")
        config.set_timing_cache(handle, False)
    return handle


def _tensors(trt: Any, network: Any, profile: Any) -> tuple[TensorSpec, ...]:
    inputs = [network.get_input(i) for i in range(network.num_inputs)]
    outputs = [network.get_output(i) for i in range(network.num_outputs)]
    names = {
        trt.float32: "FP32", trt.float16: "FP16", trt.int32: "INT32", trt.int64: "INT64", trt.int8: "INT8",
        trt.uint8: "UINT8", trt.bool: "BOOL", trt.bfloat16: "BF16",
    }  # fmt: skip

    def spec(tensor: Any, mode: Literal["input", "output"]) -> TensorSpec:
        shapes = [tuple(s) for s in profile.get_shape(tensor.name)] if mode == "input" else None
        return TensorSpec(
            tensor.name,
            mode,
            names.get(tensor.dtype, str(tensor.dtype)),
            tuple(tensor.shape),
            (shapes[0], shapes[1], shapes[2]) if shapes else None,
        )

    return (*(spec(t, "input") for t in inputs), *(spec(t, "output") for t in outputs))


class _NoResultError(Exception):
    """TensorRT returned nothing; why is in its log."""


@contextmanager
def _said(log: Any, what: str) -> Iterator[None]:
    """Turn a failure of TensorRT into an error that ends with what TensorRT logged meanwhile."""
    log.take()
    try:
        yield
    except (_NoResultError, RuntimeError, TypeError) as error:
        errors = [text for severity, text in log.take() if severity <= int(log.ERROR)]
        reason = "\n  ".join(errors or [str(error) or "TensorRT gave no reason"])
        raise ModelBuildError(f"{what}:\n  {reason}") from error


@cache
def _process_logger(trt: Any) -> Any:
    """Return the one logger of this process: TensorRT keeps the first that it is given and ignores all others."""
    levels = {0: logging.ERROR, 1: logging.ERROR, 2: logging.WARNING, 3: logging.DEBUG, 4: logging.DEBUG}

    class Logger(trt.ILogger):  # type: ignore[misc]  # the base class is known at run time only
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self._lock = threading.Lock()
            self._messages: list[tuple[int, str]] = []

        def log(self, severity: Any, message: str) -> None:
            level = int(severity)
            logger.log(levels.get(level, logging.DEBUG), "%s", message)
            if level <= int(trt.ILogger.WARNING):
                with self._lock:
                    self._messages.append((level, message))

        def take(self) -> list[tuple[int, str]]:
            """Return, and forget, the warnings and errors since the last call, as (severity, text)."""
            with self._lock:
                taken, self._messages = self._messages, []
            return taken

    return Logger()


@dataclass
class _Phase:
    name: str
    steps: int
    done: int = 0
    within: float = 0.0  # how much of the running step the finished children took


class _OneScale:
    """Puts nested phases on one scale.

    A phase's children run inside one of its steps, nobody knows how many: the first takes half of the step, the next
    half of what is left, and so on. The step's end takes the rest.
    """

    def __init__(self) -> None:
        self._running: list[_Phase] = []  # outermost first
        self._best = 0

    def start(self, name: str, parent: str | None, steps: int) -> None:
        while self._running and self._running[-1].name != parent:
            self._running.pop()
        self._running.append(_Phase(name, max(steps, 1)))

    def step(self, name: str, step: int) -> None:
        for phase in self._running:
            if phase.name == name:
                phase.done, phase.within = min(step + 1, phase.steps), 0.0

    def finish(self, name: str) -> None:
        names = [phase.name for phase in self._running]
        if name not in names:
            return
        depth = names.index(name)
        del self._running[depth:]
        if depth == 0:
            self._best = PROGRESS_TOTAL
        else:
            parent = self._running[depth - 1]
            parent.within += (1 - parent.within) / 2

    def done(self) -> int:
        position = 0.0
        for phase in reversed(self._running):
            inside = phase.within + position * (1 - phase.within) / 2
            position = min((phase.done + inside) / phase.steps, 1.0)
        self._best = max(self._best, round(position * PROGRESS_TOTAL))
        return self._best


def _monitor(trt: Any, progress: Progress) -> Any:
    """Return an ``IProgressMonitor`` that calls ``progress``, from whichever thread TensorRT calls it."""

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]  # the base class is known at run time only
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self._lock = threading.Lock()
            self._scale = _OneScale()
            self.error: BaseException | None = None

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            with self._lock:
                self._scale.start(phase_name, parent_phase, num_steps)
                self._tell(phase_name)

        def step_complete(self, phase_name: str, step: int) -> bool:
            with self._lock:
                self._scale.step(phase_name, step)
                self._tell(phase_name)
                return self.error is None  # False asks TensorRT to stop

        def phase_finish(self, phase_name: str) -> None:
            with self._lock:
                self._scale.finish(phase_name)
                self._tell(phase_name)

        def _tell(self, phase: str) -> None:
            if self.error is None:
                try:
                    progress(phase, self._scale.done(), PROGRESS_TOTAL)
                except BaseException as error:  # raised again once TensorRT has stopped
                    self.error = error

    return Monitor()
