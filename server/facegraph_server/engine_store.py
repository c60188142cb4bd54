"""Keep engines beside their networks in Triton's model repository, and build only what is missing or stale.

``<model>/1/sm89.plan`` is the engine of GPUs of compute capability 8.9; ``cc_model_filenames`` in the model's
configuration names one such file for every known type, and Triton opens only the one of the GPU at hand. A
``.plan.json`` beside it says what it was built from. Engines of TensorRT for RTX, which Triton cannot load, are named
``sm89.rtx.plan``: no configuration names them.
"""

from __future__ import annotations

import errno
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from facegraph_server.atomic_file import write_atomically
from facegraph_server.cuda_device import GpuType, first_gpu
from facegraph_server.engine import (
    BatchProfile,
    Flavour,
    Precision,
    Progress,
    TensorRT,
    TensorSpec,
    build_plan,
    find_tensorrt,
)
from facegraph_server.errors import ModelBuildError
from facegraph_server.paths import BUILD, MODEL_REPOSITORY, NETWORKS, onnx_path

COMPUTE_CAPABILITIES = ("7.5", "8.0", "8.6", "8.7", "8.9", "9.0", "10.0", "10.3", "12.0", "12.1")
"""What ``cc_model_filenames`` of both networks names; a GPU of another one uses ``model.plan``."""

_RECIPE = 1
"""Raise it when engine.py makes another engine of the same inputs: every engine is then stale."""


@dataclass(frozen=True)
class EngineKey:
    """All that an engine depends on: it is fresh while this does not change.

    ``gpu`` is empty for TensorRT for RTX, whose engines run on every GPU of the compute capability.
    """

    onnx_sha256: str
    tensorrt: str
    precision: Precision
    batch: tuple[int, int, int]
    compute_capability: str
    gpu: str
    recipe: int = _RECIPE


@dataclass(frozen=True)
class Engine:
    """An engine on disk.

    Attributes:
        model: the network's name.
        path: the plan.
        key: what it was built from.
        tensors: its inputs and outputs.
        reused: it was fresh and nothing was built.
        build_s: how long the build took when it was made.

    """

    model: str
    path: Path
    key: EngineKey
    tensors: tuple[TensorSpec, ...]
    reused: bool
    build_s: float


def plan_filename(compute_capability: str, flavour: Flavour = "tensorrt") -> str:
    """Return the plan's file name for a GPU type, as ``cc_model_filenames`` has it."""
    if flavour == "tensorrt_rtx":
        return f"sm{compute_capability.replace('.', '')}.rtx.plan"
    if compute_capability in COMPUTE_CAPABILITIES:
        return f"sm{compute_capability.replace('.', '')}.plan"
    return "model.plan"


def build_engines(
    models: Sequence[str] = NETWORKS,
    *,
    precision: Precision = "fp32",
    batch: BatchProfile = BatchProfile(),  # noqa: B008 - frozen
    flavour: Flavour | None = None,
    compute_capabilities: Sequence[str] = (),
    model_repository: Path = MODEL_REPOSITORY,
    timing_caches: Path = BUILD / "timing_caches",
    allow_warnings: bool = False,
    force: bool = False,
    progress: Progress | None = None,
    local_gpu: Callable[[], GpuType | None] = first_gpu,
) -> list[Engine]:
    """Make the engines of the networks; those that are fresh are taken as they are, without importing TensorRT.

    Args:
        models: the networks' names; their ONNX files are in the model repository.
        precision: see :func:`facegraph_server.engine.build_plan`.
        batch: the range of batch sizes.
        flavour: which TensorRT; by default the full one where it is installed.
        compute_capabilities: build for these, as ``"8.9"``; by default for this machine's first GPU.
        model_repository: Triton's model repository.
        timing_caches: folder of TensorRT's timing caches, which make a rebuild quick.
        allow_warnings: go on where TensorRT's parser warns.
        force: build also what is fresh.
        progress: told how far each build is; the phase starts with the model's name and its target.
        local_gpu: finds this machine's GPU.

    Returns:
        The engines, by model, then by compute capability.

    Raises:
        ModelBuildError: an ONNX file is missing, TensorRT or the GPU is missing, the build fails, or the disk is full.

    """
    tensorrt = find_tensorrt(flavour)
    gpus = _targets(tensorrt, compute_capabilities, local_gpu)
    engines = []
    for model in models:
        onnx_data = _read_onnx(model, model_repository)
        for gpu in gpus:
            key = EngineKey(
                hashlib.sha256(onnx_data).hexdigest(),
                str(tensorrt),
                precision,
                (batch.min, batch.opt, batch.max),
                gpu.compute_capability,
                gpu.name if tensorrt.flavour == "tensorrt" else "",
            )
            filename = plan_filename(gpu.compute_capability, tensorrt.flavour)
            path = onnx_path(model, model_repository).with_name(filename)
            fresh = None if force else read_engine(model, path)
            if fresh is not None and fresh.key == key:
                engines.append(fresh)
                continue
            cache = timing_caches / f"{tensorrt}-{gpu.compute_capability}-{gpu.name}.cache".replace(" ", "_")
            started = time.monotonic()
            plan = build_plan(
                onnx_data,
                tensorrt,
                gpu,
                precision=precision,
                batch=batch,
                timing_cache=cache.read_bytes() if cache.is_file() else b"",
                allow_warnings=allow_warnings,
                progress=_named(progress, f"{model} {filename}"),
                local_gpu=local_gpu,
            )
            engine = Engine(model, path, key, plan.tensors, reused=False, build_s=round(time.monotonic() - started, 2))
            _write(engine, plan.data)
            if plan.timing_cache:
                _write_file(cache, plan.timing_cache)
            engines.append(engine)
    return engines


def read_engine(model: str, path: Path) -> Engine | None:
    """Read what is known of a plan; None where the plan, or a description that belongs to it, is missing."""
    try:
        record = json.loads(_sidecar(path).read_bytes())
        if hashlib.sha256(path.read_bytes()).hexdigest() != record["plan_sha256"]:
            return None  # written in part, or replaced by hand
        key = EngineKey(**{**record["key"], "batch": tuple(record["key"]["batch"])})
        tensors = tuple(_tensor(t) for t in record["tensors"])
        return Engine(model, path, key, tensors, reused=True, build_s=float(record["build_s"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def require_engine(
    model: str,
    *,
    model_repository: Path = MODEL_REPOSITORY,
    local_gpu: Callable[[], GpuType | None] = first_gpu,
) -> Engine:
    """Return the engine that Triton will load on this machine: a check before the server is started.

    Raises:
        ModelBuildError: there is no GPU, no engine for it, or one that was built from another ONNX file or on another
            GPU.

    """
    gpu = local_gpu()
    if gpu is None:
        raise ModelBuildError("the TensorRT profile needs an NVIDIA GPU, but there is none; use the CPU profile")
    network = onnx_path(model, model_repository)
    path = network.with_name(plan_filename(gpu.compute_capability))
    engine = read_engine(model, path)
    rebuild = "run scripts/build_models.py --engine on this machine"
    if engine is None:
        others = sorted(p.name for p in network.parent.glob("*.plan") if not p.name.endswith(".rtx.plan"))
        there = f"there are only {', '.join(others)}" if others else "there is none yet"
        raise ModelBuildError(f"{model} has no intact engine for the {gpu} ({path}); {there}: {rebuild}")
    if engine.key.gpu != gpu.name or engine.key.compute_capability != gpu.compute_capability:
        raise ModelBuildError(f"{path} was built on {engine.key.gpu}, but this machine has {gpu}: {rebuild}")
    if engine.key.onnx_sha256 != hashlib.sha256(_read_onnx(model, model_repository)).hexdigest():
        raise ModelBuildError(f"{path} was built from another {network.name}: {rebuild}")
    return engine


def _targets(
    tensorrt: TensorRT, compute_capabilities: Sequence[str], local_gpu: Callable[[], GpuType | None]
) -> list[GpuType]:
    local = local_gpu()
    if compute_capabilities:
        same = {local.compute_capability: local} if local is not None else {}
        return [same.get(c, GpuType(c)) for c in compute_capabilities]
    if local is not None:
        return [local]
    hint = (
        "name the compute capabilities to build for, such as 8.9"
        if tensorrt.flavour == "tensorrt_rtx"
        else "run this on the serving machine (in a container: docker run --gpus all), or use the CPU profile"
    )
    raise ModelBuildError(f"{tensorrt} has no GPU to build for: the NVIDIA driver answers none here; {hint}")


def _read_onnx(model: str, model_repository: Path) -> bytes:
    path = onnx_path(model, model_repository)
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise ModelBuildError(f"{path} is missing; run scripts/build_models.py first") from error


def _named(progress: Progress | None, prefix: str) -> Progress | None:
    if progress is None:
        return None
    return lambda phase, done, total: progress(f"{prefix}: {phase}", done, total)


def _sidecar(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _tensor(record: dict[str, Any]) -> TensorSpec:
    profile = record["profile"] and tuple(tuple(shape) for shape in record["profile"])
    return TensorSpec(**{**record, "shape": tuple(record["shape"]), "profile": profile})


def _write(engine: Engine, plan: bytes) -> None:
    """Write the plan, then its description: the hash in it tells a pair that does not belong together."""
    record = {
        "key": asdict(engine.key),
        "plan_sha256": hashlib.sha256(plan).hexdigest(),
        "build_s": engine.build_s,
        "tensors": [asdict(t) for t in engine.tensors],
    }
    _write_file(engine.path, plan)
    _write_file(_sidecar(engine.path), json.dumps(record, indent=2).encode() + b"\n")


def _write_file(path: Path, data: bytes) -> None:
    try:
        write_atomically(path, data)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ModelBuildError(
                f"no space left on the disk for {path} ({len(data) / 1e6:.1f} MB); free some and run this again: "
                "engines that are done are kept"
            ) from error
        raise ModelBuildError(f"{path} cannot be written: {error.strerror}") from error
