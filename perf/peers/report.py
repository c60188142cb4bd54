"""A comparison as a table, a picture and JSON."""

from __future__ import annotations

import io
import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from peers.verdict import (
    OURS_GRPC,
    OURS_HTTP,
    Bar,
    Rounds,
    alone,
    best,
    latencies_ms,
    photos_per_s,
    round_by_round,
    spread,
)

COLUMNS = ("", "photos/s", "asked by", "gRPC over it", "ms alone", "gRPC over it")
_DPI = 90
_OURS_COLOUR, _PEER_COLOUR = "#228833", "#4477aa"


def candidates(rounds: Rounds) -> list[str]:
    """Return the candidates in the order in which they were measured."""
    return list(dict.fromkeys(load.candidate for load in rounds))


def rows(rounds: Rounds) -> list[tuple[str, ...]]:
    """Return a row of :data:`COLUMNS` for each candidate, at the concurrency that is best for it."""
    ours = photos_per_s(rounds, best(rounds, OURS_GRPC))
    ours_ms = latencies_ms(rounds, alone(OURS_GRPC))
    table: list[tuple[str, ...]] = []
    for name in candidates(rounds):
        load = best(rounds, name)
        rates, times_ms = photos_per_s(rounds, load), latencies_ms(rounds, alone(name))
        table.append(
            (
                name,
                f"{statistics.median(rates):.0f}",
                f"{load.concurrency}",
                f"{round_by_round(ours, rates)}",
                f"{statistics.median(times_ms):.2f}",
                f"{round_by_round(ours_ms, times_ms)}",
            )
        )
    return table


def bar_line(bar: Bar) -> str:
    """Say in a line whether a promise is kept."""
    sign = ">=" if bar.at_least else "<="
    return f"{'PASS' if bar.is_met else 'FAIL'}: {bar.promise} is {bar.ratio}, promised {sign} {bar.limit:g}"


def markdown(rounds: Rounds, bars: Sequence[Bar], photos: Sequence[str], facts: Mapping[str, str]) -> str:
    """Return the whole report; the picture is expected beside it."""
    count = len(next(iter(rounds.values())))
    lines = ["# facegraph beside MediaPipe's FaceMesh", "", f"Written by `{facts['command']}`.", ""]
    lines += _markdown_table(COLUMNS, rows(rounds))
    lines += [
        "",
        f"Medians of {count} rounds in which all take turns on the same cores as the clients, with the least and the "
        "greatest round in brackets. Throughput is at the concurrency that is best for each (in-process, processes); "
        "latency is of one photo at a time, the mean over the photos of each one's median. *gRPC over it* is facegraph "
        "over gRPC divided by that row: over 1 is good for photos/s, under 1 for ms. Every answer was compared with "
        "MediaPipe's own.",
        "",
        "MediaPipe: `static_image_mode=True, refine_landmarks=False, max_num_faces=1`, decoding with simplejpeg as "
        "facegraph does, unless another decoder is named. FastAPI: two uvicorn workers on uvloop and httptools, raw "
        "bytes in and out. Gradio: two FaceMesh instances, a queue with a concurrency of 2, asked by raw HTTP over "
        "kept connections with the photo in the request. PyTriton: two instances, gRPC.",
        "",
        *[f"- {bar_line(bar)}" for bar in bars],
        "",
        "![Throughput and latency](peers.png)",
        "",
        "Milliseconds a photo, one at a time:",
        "",
        *_markdown_table(("", *photos), _rows_by_photo(rounds)),
        "",
        *[f"- {name}: {value}" for name, value in facts.items() if name != "command"],
    ]
    return "\n".join(lines) + "\n"


def as_json(rounds: Rounds, bars: Sequence[Bar], photos: Sequence[str], facts: Mapping[str, str]) -> str:
    """Return all that was measured, each round by itself."""
    measured: list[dict[str, Any]] = [
        {
            "candidate": load.candidate,
            "concurrency": load.concurrency,
            "photos_per_s": [round(rate, 2) for rate in photos_per_s(rounds, load)],
            "latency_ms_by_photo": [[round(statistics.median(p), 3) for p in t.latency_ms if p] for t in timings],
        }
        for load, timings in rounds.items()
    ]
    judged = [{**bar._asdict(), "ratio": bar.ratio._asdict(), "is_met": bar.is_met} for bar in bars]
    return (
        json.dumps({"facts": dict(facts), "photos": list(photos), "bars": judged, "measured": measured}, indent=1)
        + "\n"
    )


def picture(rounds: Rounds) -> bytes:
    """Return a PNG: throughput on the left, latency on the right, the rounds' range as whiskers."""
    names = candidates(rounds)
    figure = Figure(figsize=(10, 1.2 + 0.34 * len(names)), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    _draw(left, names, [photos_per_s(rounds, best(rounds, name)) for name in names], "photos/s, best concurrency")
    _draw(right, names, [latencies_ms(rounds, alone(name)) for name in names], "ms a photo, one at a time")
    left.invert_yaxis()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI)
    return buffer.getvalue()


def _draw(axes: Axes, names: Sequence[str], values: Sequence[Sequence[float]], label: str) -> None:
    spreads = [spread(of_candidate) for of_candidate in values]
    medians = [s.median for s in spreads]
    whiskers = [[s.median - s.low for s in spreads], [s.high - s.median for s in spreads]]
    colours = [_OURS_COLOUR if name in (OURS_GRPC, OURS_HTTP) else _PEER_COLOUR for name in names]
    axes.barh(names, medians, xerr=whiskers, color=colours, ecolor="#444444", capsize=2)
    for place, s in enumerate(spreads):
        axes.annotate(
            f"{s.median:.3g}", (s.high, place), (4, 0), textcoords="offset points", va="center", fontsize="small"
        )
    axes.set_xlabel(label)
    axes.set_xlim(0, 1.15 * max(s.high for s in spreads))


def _rows_by_photo(rounds: Rounds) -> list[tuple[str, ...]]:
    table: list[tuple[str, ...]] = []
    for name in candidates(rounds):
        by_photo = zip(*(timing.latency_ms for timing in rounds[alone(name)]), strict=True)
        medians = [statistics.median(statistics.median(times) for times in photo if times) for photo in by_photo]
        table.append((name, *(f"{median:.2f}" for median in medians)))
    return table


def _markdown_table(columns: Sequence[str], table: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return lines + ["| " + " | ".join(row) + " |" for row in table]
