"""Build the models that Triton serves. See --help."""

from __future__ import annotations

import sys

import click
from facegraph_client import FaceGraphError
from rich.console import Console


@click.command(epilog="Example: python scripts/build_models.py")
@click.option("--force", is_flag=True, help="Build also what is up to date.")
def main(force: bool) -> None:
    """Fetch the networks' weights, translate them to ONNX, check them, and put them into model_repository/.

    Downloads about 42 MB the first time; later runs need no network. Running it again is harmless.
    """
    console = Console(stderr=True, highlight=False)
    try:
        with console.status("loading"):
            from facegraph_server.model_builder import build_models
        with console.status("building the models") as status:

            def report(line: str) -> None:
                console.print(line)
                status.update(line)

            build_models(report, force=force)
    except ModuleNotFoundError as error:
        console.print(f"{error}; install what builds the models: pip install -e '.[server]'")
        sys.exit(2)
    except FaceGraphError as error:
        console.print(f"error: {error}", style="red", markup=False)
        sys.exit(1)


if __name__ == "__main__":
    main()
