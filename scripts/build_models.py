"""Build the models that Triton serves. See --help."""

from __future__ import annotations

import sys

import click
from facegraph_client import FaceGraphError
from rich.console import Console
from rich.progress import Progress

_EPILOG = """
\b
Examples:
  python scripts/build_models.py
  python scripts/build_models.py --engine                              (on the GPU machine, in Triton's container)
  python scripts/build_models.py --engine --compute-capability 8.9     (TensorRT for RTX: needs no GPU)
"""


@click.command(epilog=_EPILOG, context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.option("--engine", is_flag=True, help="Also build the TensorRT engines.")
@click.option("--precision", type=click.Choice(["fp32", "tf32", "fp16"]), default="fp32", help="Of the engines.")
@click.option("--compute-capability", multiple=True, metavar="8.9", help="Build engines for these GPUs, not this one.")
@click.option("--allow-warnings", is_flag=True, help="Build engines also where TensorRT's parser warns.")
@click.option("--force", is_flag=True, help="Build also what is up to date.")
def main(engine: bool, precision: str, compute_capability: tuple[str, ...], allow_warnings: bool, force: bool) -> None:
    """Fetch the networks' weights, translate them to ONNX, check them, and put them into model_repository/.

    Downloads about 42 MB the first time; later runs need no network. Running it again is harmless.
    """
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        with console.status("loading"):
            from facegraph_server.engine_store import build_engines
            from facegraph_server.model_builder import build_models
        with console.status("building the models") as status:

            def report(line: str) -> None:
                console.print(line)
                status.update(line)

            build_models(report, force=force)
        if engine:
            with Progress(console=console, transient=True) as bar:
                task = bar.add_task("engines")
                engines = build_engines(
                    precision=precision,
                    compute_capabilities=compute_capability,
                    allow_warnings=allow_warnings,
                    force=force,
                    progress=lambda phase, done, total: bar.update(
                        task, description=phase, completed=done, total=total
                    ),
                )
            for built in engines:
                state = "is up to date" if built.reused else f"built in {built.build_s:.1f} s"
                console.print(f"{built.path} {state}: {built.key.tensorrt}, {built.key.precision}")
    except ModuleNotFoundError as error:
        console.print(f"{error}; install what builds the models: pip install -e '.[server]'")
        sys.exit(2)
    except FaceGraphError as error:
        console.print(f"error: {error}", style="red", markup=False)
        sys.exit(1)


if __name__ == "__main__":
    main()
