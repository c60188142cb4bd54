"""Time the face swap of a 720p video, end to end. See --help."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import click
import cv2
import numpy as np
from facegraph_client import FaceClient, FaceSwapSession, load_upright_rgb
from facegraph_client._swap import SWAP_TEXTURE_SIZE_PX
from facegraph_server.embedded import EmbeddedServer
from facegraph_server.paths import SAMPLE_PHOTO
from facegraph_server.verification.soak import server_memory
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

_SIZE_WH = (1280, 720)
_RATE = 25
_ROUNDS = 3
_EPILOG = """
\b
Examples:
  python perf/benchmark_swap.py
  python perf/benchmark_swap.py --frames 3000 --json out/swap.json      (memory over 3000 frames)
"""


def moving_face(frames: int) -> Iterator[NDArray[np.uint8]]:
    """Yield frames UINT8 [720,1280,3]: the sample photo, twice as large, moves about over noise of a sensor."""
    portrait = cv2.resize(load_upright_rgb(SAMPLE_PHOTO)[:360], None, fx=2, fy=2, interpolation=cv2.INTER_CUBIC)
    rng = np.random.default_rng(0)
    for i in range(frames):
        frame = np.full((_SIZE_WH[1], _SIZE_WH[0], 3), 90, np.uint8)
        left = int(128 + 120 * np.sin(i / 20))
        frame[:, left : left + portrait.shape[1]] = portrait[: _SIZE_WH[1]]
        noise = rng.integers(-3, 4, (_SIZE_WH[1], _SIZE_WH[0], 1), np.int16)
        yield np.clip(frame + noise, 0, 255).astype(np.uint8)


def write_clip(path: Path, frames: int) -> None:
    """Write the moving face as H.264."""
    with av.open(str(path), "w") as container:
        video = container.add_stream("libx264", rate=_RATE)
        video.width, video.height = _SIZE_WH
        video.pix_fmt, video.options = "yuv420p", {"preset": "veryfast", "crf": "20"}
        for number, image in enumerate(moving_face(frames)):
            frame = av.VideoFrame.from_ndarray(image, "rgb24")
            frame.pts, frame.time_base = number, Fraction(1, _RATE)
            container.mux(video.encode(frame))
        container.mux(video.encode(None))


@click.command(epilog=_EPILOG, context_settings={"show_default": True})
@click.option("--frames", type=click.IntRange(50), default=300, help="Frames of the video.")
@click.option(
    "--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Also write the numbers here."
)
def main(frames: int, json_path: Path | None) -> None:
    """Swap the face of a video of 1280x720 on the CPU profile: decode, swap through Triton, encode, on the same cores.

    The whole video three times, then its frames one at a time: that is the server's time for a frame.
    """
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="facegraph-") as folder:
        clip, out = Path(folder, "in.mp4"), Path(folder, "out.mp4")
        with console.status("making the video"):
            write_clip(clip, frames)
        with EmbeddedServer(profile="cpu") as server, FaceClient(server.grpc_address) as client:
            sources = client.reconstruct(SAMPLE_PHOTO, texture_size_px=SWAP_TEXTURE_SIZE_PX)
            session = FaceSwapSession(client, sources)
            rates, memory_mib = [], []
            with console.status("swapping the video"):
                for _ in range(_ROUNDS):
                    start = time.perf_counter()
                    session.swap_video(clip, out, overwrite=True)
                    rates.append(frames / (time.perf_counter() - start))
                    memory_mib.append(sum(server_memory() or ()))
            with console.status("one frame at a time"):
                before = client.stage_times_ms()
                alone_ms = _one_at_a_time(session, min(frames, 100))
                after = client.stage_times_ms()
    steps = {n: (after[n] - before.get(n, 0.0)) / len(alone_ms) for n in after if after[n] > before.get(n, 0.0)}
    report = {
        "frames_per_s": round(float(np.median(rates)), 1),
        "server_ms_a_frame": round(steps.pop("face_swap"), 1),
        "round_trip_ms_a_frame": round(float(np.median(alone_ms)), 1),
        "steps_ms": {name: round(ms, 2) for name, ms in sorted(steps.items(), key=lambda item: -item[1])},
        "server_mib_after_each_round": [round(value) for value in memory_mib],
    }
    table = Table("", "", title=f"1280x720, one face, {len(os.sched_getaffinity(0))} cores, all on this machine")
    table.add_row("frames/s, H.264 in and out", str(report["frames_per_s"]))
    table.add_row("ms a frame in the server, one at a time", str(report["server_ms_a_frame"]))
    table.add_row("ms a frame for the client, one at a time", str(report["round_trip_ms_a_frame"]))
    for name, ms in steps.items():
        table.add_row(f"  {name}", f"{ms:.1f}")
    table.add_row("server's MiB after each round", ", ".join(f"{value:.0f}" for value in memory_mib))
    Console().print(table)
    if json_path is not None:
        json_path.parent.mkdir(parents=True, exist_ok=True)
        json_path.write_text(json.dumps(report, indent=2))


def _one_at_a_time(session: FaceSwapSession, frames: int) -> list[float]:
    state, times_ms = None, []
    for frame in moving_face(frames):
        start = time.perf_counter()
        _, state = session.swap(frame, state)
        times_ms.append((time.perf_counter() - start) * 1e3)
    return times_ms


if __name__ == "__main__":
    main()
