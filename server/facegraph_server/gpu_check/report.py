"""What the GPU check found: a row for each case, the targets that they reach or miss, JSON and Markdown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from facegraph_server.checks import (
    CHECK_COLUMNS,
    Check,
    at_least,
    at_most,
    equal,
    json_number,
    markdown_table,
    not_judged,
)
from facegraph_server.gpu_check.timing import HostCalls, Timing

LEVEL = "target"

THROUGHPUT_TARGET = 2.3
"""Frames per second with a graph over those of the same function run eagerly, at 1 and at 4 frames at once."""

LATENCY_TARGET = 1.8
"""Median latency without a graph over that with one, likewise."""

MEMORY_TARGET = 0.05
"""Extra memory of a process with graphs, as a part of what it holds without."""

DIFFERENCE_TARGET = 1e-5
"""Largest difference between graph and eager, as a part of the output's range."""

_JUDGED_FRAMES = (1, 4)
_NOT_MEASURED = "not measured"


@dataclass
class Way:
    """One way to run a case.

    Attributes:
        timing: how long it took.
        calls: what the host asked of the GPU for one call; None on a CPU.
        memory_bytes: of the GPU, for its buffers, working memory and graph; None on a CPU.
        gpu_percent: median utilisation of the GPU that ``nvidia-smi`` reported during the calls.

    """

    timing: Timing
    calls: HostCalls | None = None
    memory_bytes: int | None = None
    gpu_percent: float | None = None


@dataclass
class Row:
    """One case.

    Attributes:
        part: ``frame``, ``texture`` (a frame with one), ``network``, ``tensorrt`` or ``served``.
        name: what was measured.
        frames: frames, or rows of a batch, of one call.
        eager: without a graph.
        graph: with one; None where there is none.
        capture_s: seconds to warm up and capture, when the libraries are loaded already.
        difference: largest difference of the results as a part of their range; None where there was nothing to
            compare, such as a frame in which no face was found.

    """

    part: str
    name: str
    frames: int
    eager: Way
    graph: Way | None = None
    capture_s: float | None = None
    difference: float | None = None

    @property
    def throughput_ratio(self) -> float | None:
        """Calls per second with a graph over those without."""
        return self.graph.timing.calls_per_s / self.eager.timing.calls_per_s if self.graph else None

    @property
    def latency_ratio(self) -> float | None:
        """Median latency without a graph over that with one."""
        return self.eager.timing.median_ms / self.graph.timing.median_ms if self.graph else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; the ratios too."""
        ratios = {"throughput_ratio": self.throughput_ratio, "latency_ratio": self.latency_ratio}
        plain = asdict(self) | ratios | {"difference": json_number(self.difference)}
        for name, way in (("eager", self.eager), ("graph", self.graph)):
            if way is not None:
                plain[name] |= {"timing": way.timing._asdict(), "calls": way.calls and way.calls._asdict()}
        return plain

    def cells(self) -> list[str]:
        """Return the cells of the table, see :data:`COLUMNS`."""
        ways = [way for way in (self.eager, self.graph) if way is not None]
        return [
            self.name,
            _pair(f"{way.timing.median_ms:.3f}" for way in ways),
            _pair(f"{way.timing.p99_ms:.3f}" for way in ways),
            f"{ratio:.2f}" if (ratio := self.latency_ratio) else "",
            f"{ratio:.2f}" if (ratio := self.throughput_ratio) else "",
            _pair(_calls(way.calls) for way in ways if way.calls),
            _pair(f"{way.memory_bytes / 2**20:.0f}" for way in ways if way.memory_bytes is not None),
            _pair(f"{way.gpu_percent:.0f}" for way in ways if way.gpu_percent is not None),
            f"{self.capture_s:.2f}" if self.capture_s is not None else "",
            f"{self.difference:.1g}" if self.difference is not None else "",
            f"{max(way.timing.spread for way in ways):.0%}",
        ]


COLUMNS = (
    "case (eager -> graph)",
    "p50 ms",
    "p99 ms",
    "latency ratio",
    "rate ratio",
    "launches + copies",
    "MiB",
    "GPU %",
    "capture s",
    "difference",
    "spread",
)


@dataclass
class GpuReport:
    """All that was measured.

    Attributes:
        machine: GPU, driver, limits, versions, command.
        rows: the cases.
        memory_bytes: of a process by ``eager`` and ``graph``; empty where it was not measured.
        failed: what should have run and did not, and why.
        left_out: what is not here or did not fit into the time.

    """

    machine: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    memory_bytes: dict[str, int] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether nothing failed and no target was missed; a target that was not measured is not missed."""
        return not self.failed and all(target.passed is not False for target in self.targets())

    def targets(self) -> list[Check]:
        """Judge the targets, each by its worst case; only a measurement with a graph counts."""
        frames = [row for row in self.rows if row.part == "frame" and row.graph is not None]
        targets = []
        for at_once in _JUDGED_FRAMES:
            rows = [row for row in frames if row.frames == at_once]
            name = f"throughput, graph over eager, {at_once} at once"
            targets.append(_least(name, [row.throughput_ratio for row in rows], THROUGHPUT_TARGET))
            name = f"p50 latency, eager over graph, {at_once} at once"
            targets.append(_least(name, [row.latency_ratio for row in rows], LATENCY_TARGET))
        single = [row for row in self.rows if row.part in ("frame", "texture") and row.frames == 1]
        targets.append(_launches(single))
        extra = None if not frames else self.extra_memory
        targets.append(_most("extra memory of a process with graphs", [extra], MEMORY_TARGET))
        differences = [row.difference for row in self.rows if row.graph is not None]
        targets.append(_most("difference between graph and eager, of range", differences, DIFFERENCE_TARGET))
        return targets

    @property
    def extra_memory(self) -> float | None:
        """Extra memory with graphs as a part of that without; None where it was not measured."""
        if {"eager", "graph"} - self.memory_bytes.keys() or self.memory_bytes["eager"] <= 0:
            return None
        return self.memory_bytes["graph"] / self.memory_bytes["eager"] - 1

    def to_json(self) -> str:
        """Return everything as JSON."""
        report = {
            "passed": self.passed,
            "machine": self.machine,
            "targets": [target.to_dict() for target in self.targets()],
            "memory_bytes": self.memory_bytes,
            "rows": [row.to_dict() for row in self.rows],
            "failed": self.failed,
            "left_out": self.left_out,
        }
        return json.dumps(report, indent=1) + "\n"

    def to_markdown(self) -> str:
        """Return everything as tables."""
        lines = ["# GPU check", "", *(f"- {name}: {value}" for name, value in self.machine.items()), ""]
        lines += markdown_table(COLUMNS, [row.cells() for row in self.rows])
        for how, size in self.memory_bytes.items():
            lines += ["", f"Memory of a process that serves the largest frame, {how}: {size / 2**20:.0f} MiB."]
        lines += ["", *markdown_table(CHECK_COLUMNS, [target.cells() for target in self.targets()])]
        for title, texts in (("Failed", self.failed), ("Not measured", self.left_out)):
            if texts:
                lines += ["", f"{title}:", "", *(f"- {text}" for text in texts)]
        return "\n".join(lines) + "\n"


def _least(name: str, found: Sequence[float | None], bar: float) -> Check:
    values = [value for value in found if value is not None]
    return at_least(LEVEL, name, min(values), bar) if values else not_judged(LEVEL, name, _NOT_MEASURED)


def _most(name: str, found: Sequence[float | None], bar: float) -> Check:
    values = [value for value in found if value is not None]
    return at_most(LEVEL, name, max(values), bar) if values else not_judged(LEVEL, name, _NOT_MEASURED)


def _launches(frames: Sequence[Row]) -> Check:
    """Judge that a frame is one launch: that of its graph, and no kernel beside it."""
    name = "launches of a frame with a graph"
    # Where the profiler sees no kernel of an eager run it is blind, and its zero for the graph means nothing.
    watched = [
        row.graph.calls
        for row in frames
        if row.graph and row.graph.calls and row.eager.calls and row.eager.calls.kernel_launches
    ]
    if not watched:
        return not_judged(LEVEL, name, _NOT_MEASURED)
    worst = max(watched, key=lambda calls: abs(calls.graph_launches + calls.kernel_launches - 1))
    return equal(LEVEL, name, worst.graph_launches + worst.kernel_launches, 1)


def _calls(calls: HostCalls) -> str:
    return f"{calls.kernel_launches + calls.graph_launches:g} + {calls.copies:g}"


def _pair(texts: Any) -> str:
    return " -> ".join(texts)
