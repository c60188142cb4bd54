"""Time the served models against the bare steps in one process. See --help."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import click
import cv2
import numpy as np
from facegraph_client import FaceClient
from facegraph_server.contract import DEFAULT_TEXTURE_SIZE_PX
from facegraph_server.cpu_runtime import CpuNetwork
from facegraph_server.detection import merge_candidates
from facegraph_server.detector_views import choose_views, render_views
from facegraph_server.embedded import EmbeddedServer
from facegraph_server.face_crop import crop_faces
from facegraph_server.faces import collect_faces
from facegraph_server.image_decode import decode_image
from facegraph_server.paths import SAMPLE_PHOTO, onnx_path
from facegraph_server.reconstruction import reconstruct_faces
from rich.console import Console
from rich.table import Table

_ROUNDS = 5
_EPILOG = """
\b
Examples:
  python perf/benchmark.py
  python perf/benchmark.py --model face_reconstruction --concurrency 1 --concurrency 2 --json out/benchmark.json
"""


class BareSteps:
    """The floor: the same functions on the same photo, one after the other, in this process, without Triton."""

    def __init__(self) -> None:
        self._detector = CpuNetwork(onnx_path("face_detector"))
        self._mesh = CpuNetwork(onnx_path("face_mesh"))

    def face_landmarks(self, photo: bytes) -> None:
        """Do what the model of this name does."""
        self._landmarks(photo)

    def face_reconstruction(self, photo: bytes) -> None:
        """Do what the model of this name does."""
        reconstruct_faces(*self._landmarks(photo), DEFAULT_TEXTURE_SIZE_PX)

    def _landmarks(self, photo: bytes) -> tuple[np.ndarray, np.ndarray]:
        image = decode_image(photo)
        size_wh = (image.shape[1], image.shape[0])
        views = choose_views(*size_wh, fine=False)
        found = self._detector.run(render_views(image, views))
        candidates = (found["BOXES"], found["KEYPOINTS"], found["SCORES"], np.array(views, np.float32))
        crops = crop_faces(image, merge_candidates(*candidates, image_wh=size_wh))
        mesh = self._mesh.run(crops.crops)
        return image, collect_faces(mesh["CROP_LANDMARKS"], mesh["PRESENCE"][:, 0], *crops[1:]).landmarks_px


def measure(call: Callable[[], object], count: int, concurrency: int) -> tuple[float, list[float]]:
    """Return the photos per second and each call's milliseconds of ``count`` calls by ``concurrency`` threads."""
    times_ms: list[float] = []

    def work(_: int) -> None:
        start = time.perf_counter()
        call()
        times_ms.append((time.perf_counter() - start) * 1000)

    begin = time.perf_counter()
    with ThreadPoolExecutor(concurrency) as pool:
        list(pool.map(work, range(count)))
    return count / (time.perf_counter() - begin), times_ms


_bare: Callable[[bytes], None] | None = None


def _start_process(model: str) -> None:
    """Load the networks once in each process of the pool."""
    global _bare  # noqa: PLW0603 - what a pool's initialiser leaves behind can only be global
    cv2.setNumThreads(1)
    _bare = getattr(BareSteps(), model)


def _bare_ms(photo: bytes) -> float:
    """Time one photo in a process of the pool."""
    start = time.perf_counter()
    if _bare is not None:
        _bare(photo)
    return (time.perf_counter() - start) * 1000


def _pool(processes: int, model: str) -> ProcessPoolExecutor:
    # Spawned, not forked: the parent has threads of gRPC and OpenVINO.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(processes, context, initializer=_start_process, initargs=(model,))


def measure_processes(pool: ProcessPoolExecutor, photo: bytes, count: int) -> tuple[float, list[float]]:
    """Return what :func:`measure` returns, for the bare steps in the processes of a pool."""
    begin = time.perf_counter()
    times_ms = list(pool.map(_bare_ms, [photo] * count, chunksize=4))
    return count / (time.perf_counter() - begin), times_ms


@click.command(epilog=_EPILOG, context_settings={"show_default": True})
@click.option("--model", type=click.Choice(["face_landmarks", "face_reconstruction"]), default="face_landmarks")
@click.option("--concurrency", type=click.IntRange(1, 64), multiple=True, default=(1, 4), help="May be repeated.")
@click.option("--requests", type=click.IntRange(8), default=100, help="Requests of each concurrency in each round.")
@click.option(
    "--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Also write the numbers here."
)
def main(model: str, concurrency: tuple[int, ...], requests: int, json_path: Path | None) -> None:
    """Serve the sample photo (JPEG, 512x512) on the CPU profile, client on the same cores.

    The floor, which is the bare steps in one process and in one process a core, and every concurrency alternate in five
    rounds, so that a noisy machine hits all of them alike.
    """
    photo = SAMPLE_PHOTO.read_bytes()
    cores = len(os.sched_getaffinity(0))
    results: dict[str, tuple[list[float], list[float]]] = {}
    pools = {f"bare steps, processes: {n}": _pool(n, model) for n in sorted({1, cores})}
    with EmbeddedServer(profile="cpu") as server, FaceClient(server.grpc_address) as client:
        serve = client.landmarks if model == "face_landmarks" else client.reconstruct
        runs: dict[str, Callable[[int], tuple[float, list[float]]]] = {
            name: partial(measure_processes, pool, photo) for name, pool in pools.items()
        }
        for c in concurrency:
            runs[f"gRPC, concurrency {c}"] = lambda count, c=c: measure(lambda: serve(photo), count, c)  # type: ignore[misc]
        for run in runs.values():
            run(4 * cores)
        for _ in range(_ROUNDS):
            for name, run in runs.items():
                rate, times_ms = run(requests)
                rates, all_ms = results.setdefault(name, ([], []))
                rates.append(rate)
                all_ms.extend(times_ms)
    for pool in pools.values():
        pool.shutdown()

    floor = results["bare steps, processes: 1"], results[f"bare steps, processes: {cores}"]
    floor_ms, floor_rate = float(np.median(floor[0][1])), float(np.median(floor[1][0]))
    title = f"{model}, {cores} cores, client on the same cores"
    table = Table("", "photos/s", "of the floor", "median ms", "p99 ms", "median / floor", title=title)
    report = {}
    for name, (rates, all_ms) in results.items():
        row = {
            "photos_per_s": round(float(np.median(rates)), 1),
            "throughput_over_floor": round(float(np.median(rates)) / floor_rate, 2),
            "median_ms": round(float(np.median(all_ms)), 2),
            "p99_ms": round(float(np.quantile(all_ms, 0.99)), 2),
            "median_over_floor": round(float(np.median(all_ms)) / floor_ms, 2),
        }
        report[name] = row
        table.add_row(name, *map(str, row.values()))
    Console().print(table)
    if json_path is not None:
        json_path.parent.mkdir(parents=True, exist_ok=True)
        json_path.write_text(json.dumps({"model": model, "results": report}, indent=1) + "\n")


if __name__ == "__main__":
    main()
