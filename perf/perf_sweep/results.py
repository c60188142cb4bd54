"""The folder of a sweep: tables that grow case by case, and at the end the report and its pictures."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from facegraph_client import OutputError
from facegraph_server.atomic_file import write_atomically

from perf_sweep.measurement import Measurement
from perf_sweep.plots import png, steps_figure, throughput_figure
from perf_sweep.tables import comparison_table, loads_table, pair_up, steps_table, summary_table

THROUGHPUT_PICTURE, STEPS_PICTURE = "throughput.png", "steps.png"
_RESULTS, _STEPS, _REPORT, _MACHINE = "results.csv", "steps.csv", "report.md", "sweep.json"
_RAW, _INPUTS = "raw", "inputs"
_OURS = (_RESULTS, _STEPS, _REPORT, _MACHINE, THROUGHPUT_PICTURE, STEPS_PICTURE, _RAW, _INPUTS)

BEGIN, END = "<!-- sweep -->", "<!-- end of the sweep -->"


class ResultFolder:
    """Where one sweep writes.

    Args:
        folder: made if need be.
        overwrite: whether the files of an earlier sweep in it may be removed; other files are never touched.

    Raises:
        OutputError: an earlier sweep is there, or the folder cannot be written.

    """

    def __init__(self, folder: Path, *, overwrite: bool) -> None:
        self.folder = folder
        there = [folder / name for name in _OURS if (folder / name).exists()]
        if there and not overwrite:
            raise OutputError(f"{there[0]} exists; choose another folder with --out, or replace it with --overwrite")
        try:
            for path in there:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            (folder / _RAW).mkdir(parents=True)
        except OSError as error:
            raise OutputError(f"cannot write into {folder}: {error.strerror}") from error

    def input_file(self, model: str) -> Path:
        """Return where the requests of a model go."""
        return self.folder / _INPUTS / f"{model}.json"

    def raw(self, number: int) -> Path:
        """Return where perf_analyzer writes for the case of a number."""
        return self.folder / _RAW / f"{number:03d}"

    def add(self, measurement: Measurement) -> None:
        """Add a finished case to the tables: what is done stays, whatever happens next."""
        _append(self.folder / _RESULTS, [measurement.row()])
        _append(self.folder / _STEPS, measurement.step_rows())

    def finish(self, measured: Sequence[Measurement], about: Mapping[str, Any], profiles: Sequence[str]) -> list[Path]:
        """Write the report, its pictures and the facts; return the paths.

        Args:
            measured: all that was.
            about: machine, versions, command, what failed: goes into the JSON, its ``machine`` into the report too.
            profiles: in order; the first one is what the others are compared with.

        """
        files = {_MACHINE: json.dumps(about, indent=1).encode() + b"\n"}
        if measured:
            files[_REPORT] = "\n".join(
                ["# Sweep", "", *report(measured, about, profiles), "Every load:", "", *loads_table(measured), ""]
            ).encode()
            files[THROUGHPUT_PICTURE] = png(throughput_figure(measured))
            if (steps := steps_figure(measured)) is not None:
                files[STEPS_PICTURE] = png(steps)
        for name, data in files.items():
            write_atomically(self.folder / name, data)
        return [self.folder / name for name in (_RESULTS, _STEPS, *files) if (self.folder / name).exists()]


def report(
    measured: Sequence[Measurement],
    about: Mapping[str, Any],
    profiles: Sequence[str],
    pictures: Mapping[str, str] | None = None,
) -> list[str]:
    """Return the lines of the report.

    Args:
        measured: all that was.
        about: see :meth:`ResultFolder.finish`.
        profiles: see :meth:`ResultFolder.finish`.
        pictures: where each picture lies, seen from the report; None is beside it.

    """
    where = pictures or {name: name for name in (THROUGHPUT_PICTURE, STEPS_PICTURE)}
    lines = [f"- {name}: {value}" for name, value in about["machine"].items()]
    lines += [f"- command: `{about['command']}`", ""]
    base = profiles[0] if len(profiles) > 1 else None
    if summary := summary_table(measured, base):
        lines += [*summary, ""]
    for other in profiles[1:]:
        if comparison := comparison_table(pair_up(measured, profiles[0], other), profiles[0], other):
            lines += [f"{other} against {profiles[0]}; in brackets the lowest and the highest of the rounds:", ""]
            lines += [*comparison, ""]
    lines += [f"![Latency over throughput]({where[THROUGHPUT_PICTURE]})", ""]
    if steps := steps_table(measured):
        lines += ["Where the time of one request goes, mean ms:", "", *steps, ""]
        lines += [f"![The steps of one request]({where[STEPS_PICTURE]})", ""]
    return lines


def update_document(document: Path, lines: Sequence[str]) -> None:
    """Replace what stands between the marks in a document.

    Raises:
        OutputError: the document has no marks.

    """
    text = document.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise OutputError(f"{document} has no lines {BEGIN} and {END}: the sweep goes between them")
    block = "\n".join([BEGIN, "", *lines, END])
    write_atomically(document, f"{before}{block}{after}".encode())


def _append(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    if not rows:
        return
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
    if not path.exists():
        writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    with path.open("a") as file:
        file.write(buffer.getvalue())


def _cell(value: object) -> object:
    return f"{value:.6g}" if isinstance(value, float) else value
