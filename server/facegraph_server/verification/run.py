"""Run the levels of a verification: networks, whole photos, a soak, and the proof that graphs were used.

The profile under test answers first, then the one that it is compared with: never both at once, so that the memory
is that of one server.
"""

from __future__ import annotations

import json
import platform
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from facegraph_client import FaceClient, InputError

from facegraph_server.checks import CHECK_COLUMNS, Check, markdown_table, not_judged
from facegraph_server.cuda_device import first_gpu
from facegraph_server.embedded import EmbeddedServer
from facegraph_server.graphs_off import without_graphs
from facegraph_server.nvidia_smi import identify_gpu
from facegraph_server.paths import MODEL_REPOSITORY
from facegraph_server.profiles import check_profile
from facegraph_server.verification import networks, pipeline
from facegraph_server.verification.graph_use import check_counters, check_log, set_verbose_level
from facegraph_server.verification.soak import Sample, SoakResult, check_soak, server_memory, soak

LEVELS = ("networks", "pipeline", "soak")

_TIMEOUT_S = 120.0
_SOAK_PHOTOS = ("plain", "two faces", "no face")
_SOAK_SAMPLES = 60
_LEAST_INTERVAL_S = 0.5


@dataclass(frozen=True)
class VerificationPlan:
    """What to verify.

    Attributes:
        profiles: the one under test, and the one that it must agree with. Where both are ``fused``, the second runs
            with its graphs switched off.
        levels: some of :data:`LEVELS`.
        soak_s: length of the soak; memory is judged from 300 s on.

    Raises:
        InputError: an unknown level.
        ServerStartError: an unknown profile.

    """

    profiles: tuple[str, str] = ("tensorrt", "nograph")
    levels: Sequence[str] = LEVELS
    soak_s: float = 300.0

    def __post_init__(self) -> None:
        for profile in self.profiles:
            check_profile(profile)
        if unknown := sorted(set(self.levels) - set(LEVELS)):
            raise InputError(f"there is no level {', '.join(unknown)}; choose from {', '.join(LEVELS)}")

    @property
    def names(self) -> tuple[str, str]:
        """What the two servers are called in the report."""
        first, second = self.profiles
        if first != second:
            return first, second
        return first, f"{second} without graphs" if second == "fused" else f"{second}, second server"

    def switches_graphs_off(self, which: int) -> bool:
        """Tell whether the first (0) or second (1) server is the fused profile without its graphs."""
        return which == 1 and self.profiles == ("fused", "fused")


@dataclass(frozen=True)
class VerificationReport:
    """All checks of one run.

    Attributes:
        machine: what the results depend on, by name.
        checks: in the order in which they were made.
        soak_samples: what the soak read, in order of time.

    """

    machine: dict[str, Any]
    checks: Sequence[Check]
    soak_samples: Sequence[Sample] = ()

    @property
    def verified(self) -> bool:
        """Whether something was judged and nothing failed."""
        return any(check.passed for check in self.checks) and all(check.passed is not False for check in self.checks)

    def to_json(self) -> str:
        """Return the report as JSON; infinite numbers are written as text."""
        report = {
            "verified": self.verified,
            "machine": self.machine,
            "checks": [check.to_dict() for check in self.checks],
            "soak_samples": [sample.to_dict() for sample in self.soak_samples],
        }
        return json.dumps(report, indent=1) + "\n"

    def to_markdown(self) -> str:
        """Return the report as a table."""
        lines = [f"# CUDA-graph verification: {'verified' if self.verified else 'NOT verified'}", ""]
        lines += [f"- {name}: {value}" for name, value in self.machine.items()]
        return "\n".join([*lines, "", *markdown_table(CHECK_COLUMNS, [check.cells() for check in self.checks])]) + "\n"


@dataclass
class _Seen:
    """What one server showed."""

    networks: tuple[networks.Answers, float] = field(default_factory=lambda: ({}, 0.0))
    pipeline: pipeline.PipelineAnswers | None = None
    soak: SoakResult | None = None
    graph_use: list[Check] = field(default_factory=list)


def verify(
    plan: VerificationPlan,
    progress: Callable[[str], None] = lambda _: None,
    *,
    photos: Sequence[str] | None = None,
    model_repository: Path = MODEL_REPOSITORY,
) -> VerificationReport:
    """Run the levels of a plan.

    Args:
        plan: what to verify.
        progress: told what comes next.
        photos: names of :func:`pipeline.verification_photos` to ask for, two at least; None is all of them.
        model_repository: the folder of models.

    Raises:
        FaceGraphError: something could not run: no engine, no server, no answer.

    """
    encoded = pipeline.verification_photos()
    asked = {name: encoded[name] for name in (encoded if photos is None else photos)}
    machine = _machine(plan)
    checks: list[Check] = []
    if "networks" in plan.levels:
        progress("networks in this process")
        checks += _check_in_process(machine)
    first, second = (_ask(plan, which, asked, progress, model_repository) for which in (0, 1))
    if "networks" in plan.levels:
        checks += networks.compare_served(first.networks, second.networks)
    if first.pipeline is not None and second.pipeline is not None:
        for name, answers in zip(plan.names, (first.pipeline, second.pipeline), strict=True):
            checks += pipeline.check_orders(answers, name)
        progress("comparing the textures")
        bars = pipeline.bars_for(plan.profiles)
        checks += pipeline.check_pair(first.pipeline, second.pipeline, plan.names, bars)
    if first.soak is not None:
        checks += check_soak(first.soak, plan.profiles[0])
    samples = first.soak.samples if first.soak is not None else ()
    return VerificationReport(machine, [*checks, *first.graph_use, *second.graph_use], samples)


def _check_in_process(machine: dict[str, Any]) -> list[Check]:
    if find_spec("torch") is None:
        why = "torch is not installed: pip install -e '.[gpu]'"
        return [not_judged(networks.LEVEL, "networks in this process", why)]
    import torch  # noqa: PLC0415

    machine["torch"] = torch.__version__
    return networks.check_in_process("cuda" if torch.cuda.is_available() else "cpu")


def _ask(
    plan: VerificationPlan,
    which: int,
    photos: dict[str, bytes],
    progress: Callable[[str], None],
    model_repository: Path,
) -> _Seen:
    """Ask one server what the plan's levels need; the soak is for the profile under test alone."""
    profile, seen = plan.profiles[which], _Seen()
    soaks = "soak" in plan.levels and which == 0
    if not soaks and not {"networks", "pipeline"} & set(plan.levels):
        return seen
    progress(f"{profile}: waiting for the server")
    with (
        _server(plan, which, model_repository) as server,
        FaceClient(server.grpc_address, timeout_s=_TIMEOUT_S) as client,
    ):
        if "networks" in plan.levels:
            progress(f"{profile}: networks")
            seen.networks = networks.ask_served_networks(server.grpc_address)
        if "pipeline" in plan.levels:
            seen.pipeline = pipeline.ask_pipeline(
                client.reconstruct, photos, lambda text: progress(f"{profile}: {text}")
            )
        client.reconstruct(next(iter(photos.values())))  # so that log and counters show something at every level
        seen.graph_use = _graph_use(server, graphs=not plan.switches_graphs_off(which), repository=model_repository)
        if soaks:
            set_verbose_level(server.http_address, 0)  # a long soak must not fill the disk
            progress(f"{profile}: soak of {plan.soak_s:g} s")
            questions = [photos[name] for name in _SOAK_PHOTOS if name in photos]
            seen.soak = soak(
                lambda i: pipeline.answer_bytes(client.reconstruct(questions[i])),
                len(questions),
                plan.soak_s,
                interval_s=max(plan.soak_s / _SOAK_SAMPLES, _LEAST_INTERVAL_S),
                read_memory=server_memory,
            )
    return seen


@contextmanager
def _server(plan: VerificationPlan, which: int, model_repository: Path) -> Iterator[EmbeddedServer]:
    with tempfile.TemporaryDirectory(prefix="facegraph-verify-") as name:
        folder = Path(name)
        if plan.switches_graphs_off(which):
            model_repository = without_graphs(folder, model_repository)
        with EmbeddedServer(
            profile=plan.profiles[which],
            model_repository=model_repository,
            log_file=folder / "triton.log",
            arguments=("--log-verbose=1",),
        ) as server:
            yield server


def _graph_use(server: EmbeddedServer, *, graphs: bool, repository: Path) -> list[Check]:
    if server.profile != "fused":
        return check_log(server.log_path.read_text(errors="replace"), server.profile, repository)
    with urlopen(f"http://{server.metrics_address}/metrics", timeout=_TIMEOUT_S) as answer:
        metrics = str(answer.read().decode())
    return check_counters(metrics, has_gpu=first_gpu() is not None, graphs=graphs)


def _machine(plan: VerificationPlan) -> dict[str, Any]:
    gpu = identify_gpu()
    return {
        "profiles": " against ".join(plan.names),
        "GPU": "none" if gpu is None else f"{gpu.name}, driver {gpu.driver}, power limit {gpu.power_limit_w} W",
        "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
    }
