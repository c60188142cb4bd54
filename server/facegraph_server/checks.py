"""Checks with their bars, and reports of them as JSON and Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from facegraph_server.atomic_file import write_atomically

CHECK_COLUMNS = ("level", "check", "found", "must be", "verdict")

_DIGITS = 4


@dataclass(frozen=True)
class Check:
    """One thing that was checked.

    Attributes:
        level: the part that it belongs to, such as ``networks``.
        name: what was checked.
        found: what was measured or counted; None where it was not.
        bar: what it must be, in words.
        passed: None where it could not be judged; the bar then says why.

    """

    level: str
    name: str
    found: float | int | str | None
    bar: str
    passed: bool | None

    @property
    def verdict(self) -> str:
        """``passed``, ``FAILED`` or ``not judged``."""
        return {True: "passed", False: "FAILED", None: "not judged"}[self.passed]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self) | {"found": json_number(self.found), "verdict": self.verdict}

    def cells(self) -> tuple[str, ...]:
        """Return the cells of a table, see :data:`CHECK_COLUMNS`; what was found is rounded for reading."""
        found = f"{self.found:.{_DIGITS}g}" if isinstance(self.found, float) else str(self.found)
        return self.level, self.name, "" if self.found is None else found, self.bar, self.verdict


def at_most(level: str, name: str, found: float, bar: float, unit: str = "") -> Check:
    """Check that a number is not larger than its bar; one that is not a number fails."""
    return Check(level, name, found, f"<= {bar:g} {unit}".rstrip(), bool(found <= bar))


def at_least(level: str, name: str, found: float, bar: float, unit: str = "") -> Check:
    """Check that a number is not smaller than its bar; one that is not a number fails."""
    return Check(level, name, found, f">= {bar:g} {unit}".rstrip(), bool(found >= bar))


def equal(level: str, name: str, found: Any, expected: Any) -> Check:
    """Check that two values are the same."""
    kept = found if isinstance(found, int | float) else str(found)
    return Check(level, name, kept, f"= {expected}", bool(found == expected))


def not_judged(level: str, name: str, why: str, found: float | str | None = None) -> Check:
    """Record something without a judgement, and say why there is none."""
    return Check(level, name, found, why, None)


def json_number(value: Any) -> Any:
    """Return a number as JSON can hold it: infinities and what is not a number become text."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table whose columns are aligned, so that it reads well as plain text too."""
    table = [[cell.replace("|", "\\|") for cell in row] for row in (columns, *rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(columns))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in table
    ]
    return [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]


def write_reports(folder: Path, stem: str, *, as_json: str, as_markdown: str) -> list[Path]:
    """Write ``STEM.json`` and ``STEM.md``; a report of an earlier run is replaced as a whole."""
    paths = [folder / f"{stem}.json", folder / f"{stem}.md"]
    for path, text in zip(paths, (as_json, as_markdown), strict=True):
        write_atomically(path, text.encode())
    return paths
