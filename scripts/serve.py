"""Start Triton and leave it running. See --help."""

from __future__ import annotations

import signal
import sys
from types import FrameType

import click
from facegraph_client import FaceGraphError
from facegraph_server.embedded import START_TIMEOUT_S, EmbeddedServer
from facegraph_server.profiles import PROFILES
from rich.console import Console

_EPILOG = """
\b
Examples:
  python scripts/serve.py
  python scripts/serve.py --profile cpu --address 0.0.0.0
  facegraph reconstruct photo.jpg --out out      (in another terminal)
"""


@click.command(epilog=_EPILOG, context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.option(
    "--profile", type=click.Choice(PROFILES), help="What runs the networks; chosen by the machine if not given."
)
@click.option("--http-port", type=click.IntRange(1, 65535), default=8000)
@click.option("--grpc-port", type=click.IntRange(1, 65535), default=8001)
@click.option("--metrics-port", type=click.IntRange(1, 65535), default=8002)
@click.option("--address", default="127.0.0.1", help="Interface to listen on; 0.0.0.0 is all of them.")
@click.option("--start-timeout", type=click.FloatRange(min=1), default=START_TIMEOUT_S, help="Seconds to become ready.")
def main(
    profile: str | None, http_port: int, grpc_port: int, metrics_port: int, address: str, start_timeout: float
) -> None:
    """Serve the models until Ctrl-C."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    signal.signal(signal.SIGTERM, _interrupt)
    starting = console.status("starting Triton")
    try:
        starting.start()
        with EmbeddedServer(
            profile=profile,
            address=address,
            http_port=http_port,
            grpc_port=grpc_port,
            metrics_port=metrics_port,
            start_timeout_s=start_timeout,
        ) as server:
            starting.stop()
            console.print(
                f"ready: profile {server.profile}, gRPC {server.grpc_address}, HTTP {server.http_address}, "
                f"metrics {server.metrics_address}/metrics\nlog: {server.log_path}\nCtrl-C stops it"
            )
            try:
                status = server.wait()
            except KeyboardInterrupt:
                console.print("stopping")
                raise
            log = server.log()
        console.print(f"the server ended by itself with status {status}: start it again. Its log:\n{log}", markup=False)
        sys.exit(1)
    except FaceGraphError as error:
        console.print(f"error: {error}", style="red", markup=False)
        sys.exit(2)
    except KeyboardInterrupt:
        console.print("stopped")
    finally:
        starting.stop()


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
