"""The sweep itself: profiles take turns in rounds, one server at a time, case after case."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

from facegraph_server.nvidia_smi import identify_gpu
from facegraph_server.paths import MODEL_REPOSITORY
from facegraph_server.profiles import loaded_models

from perf_sweep.analyzer import PerfAnalyzer
from perf_sweep.cases import Case, make_cases
from perf_sweep.errors import AnalyzerError, SweepError
from perf_sweep.inputs import ModelInput
from perf_sweep.measurement import Addresses, Measurement, Settings, measure
from perf_sweep.probe import probe
from perf_sweep.results import ResultFolder
from perf_sweep.served import MemoryPeak, ServedProfile, find_running, start_profile


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes:
        profiles: each gets a server of its own, one at a time.
        models: see :func:`perf_sweep.cases.make_cases`; likewise the next five.
        protocols: see ``models``.
        shared_memory: see ``models``.
        batches: see ``models``.
        concurrencies: see ``models``.
        rates_per_s: see ``models``.
        rounds: how often the profiles take turns.
        settings: of perf_analyzer.
        running: measure this server instead of starting one; ``profiles`` then names its profile.

    """

    profiles: tuple[str, ...]
    models: tuple[str, ...]
    protocols: tuple[str, ...]
    shared_memory: tuple[str, ...]
    batches: tuple[int, ...]
    concurrencies: tuple[int, ...]
    rates_per_s: tuple[float, ...] = ()
    rounds: int = 1
    settings: Settings = field(kw_only=True)
    running: Addresses | None = None

    def cases(self, profile: str) -> list[Case]:
        """Return the cases of a profile: those of the models that it serves."""
        return make_cases(
            profile,
            self.models,
            loaded_models(MODEL_REPOSITORY, profile),
            protocols=self.protocols,
            shared_memory=self.shared_memory,
            batches=self.batches,
            concurrencies=self.concurrencies,
            rates_per_s=self.rates_per_s,
        )

    def turns(self) -> Iterator[tuple[int, str]]:
        """Yield rounds, from 1 on, and profiles; every other round runs backwards, so that a drift hits both alike."""
        for number in range(1, self.rounds + 1):
            for profile in self.profiles if number % 2 else reversed(self.profiles):
                yield number, profile

    def not_served(self, profile: str) -> list[str]:
        """Return the models that a profile has only as a part of others."""
        return [model for model in self.models if model not in loaded_models(MODEL_REPOSITORY, profile)]

    def require_cases(self) -> None:
        """Raise :class:`SweepError` if there is nothing to measure."""
        if not self.size:
            raise SweepError(
                f"nothing to measure: {' and '.join(self.profiles)} do not serve {', '.join(self.models)} by themselves"
            )

    @property
    def size(self) -> int:
        """How many times perf_analyzer measures."""
        return self.rounds * sum(len(self.cases(profile)) for profile in self.profiles)


@dataclass
class Outcome:
    """What came of it.

    Attributes:
        measured: in order of time.
        failed: cases that could not be measured, and why.
        triton: the server's version.
        interrupted: whether it was stopped before its end.

    """

    measured: list[Measurement] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    triton: str = ""
    interrupted: bool = False


class Progress:
    """Told what happens; does nothing by itself."""

    def starting(self, profile: str) -> None:
        """Say that a server starts."""

    def measuring(self, case: Case) -> None:
        """Say that a case begins."""

    def measured(self, measurement: Measurement) -> None:
        """Say what a case gave."""

    def failed(self, case: Case, why: str) -> None:
        """Say that a case gave nothing."""


def sweep(
    plan: Plan, analyzer: PerfAnalyzer, inputs: Mapping[str, ModelInput], results: ResultFolder, progress: Progress
) -> Outcome:
    """Measure every case of a plan; what is finished is in the folder at once.

    A case that fails is recorded and the next one follows. Ctrl-C ends the sweep; what was measured is returned.

    Args:
        plan: what.
        analyzer: with what.
        inputs: the requests of each model.
        results: where to.
        progress: told what happens.

    Raises:
        ServerStartError: a server does not start.

    """
    for model in plan.models:
        inputs[model].write(results.input_file(model))
    return _Sweep(plan, analyzer, inputs, results, progress).run()


class _Sweep:
    """One sweep under way."""

    def __init__(
        self,
        plan: Plan,
        analyzer: PerfAnalyzer,
        inputs: Mapping[str, ModelInput],
        results: ResultFolder,
        progress: Progress,
    ) -> None:
        self._plan, self._analyzer, self._inputs = plan, analyzer, inputs
        self._results, self._progress = results, progress
        self._outcome = Outcome()
        self._begun = 0
        self._request_s: dict[tuple[str, str], float] = {}

    def run(self) -> Outcome:
        """Measure all of it."""
        try:
            for number, profile in self._plan.turns():
                self._progress.starting(profile)
                with self._server(profile) as server:
                    self._outcome.triton = server.triton_version()
                    for case in self._plan.cases(profile):
                        self._try(case, number, server)
        except KeyboardInterrupt:
            self._outcome.interrupted = True
        return self._outcome

    def _server(self, profile: str) -> AbstractContextManager[ServedProfile]:
        if self._plan.running is not None:
            return nullcontext(find_running(self._plan.running))
        return start_profile(profile, shared_memory=any(kind != "none" for kind in self._plan.shared_memory))

    def _try(self, case: Case, number: int, server: ServedProfile) -> None:
        self._progress.measuring(case)
        try:
            measurement = self._measure(case, number, server)
            server.wait_until_idle()
        except (AnalyzerError, SweepError, OSError) as error:
            self._outcome.failed.append(f"{case}: {error}")
            self._progress.failed(case, str(error))
            return
        self._outcome.measured.append(measurement)
        self._results.add(measurement)
        self._progress.measured(measurement)

    def _measure(self, case: Case, number: int, server: ServedProfile) -> Measurement:
        self._begun += 1
        model_input, known = self._inputs[case.model], (case.profile, case.model)
        if known not in self._request_s:
            self._request_s[known] = probe(server.addresses, case.model, model_input.steps[0])
        with MemoryPeak(watch=server.own) as memory:
            measurement = measure(
                self._analyzer,
                case,
                self._plan.settings.for_requests_of(self._request_s[known]),
                server.addresses,
                input_file=self._results.input_file(case.model),
                output_bytes=model_input.largest_output_bytes,
                gpu_metrics=not server.own or identify_gpu() is not None,
                steps=server.steps(case.model),
                folder=self._results.raw(self._begun),
                round_number=number,
            )
        return replace(measurement, server_memory_mib=memory.peak_mib)
