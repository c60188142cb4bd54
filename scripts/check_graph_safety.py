"""Say whether ONNX models can run as CUDA graphs in TensorRT. See --help."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from facegraph_client import FaceGraphError
from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from facegraph_server.graph_safety import GraphSafetyReport


@click.command(
    epilog="""\b
Examples:
  python scripts/check_graph_safety.py model_repository/*/1/model.onnx
  python scripts/check_graph_safety.py my_model.onnx && echo capturable

Exit status: 0 all can be captured, 1 one cannot, 2 a file cannot be read.
"""
)
@click.argument("models", nargs=-1, required=True, type=click.Path(dir_okay=False, path_type=Path))
def main(models: tuple[Path, ...]) -> None:
    """Read ONNX MODELS and say whether the TensorRT engines made of them can be captured as CUDA graphs.

    "blocks" rules capture out; "caution" depends on how the engine is built or on the TensorRT version.
    """
    try:
        from facegraph_server.graph_safety import check_onnx
    except ModuleNotFoundError as error:
        click.echo(f"{error}; install what reads the models: pip install -e '.[server]'", err=True)
        sys.exit(2)
    console = Console(highlight=False)
    safe = True
    try:
        for path in models:
            report = check_onnx(path)
            safe = safe and report.safe
            _print(console, path, report)
    except FaceGraphError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    sys.exit(0 if safe else 1)


def _print(console: Console, path: Path, report: GraphSafetyReport) -> None:
    verdict = "[green]can be captured[/]" if report.safe else "[red]cannot be captured[/]"
    console.print(f"{escape(str(path))}: {verdict} ({report.nodes} nodes)")
    if not report.findings:
        return
    table = Table("severity", "rule", "where", "why", "instead", box=None, pad_edge=False)
    for finding in report.findings:
        row = (finding.severity.value, finding.rule, finding.where, finding.reason, finding.advice)
        table.add_row(*(escape(cell) for cell in row))
    console.print(table)


if __name__ == "__main__":
    main()
