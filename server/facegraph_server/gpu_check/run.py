"""Everything that needs a GPU, in one run of limited time: what CUDA graphs save, what they cost, what they change.

The frames come first, as the targets are theirs; then memory, networks, TensorRT and Triton where they are installed. A
part that no longer fits into the time is left out and named.
"""

from __future__ import annotations

import platform
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

import numpy as np
import torch
from facegraph_client import FaceGraphError, SetupError
from numpy.typing import NDArray

from facegraph_server.contract import MAX_BATCH
from facegraph_server.frame_graph import FrameGraph
from facegraph_server.gpu_check.cases import Case, frame_case, frame_name, load_networks, network_case, network_name
from facegraph_server.gpu_check.memory import process_memory_bytes, used_bytes
from facegraph_server.gpu_check.report import GpuReport, Row, Way
from facegraph_server.gpu_check.timing import alternate, watch_host_calls
from facegraph_server.nvidia_smi import GpuSampler, identify_gpu
from facegraph_server.paths import NETWORKS, SAMPLE_PHOTO, onnx_path
from facegraph_server.torch_networks import TorchNetwork
from facegraph_server.verification.networks import largest_difference, pixels

Progress = Callable[[str], None]

PARTS = ("frame", "memory", "network", "tensorrt", "served")

_CONCURRENCIES = (1, 4)
_ENGINE_BUILD_S = 60.0
_SERVER_START_S = 45.0


class NoGpuError(SetupError):
    """There is no GPU to measure."""


@dataclass(frozen=True)
class GpuCheckPlan:
    """How much to measure.

    Attributes:
        device: ``cuda`` or ``cpu``. On a CPU everything runs eagerly: that tries the check, and measures no graph.
        budget_s: all the time there is.
        parts: some of :data:`PARTS`.
        frame_sizes_px: width and height of the frames.
        batches: frames in one call, and batch sizes of the networks.
        slice_s: how long each way is timed in each round.
        rounds: how often the ways take turns.
        sample_s: how long each way runs while the GPU's utilisation is sampled.

    """

    device: str = "cuda"
    budget_s: float = 420.0
    parts: tuple[str, ...] = PARTS
    frame_sizes_px: tuple[tuple[int, int], ...] = ((1280, 720), (1920, 1080))
    batches: tuple[int, ...] = (1, 2, 4, 8, MAX_BATCH)
    slice_s: float = 0.2
    rounds: int = 5
    sample_s: float = 1.0

    @property
    def case_s(self) -> float:
        """About how long one case takes, capture and warm-up included."""
        return 2 * (self.slice_s * self.rounds + self.sample_s) + 3.0


def trial_plan(budget_s: float, parts: tuple[str, ...]) -> GpuCheckPlan:
    """Return a plan that tries everything on a CPU, small and short."""
    return GpuCheckPlan("cpu", budget_s, parts, ((320, 240),), (1,), slice_s=0.05, rounds=2)


def check_gpu(plan: GpuCheckPlan, command: str, progress: Progress = lambda _: None) -> GpuReport:
    """Measure.

    Args:
        plan: what.
        command: how it was started, for the report.
        progress: told what comes next.

    Raises:
        NoGpuError: the plan asks for a GPU and there is none.
        ModelBuildError: the networks have not been built.

    """
    if plan.device != "cpu" and not torch.cuda.is_available():
        raise NoGpuError(
            f"torch {torch.__version__} sees no GPU (CUDA in this torch: {torch.version.cuda or 'none'}); run it where "
            "nvidia-smi shows one, with a torch for CUDA, or use --device cpu to try the check itself"
        )
    report = GpuReport(describe_machine(plan, command))
    check = _GpuCheck(plan, report, progress)
    parts = {
        "frame": check.frame,
        "memory": check.memory,
        "network": check.network,
        "tensorrt": check.tensorrt,
        "served": check.served,
    }
    try:
        for part in plan.parts:
            parts[part]()
    except KeyboardInterrupt:
        report.failed.append("interrupted: what comes after the last row is missing")
    return report


def describe_machine(plan: GpuCheckPlan, command: str) -> dict[str, Any]:
    """Return what the numbers depend on."""
    machine: dict[str, Any] = {
        "GPU": "none used: graphs are not applicable",
        "torch": torch.__version__,
        "Python": platform.python_version(),
        "NumPy": np.__version__,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "command": command,
    }
    if plan.device != "cpu":
        machine |= {
            "GPU": torch.cuda.get_device_name(plan.device),
            "CUDA": torch.version.cuda,
            "cuDNN": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        }
        if (gpu := identify_gpu()) is not None:
            machine |= {
                "driver": gpu.driver,
                "GPU memory": f"{gpu.memory_mib} MiB",
                "power limit": f"{gpu.power_limit_w} W",
                "highest clock": f"{gpu.max_clock_mhz} MHz",
            }
    return machine


class _GpuCheck:
    """The parts of one check: they share device, time and report."""

    def __init__(self, plan: GpuCheckPlan, report: GpuReport, progress: Progress) -> None:
        self._plan, self._report, self._progress = plan, report, progress
        self._end = time.monotonic() + plan.budget_s
        self._has_gpu = plan.device != "cpu"
        self._networks = load_networks(plan.device)

    def frame(self) -> None:
        """Whole frames: video frames of every size, and photos, which have more detector views, of the smallest."""
        kinds = [(size, batch, True) for size in self._plan.frame_sizes_px for batch in self._plan.batches]
        for size, frames, tracking in [*kinds, (self._plan.frame_sizes_px[0], 1, False)]:
            make = partial(frame_case, self._networks, *size, tracking=tracking, frames=frames)
            self._measure("frame", frame_name(*size, tracking=tracking, frames=frames), make)
        self._textured_frame(self._plan.frame_sizes_px[0])

    def _textured_frame(self, size_px: tuple[int, int]) -> None:
        name = frame_name(*size_px, tracking=False, frames=1, textured=True)
        try:
            from facegraph_server.torch_texture import FaceUnwrapper  # noqa: PLC0415

            unwrap = FaceUnwrapper()
        except ModuleNotFoundError as error:  # the layout's constants need more than torch and NumPy
            self._leave_out(name, str(error))
            return
        make = partial(frame_case, self._networks, *size_px, tracking=False, frames=1, unwrap=unwrap)
        self._measure("texture", name, make)

    def memory(self) -> None:
        """Memory of a process that serves the largest frame, without graphs and with."""
        width, height = self._plan.frame_sizes_px[-1]
        for how in ("eager", "graph") if self._has_gpu else ("eager",):
            name = f"memory of a process, {how}"
            if not self._starts(name, 2 * self._plan.case_s):
                continue
            try:
                size = process_memory_bytes(f"{width}x{height}x1", self._plan.device, graphs=how == "graph")
            except (RuntimeError, OSError, TimeoutExpired) as error:
                self._fail(name, error)
            else:
                self._report.memory_bytes[how] = size

    def network(self) -> None:
        """Each network in torch at each batch size."""
        for name in NETWORKS:
            for batch in self._plan.batches:
                make = partial(network_case, name, batch, partial(self._network, name))
                self._measure("network", network_name(name, batch), make)

    def tensorrt(self) -> None:
        """Each network as a TensorRT engine, built here, enqueued and replayed."""
        if not self._has_gpu:
            self._leave_out("TensorRT", "no GPU runs an engine")
            return
        from facegraph_server.cuda_device import first_gpu  # noqa: PLC0415
        from facegraph_server.engine import build_plan, find_tensorrt  # noqa: PLC0415
        from facegraph_server.gpu_check.tensorrt_network import TensorRtNetwork  # noqa: PLC0415

        try:
            tensorrt = find_tensorrt()
            trt = tensorrt.load()
        except FaceGraphError as error:
            self._leave_out("TensorRT", str(error))
            return
        gpu = first_gpu()
        for name in NETWORKS:
            if gpu is None or not self._starts(f"{tensorrt} {name}", _ENGINE_BUILD_S):
                continue
            try:
                engine = build_plan(onnx_path(name).read_bytes(), tensorrt, gpu).data
            except (FaceGraphError, RuntimeError) as error:
                self._fail(f"{tensorrt} {name}", error)
                continue
            for batch in self._plan.batches:
                shape, kind = pixels(name, batch).shape, tensorrt.flavour
                network = partial(TensorRtNetwork, trt, engine, shape, device=self._plan.device)
                make = partial(network_case, name, batch, network, kind)
                self._measure("tensorrt", network_name(name, batch, kind), make)

    def served(self) -> None:
        """A Triton of this machine through gRPC: the fused profile, and the engines' profiles where it has them."""
        try:
            from facegraph_server.graphs_off import without_graphs  # noqa: PLC0415
            from facegraph_server.triton_install import find_triton  # noqa: PLC0415

            triton = find_triton()
        except (FaceGraphError, ModuleNotFoundError) as error:
            self._leave_out("Triton", str(error))
            return
        self._serve("fused", lambda folder: {"graph": {}, "eager": {"model_repository": without_graphs(folder)}})
        if triton.has_tensorrt:
            self._serve("tensorrt", lambda _: {"graph": {}, "eager": {"profile": "nograph"}})
        else:
            self._leave_out("Triton, profiles tensorrt and nograph", "this Triton has no TensorRT backend")

    def _serve(self, profile: str, servers: Callable[[Path], Mapping[str, Mapping[str, Any]]]) -> None:
        """Time the sample photo against two servers by turns, or on a CPU against the eager one."""
        name = f"Triton, profile {profile}"
        needs_s = _SERVER_START_S + 2 * len(_CONCURRENCIES) * self._plan.rounds * self._plan.slice_s
        if not self._starts(name, needs_s):
            return
        try:
            self._time_servers(profile, servers)
        except (FaceGraphError, ModuleNotFoundError, OSError) as error:
            self._fail(name, error)

    def _time_servers(self, profile: str, servers: Callable[[Path], Mapping[str, Mapping[str, Any]]]) -> None:
        from facegraph_client import FaceClient  # noqa: PLC0415

        from facegraph_server.embedded import EmbeddedServer  # noqa: PLC0415

        photo = SAMPLE_PHOTO.read_bytes()
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="facegraph-gpu-")))
            ways: dict[str, Callable[[], object]] = {}
            for how, options in servers(folder).items():
                if how == "graph" and not self._has_gpu:
                    continue
                server = stack.enter_context(EmbeddedServer(**({"profile": profile} | dict(options))))
                client = stack.enter_context(FaceClient(server.grpc_address))
                ways[how] = partial(client.landmarks, photo)
            for concurrency in _CONCURRENCIES:
                self._progress(f"Triton, profile {profile}, concurrency {concurrency}")
                times = alternate(ways, self._plan.slice_s, rounds=self._plan.rounds, concurrency=concurrency)
                name = f"gRPC face_landmarks, profile {profile}, concurrency {concurrency}"
                graph = Way(times["graph"]) if "graph" in times else None
                self._report.rows.append(Row("served", name, 1, Way(times["eager"]), graph))

    def _network(self, name: str) -> TorchNetwork:
        return self._networks[name]

    def _measure(self, part: str, name: str, make: Callable[[], Case]) -> None:
        """Measure one case without a graph and, on a GPU, with one; a failure is reported and the others go on."""
        if not self._starts(name, self._plan.case_s):
            return
        try:
            self._report.rows.append(self._row(part, make()))
        except (FaceGraphError, RuntimeError) as error:  # torch's own, out of memory among them, are RuntimeErrors
            self._fail(name, error)

    def _row(self, part: str, case: Case) -> Row:
        graphs: dict[str, FrameGraph] = {}
        setup_s, memory_bytes = {}, {}
        found: dict[str, dict[str, NDArray[Any]]] = {}
        with ExitStack() as stack:
            for how in ("eager", "graph") if self._has_gpu else ("eager",):  # eager first: it loads the libraries
                before = self._used_bytes()
                graphs[how] = case.runner(self._plan.device, graphs=how == "graph")
                start = time.perf_counter()
                stack.enter_context(graphs[how])
                setup_s[how] = time.perf_counter() - start
                found[how] = graphs[how].run(case.inputs)
                memory_bytes[how] = used_bytes(self._plan.device) - before
            calls = {how: partial(graph.run, case.inputs) for how, graph in graphs.items()}
            times = alternate(calls, self._plan.slice_s, rounds=self._plan.rounds)
            ways = {how: Way(timing) for how, timing in times.items()}
            for how, call in calls.items() if self._has_gpu else ():
                ways[how].calls = watch_host_calls(call)
                ways[how].gpu_percent = self._utilisation(call)
                ways[how].memory_bytes = memory_bytes[how]
        difference = None
        if "graph" in found and case.shows_something(found["eager"]):
            difference = largest_difference(found["graph"], found["eager"])
        return Row(part, case.name, case.frames, ways["eager"], ways.get("graph"), setup_s.get("graph"), difference)

    def _used_bytes(self) -> int:
        """Return the GPU memory in use, without what torch keeps for later."""
        if self._has_gpu:
            torch.cuda.empty_cache()
        return used_bytes(self._plan.device)

    def _utilisation(self, call: Callable[[], object]) -> float | None:
        with GpuSampler() as sampler:
            end = time.perf_counter() + self._plan.sample_s
            while time.perf_counter() < end:
                call()
        second_half = sampler.readings[len(sampler.readings) // 2 :]  # the first readings still average over before
        values = [value for reading in second_half if (value := reading.utilisation_percent) is not None]
        return float(np.median(values)) if values else None

    def _starts(self, what: str, needs_s: float) -> bool:
        """Tell whether a part may start; if not, say so in the report."""
        left_s = max(self._end - time.monotonic(), 0.0)
        if left_s >= needs_s:
            self._progress(what)
            return True
        self._leave_out(what, f"{left_s:.0f} s of {self._plan.budget_s:g} s were left, too few")
        return False

    def _leave_out(self, what: str, why: str) -> None:
        self._report.left_out.append(f"{what}: {why}")

    def _fail(self, what: str, error: Exception) -> None:
        self._report.failed.append(f"{what}: {error}")
