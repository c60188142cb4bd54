"""Verify that CUDA graphs are used and change nothing. See --help."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from facegraph_client import FaceGraphError
from rich.console import Console
from rich.markup import escape

_PROFILES = ("tensorrt", "nograph", "cpu", "fused")
_LEVELS = ("networks", "pipeline", "soak")
_EPILOG = """
\b
Examples:
  python scripts/verify_graphs.py                                    (GPU: tensorrt against nograph)
  python scripts/verify_graphs.py --profiles fused fused             (GPU: fused with its graphs on and off)
  python scripts/verify_graphs.py --profiles fused cpu --soak-s 20   (with a GPU or without)
  python scripts/verify_graphs.py --levels soak --soak-s 3600

Exit status: 0 verified, 1 a check failed, 2 it could not run.
"""


@click.command(epilog=_EPILOG, context_settings={"show_default": True})
@click.option(
    "--profiles",
    nargs=2,
    type=click.Choice(_PROFILES),
    default=("tensorrt", "nograph"),
    help="The profile under test, and the one that it must agree with.",
)
@click.option("--levels", multiple=True, type=click.Choice(_LEVELS), default=_LEVELS, help="May be repeated.")
@click.option(
    "--soak-s", type=click.FloatRange(0), default=300.0, help="Seconds of the soak; below 300 memory is not judged."
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("out/verify_graphs"),
    help="Folder for verify_graphs.json and verify_graphs.md.",
)
def main(profiles: tuple[str, str], levels: tuple[str, ...], soak_s: float, out: Path) -> None:
    """Verify CUDA graphs in three levels, and by Triton's log and metrics.

    networks: each network with a graph against without, every batch size. pipeline: whole photos in mixed and
    alternating orders, landmarks and texture of one profile against the other. soak: memory, temperature, unchanged
    results over time. Without a GPU the same checks compare CPU profiles: nothing is captured there, and the report
    says so. Where both profiles are fused, the second one runs with its graphs switched off.
    """
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        with console.status("loading") as status:
            from facegraph_server.checks import write_reports
            from facegraph_server.verification.run import VerificationPlan, verify

            plan = VerificationPlan(profiles, levels, soak_s)
            report = verify(plan, lambda text: status.update(escape(text)))
        paths = write_reports(out, "verify_graphs", as_json=report.to_json(), as_markdown=report.to_markdown())
    except ModuleNotFoundError as error:
        console.print(f"{error}; install what verifies: pip install -e '.[server,gpu]'", markup=False)
        sys.exit(2)
    except (FaceGraphError, OSError) as error:
        console.print(f"could not verify: {error}", style="red", markup=False)
        sys.exit(2)
    click.echo(report.to_markdown(), nl=False)
    console.print(f"written: {', '.join(map(str, paths))}", markup=False)
    sys.exit(0 if report.verified else 1)


if __name__ == "__main__":
    main()
