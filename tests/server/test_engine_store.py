"""Which engine is taken as it is, which one is built, where it goes, and what is said when it cannot be."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from facegraph_server import engine_store
from facegraph_server.cuda_device import GpuType
from facegraph_server.engine import BatchProfile, Plan, TensorRT, TensorSpec
from facegraph_server.engine_store import (
    COMPUTE_CAPABILITIES,
    Engine,
    build_engines,
    plan_filename,
    read_engine,
    require_engine,
)
from facegraph_server.errors import ModelBuildError
from facegraph_server.paths import NETWORKS, onnx_path

L4 = GpuType("8.9", "NVIDIA L4")
RTX_4090 = GpuType("8.9", "NVIDIA GeForce RTX 4090")
H200 = GpuType("9.0", "NVIDIA H200")
FULL = TensorRT("tensorrt", "tensorrt", "10.5.0")
TENSORS = (
    TensorSpec("x", "input", "UINT8", (-1, 4), ((1, 4), (4, 4), (16, 4))),
    TensorSpec("y", "output", "FP32", (-1, 2)),
)


class Machine:
    """A model repository with two small files for networks, and a builder that counts."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.repository = folder / "models"
        self.timing_caches = folder / "caches"
        self.gpu: GpuType | None = L4
        self.tensorrt = FULL
        self.builds: list[tuple[bytes, str, dict[str, Any]]] = []
        for model in NETWORKS:
            path = onnx_path(model, self.repository)
            path.parent.mkdir(parents=True)
            path.write_bytes(f"onnx of {model}".encode())
        monkeypatch.setattr(engine_store, "find_tensorrt", lambda flavour: self.tensorrt)
        monkeypatch.setattr(engine_store, "build_plan", self._build_plan)

    def _build_plan(self, onnx_data: bytes, tensorrt: TensorRT, gpu: GpuType, **options: Any) -> Plan:
        self.builds.append((onnx_data, gpu.compute_capability, options))
        if options["progress"] is not None:
            options["progress"]("Timing", 3, 10)
        cache = b"times" if tensorrt.flavour == "tensorrt" else b""
        return Plan(f"plan {len(self.builds)}".encode(), TENSORS, cache)

    def build(self, models: tuple[str, ...] = ("face_mesh",), **options: Any) -> list[Engine]:
        return build_engines(
            models,
            model_repository=self.repository,
            timing_caches=self.timing_caches,
            local_gpu=lambda: self.gpu,
            **options,
        )

    def require(self) -> Engine:
        return require_engine("face_mesh", model_repository=self.repository, local_gpu=lambda: self.gpu)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("compute_capability", "flavour", "filename"),
    [
        ("8.9", "tensorrt", "sm89.plan"),
        ("12.0", "tensorrt", "sm120.plan"),
        ("13.7", "tensorrt", "model.plan"),
        ("8.9", "tensorrt_rtx", "sm89.rtx.plan"),
    ],
)
def test_plan_filename(compute_capability: str, flavour: Any, filename: str) -> None:
    assert plan_filename(compute_capability, flavour) == filename


def test_compute_capabilities_have_files_of_their_own() -> None:
    assert len({plan_filename(c) for c in COMPUTE_CAPABILITIES}) == len(COMPUTE_CAPABILITIES)


def test_builds_once_then_reuses(machine: Machine) -> None:
    first = machine.build(NETWORKS)
    assert [(e.model, e.path.name, e.reused) for e in first] == [
        ("face_detector", "sm89.plan", False),
        ("face_mesh", "sm89.plan", False),
    ]
    assert [e.path.read_bytes() for e in first] == [b"plan 1", b"plan 2"]
    assert machine.build(NETWORKS) == [replace(e, reused=True) for e in first]
    assert len(machine.builds) == 2
    assert first[0].tensors == TENSORS


def _replace_onnx(machine: Machine) -> None:
    onnx_path("face_mesh", machine.repository).write_bytes(b"another network")


def _upgrade(machine: Machine) -> None:
    machine.tensorrt = replace(FULL, version="10.6.0")


def _other_gpu(machine: Machine) -> None:
    machine.gpu = RTX_4090


def _plan(machine: Machine) -> Path:
    return onnx_path("face_mesh", machine.repository).with_name("sm89.plan")


def _edit_sidecar(machine: Machine, edit: Callable[[dict[str, Any]], Any]) -> None:
    path = _plan(machine).with_name("sm89.plan.json")
    record = json.loads(path.read_bytes())
    edit(record)
    path.write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("change", "options"),
    [
        (_replace_onnx, {}),
        (_upgrade, {}),
        (_other_gpu, {}),
        (lambda m: None, {"precision": "fp16"}),
        (lambda m: None, {"batch": BatchProfile(1, 8, 16)}),
        (lambda m: None, {"force": True}),
        (lambda m: _plan(m).write_bytes(b"plan"), {}),
        (lambda m: _plan(m).unlink(), {}),
        (lambda m: _plan(m).with_name("sm89.plan.json").unlink(), {}),
        (lambda m: _plan(m).with_name("sm89.plan.json").write_text("{"), {}),
        (lambda m: _edit_sidecar(m, lambda r: r.pop("key")), {}),
        (lambda m: _edit_sidecar(m, lambda r: r["key"].update(recipe=0)), {}),
        (lambda m: _edit_sidecar(m, lambda r: r["key"].update(unknown=1)), {}),
    ],
    ids=[
        "onnx", "tensorrt version", "gpu", "precision", "batch", "force", "plan torn", "plan gone", "sidecar gone",
        "sidecar torn", "sidecar without key", "older recipe", "newer sidecar",
    ],
)  # fmt: skip
def test_stale_is_rebuilt(machine: Machine, change: Callable[[Machine], Any], options: dict[str, Any]) -> None:
    machine.build()
    change(machine)
    assert [e.reused for e in machine.build(**options)] == [False]
    assert _plan(machine).read_bytes() == b"plan 2"
    assert [e.reused for e in machine.build(**{**options, "force": False})] == [True]


def test_one_repository_holds_engines_of_several_gpus(machine: Machine) -> None:
    machine.build()
    machine.gpu = H200
    machine.build()
    machine.gpu = L4
    assert [e.reused for e in machine.build()] == [True]
    machine.gpu = H200
    assert [e.reused for e in machine.build()] == [True]
    assert len(machine.builds) == 2


def test_rtx_builds_for_named_targets_beside_the_engines_of_triton(machine: Machine) -> None:
    machine.build()
    machine.tensorrt = TensorRT("tensorrt_rtx", "tensorrt_rtx", "1.7.1")
    engines = machine.build(compute_capabilities=["8.9", "7.5"])
    assert [(e.path.name, e.key.gpu) for e in engines] == [("sm89.rtx.plan", ""), ("sm75.rtx.plan", "")]
    machine.gpu = None  # an engine of TensorRT for RTX does not depend on the machine that built it
    assert [e.reused for e in machine.build(compute_capabilities=["8.9", "7.5"])] == [True, True]


def test_timing_cache_is_kept(machine: Machine) -> None:
    machine.build()
    assert machine.builds[0][2]["timing_cache"] == b""
    assert [p.name for p in machine.timing_caches.iterdir()] == ["tensorrt_10.5.0-8.9-NVIDIA_L4.cache"]
    machine.build(force=True)
    assert machine.builds[1][2]["timing_cache"] == b"times"


def test_progress_names_the_engine(machine: Machine) -> None:
    seen: list[tuple[str, int, int]] = []
    machine.build(progress=lambda *step: seen.append(step))
    assert seen == [("face_mesh sm89.plan: Timing", 3, 10)]


def test_nothing_to_build_for(machine: Machine) -> None:
    machine.gpu = None
    with pytest.raises(ModelBuildError, match=r"tensorrt 10.5.0 has no GPU to build for.*--gpus all"):
        machine.build()
    machine.tensorrt = TensorRT("tensorrt_rtx", "tensorrt_rtx", "1.7.1")
    with pytest.raises(ModelBuildError, match=r"name the compute capabilities to build for, such as 8.9"):
        machine.build()


def test_missing_onnx(machine: Machine) -> None:
    onnx_path("face_mesh", machine.repository).unlink()
    with pytest.raises(ModelBuildError, match=r"face_mesh/1/model.onnx is missing; run scripts/build_models.py first"):
        machine.build()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (errno.ENOSPC, r"no space left on the disk for .*sm89.plan \(0.0 MB\); free some and run this again"),
        (errno.EDQUOT, r"no space left on the disk"),
        (errno.EROFS, r"sm89.plan cannot be written: Read-only file system"),
    ],
    ids=errno.errorcode.get,
)
def test_disk_errors(machine: Machine, code: int, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(path: Path, data: bytes) -> None:
        raise OSError(code, {errno.EROFS: "Read-only file system"}.get(code, "full"))

    monkeypatch.setattr(engine_store, "write_atomically", write)
    with pytest.raises(ModelBuildError, match=message):
        machine.build()
    assert not _plan(machine).exists()


def test_a_crash_between_plan_and_sidecar_is_noticed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.build()
    _replace_onnx(machine)
    real = engine_store.write_atomically

    def write(path: Path, data: bytes) -> None:
        if path.suffix == ".json":
            raise KeyboardInterrupt
        real(path, data)

    monkeypatch.setattr(engine_store, "write_atomically", write)
    with pytest.raises(KeyboardInterrupt):
        machine.build()
    assert _plan(machine).read_bytes() == b"plan 2"
    assert read_engine("face_mesh", _plan(machine)) is None


def test_required_engine_is_there(machine: Machine) -> None:
    (built,) = machine.build()
    assert machine.require() == replace(built, reused=True)


def _no_gpu(machine: Machine) -> None:
    machine.gpu = None


def _other_type(machine: Machine) -> None:
    machine.gpu = H200


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_no_gpu, "needs an NVIDIA GPU, but there is none; use the CPU profile"),
        (
            _other_type,
            r"no intact engine for the NVIDIA H200 .*9.0 .*sm90.plan\); there are only sm89.plan: run .*--engine",
        ),
        (_other_gpu, r"sm89.plan was built on NVIDIA L4, but this machine has NVIDIA GeForce RTX 4090 .*: run"),
        (_replace_onnx, r"sm89.plan was built from another model.onnx: run scripts/build_models.py --engine"),
        (lambda m: _plan(m).write_bytes(b""), r"no intact engine for the NVIDIA L4"),
        (lambda m: shutil.rmtree(_plan(m).parent), r"there is none yet: run scripts/build_models.py --engine"),
    ],
    ids=["no gpu", "other gpu type", "other gpu of the type", "other network", "torn", "nothing built"],
)
def test_required_engine_is_missing(machine: Machine, change: Callable[[Machine], Any], message: str) -> None:
    machine.build()
    change(machine)
    with pytest.raises(ModelBuildError, match=message):
        machine.require()


def test_fresh_engines_need_no_tensorrt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the real TensorRT for RTX: the second run does not even import it."""
    source = onnx_path("face_mesh")
    if not source.is_file():
        pytest.fail(f"{source} is missing: run `make models` before the tests")
    target = onnx_path("face_mesh", tmp_path)
    target.parent.mkdir(parents=True)
    shutil.copy(source, target)

    def run() -> Engine:
        return build_engines(
            ["face_mesh"], flavour="tensorrt_rtx", compute_capabilities=["8.6"], model_repository=tmp_path
        )[0]

    built = run()
    monkeypatch.setattr(TensorRT, "load", lambda self: pytest.fail("imported TensorRT"))
    assert run() == replace(built, reused=True)
    assert not built.reused
    assert [t.name for t in built.tensors] == ["CROPS", "CROP_LANDMARKS", "PRESENCE"]
