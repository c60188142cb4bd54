"""Pictures of a sweep: throughput against latency, and where the time of one request goes."""

from __future__ import annotations

import io
import statistics
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from perf_sweep.cases import Case
from perf_sweep.measurement import Measurement

_DPI = 110
_COLUMNS = 2
_PANEL_INCHES = (5.6, 3.6)
_BAR_INCHES = 0.42
_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#882255", "#332288")
_BETWEEN = "between"

_Line = tuple[str, str, int]


def throughput_figure(measured: Sequence[Measurement]) -> Figure:
    """Draw latency over throughput, a panel for each model; every point is a load, its number beside it."""
    models = list(dict.fromkeys(m.case.model for m in measured))
    rows = -(-len(models) // _COLUMNS)
    columns = min(len(models), _COLUMNS)
    figure = _figure(_PANEL_INCHES[0] * columns, _PANEL_INCHES[1] * rows)
    lines = list(dict.fromkeys(_line(m.case) for m in measured))
    colours = {line: _COLOURS[i % len(_COLOURS)] for i, line in enumerate(lines)}
    for i, model in enumerate(models):
        axes = figure.add_subplot(rows, columns, i + 1)
        for line in lines:
            mine = [m for m in measured if m.case.model == model and _line(m.case) == line]
            if mine:
                _draw_line(axes, mine, colours[line], _line_name(line))
        axes.set(title=model, xlabel="images/s", ylabel="latency, ms")
        axes.margins(x=0.08, y=0.08)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="x-small")
    figure.suptitle("Latency over throughput: median, and dotted the 99th percentile", fontsize="medium")
    return figure


def steps_figure(measured: Sequence[Measurement]) -> Figure | None:
    """Draw a bar for each ensemble: what one request, alone, waits for; None where no ensemble was measured so."""
    alone = [m for m in measured if m.steps and m.case.concurrency == 1]
    cases = list(dict.fromkeys(m.case for m in alone))
    if not cases:
        return None
    steps = list(dict.fromkeys(step for m in alone for step in m.steps))
    colours = {step: _COLOURS[i % len(_COLOURS)] for i, step in enumerate(steps)}
    colours[_BETWEEN] = "#dddddd"
    figure = _figure(9.0, 1.6 + _BAR_INCHES * len(cases))
    axes = figure.add_subplot()
    for place, case in enumerate(cases):
        left = 0.0
        for part, width in _parts([m for m in alone if m.case == case]).items():
            axes.barh(place, width, left=left, color=colours[part], label=part)
            left += width
    axes.set_yticks(range(len(cases)), [_bar_name(case) for case in cases])
    axes.invert_yaxis()
    axes.set_xlabel("mean ms of one request alone")
    handles, labels = axes.get_legend_handles_labels()
    named = dict(zip(labels, handles, strict=True))
    figure.legend(named.values(), named.keys(), loc="outside upper center", ncols=5, fontsize="small")
    axes.grid(axis="x", alpha=0.3)
    return figure


def png(figure: Figure) -> bytes:
    """Return a figure as a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI)
    return buffer.getvalue()


def _figure(width_inches: float, height_inches: float) -> Figure:
    # Made without pyplot: no window system, and nothing that outlives the figure.
    figure = Figure(figsize=(width_inches, height_inches), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _draw_line(axes: Axes, measured: Sequence[Measurement], colour: str, name: str) -> None:
    cases = sorted({m.case for m in measured}, key=_load)
    points = [[m for m in measured if m.case == case] for case in cases]
    throughput = [statistics.median(m.images_per_s for m in point) for point in points]
    for percentile, style, label in (("p50_ms", "o-", name), ("p99_ms", "o:", None)):
        latency = [statistics.median(getattr(m, percentile) for m in point) for point in points]
        axes.plot(throughput, latency, style, color=colour, markersize=3, label=label, linewidth=1)
        if percentile == "p50_ms":
            for case, x, y in zip(cases, throughput, latency, strict=True):
                axes.annotate(f"{_load(case):g}", (x, y), (3, 3), textcoords="offset points", fontsize="xx-small")


def _load(case: Case) -> float:
    return case.concurrency if case.concurrency is not None else case.rate_per_s or 0.0


def _line(case: Case) -> _Line:
    return case.profile, case.transport, case.batch


def _line_name(line: _Line) -> str:
    profile, transport, batch = line
    return f"{profile}, {transport}" + (f", batch {batch}" if batch > 1 else "")


def _bar_name(case: Case) -> str:
    return f"{case.model}\n{_line_name(_line(case))}"


def _parts(measured: Sequence[Measurement]) -> dict[str, float]:
    """Return what a request waits for, mean ms, in order; of several rounds the median."""
    parts = {step: statistics.median(m.steps[step].until_answer_ms for m in measured) for step in measured[0].steps}
    # Never negative in truth, but a mean and its parts come from different clocks.
    parts[_BETWEEN] = max(0.0, statistics.median(m.between_ms for m in measured))
    return parts
