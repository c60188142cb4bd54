"""Level two of the verification: whole photos through a server, in orders that would show stale or mixed buffers."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from facegraph_client import Face
from numpy.typing import NDArray
from PIL import Image

from facegraph_server.checks import Check, at_least, at_most, equal, not_judged
from facegraph_server.image_metrics import psnr_db, ssim
from facegraph_server.paths import SAMPLE_PHOTO

LEVEL = "pipeline"
_CONCURRENCY = 8
_SEED = 3

ORDER_TOLERANCE_PX = 0.01
"""How far a landmark may move with what else is in the batch: rounding of other kernels, nothing more."""

ORDER_PSNR_DB = 60.0


class Bars(NamedTuple):
    """How alike the answers of two profiles must be; without a bar for it the SSIM is recorded only."""

    landmarks_px: float
    texture_psnr_db: float
    texture_ssim: float | None


SAME_CODE = Bars(0.01, 50.0, 0.9998)
"""``tensorrt`` against ``nograph``, or ``fused`` against itself: the same code, once replayed and once not."""

SAME_ALGORITHM = Bars(0.1, 40.0, None)
"""Two implementations of one algorithm, such as ``fused`` against ``cpu``."""

Reconstruct = Callable[[bytes], Sequence[Face]]


@dataclass
class PipelineAnswers:
    """What one server said.

    Attributes:
        alone: the faces of each photo, asked one at a time.
        moved_px: for each order, how far any landmark was from that; infinite where the number of faces differed.
        psnr_db: for each order, the worst likeness of a texture to that.

    """

    alone: dict[str, Sequence[Face]] = field(default_factory=dict)
    moved_px: dict[str, float] = field(default_factory=dict)
    psnr_db: dict[str, float] = field(default_factory=dict)


def verification_photos(sample: Path = SAMPLE_PHOTO) -> dict[str, bytes]:
    """Return photos with none, one, two and four faces in different sizes, encoded as PNG, by name."""
    picture = Image.open(sample).convert("RGB")
    width, height = picture.size
    mirrored = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    half = [photo.resize((width // 2, height // 2), Image.Resampling.BOX) for photo in (picture, mirrored)]
    pair = Image.new("RGB", (width // 2 * 2, height // 2))
    four = Image.new("RGB", (width // 2 * 2, height // 2 * 2))
    for i, (column, row) in enumerate(itertools.product((0, 1), (0, 1))):
        four.paste(half[i % 2], (column * (width // 2), row * (height // 2)))
    for column, photo in enumerate(half):
        pair.paste(photo, (column * (width // 2), 0))
    noise = np.random.default_rng(_SEED).integers(0, 256, (240, 320, 3), np.uint8)
    photos = {
        "plain": picture,
        "four faces": four,
        "mirrored": mirrored,
        "dark": picture.point([value // 4 for value in range(256)] * 3),
        "turned": picture.rotate(20, Image.Resampling.BICUBIC),
        "enlarged": picture.resize((width * 6 // 5, height * 6 // 5), Image.Resampling.BICUBIC),
        "two faces": pair,
        "no face": Image.fromarray(noise),
    }
    return {name: _png(photo) for name, photo in photos.items()}


def orders(names: Sequence[str]) -> dict[str, tuple[list[str], int]]:
    """Return for each order its photos and how many are under way at once; A and B are the first two photos."""
    a, b = names[:2]
    mixed = list(names) * 2
    np.random.default_rng(_SEED).shuffle(mixed)
    return {
        "A..AB..B": ([a] * 4 + [b] * 4, 1),
        "ABAB": ([a, b] * 2, 1),
        "A..AB..B at once": ([a] * 4 + [b] * 4, _CONCURRENCY),
        "mixed at once": (mixed, _CONCURRENCY),
    }


def ask_pipeline(
    reconstruct: Reconstruct, photos: Mapping[str, bytes], progress: Callable[[str], None] = lambda _: None
) -> PipelineAnswers:
    """Ask for every photo alone, then in every order.

    Args:
        reconstruct: returns the faces of a photo; called from several threads.
        photos: encoded photos by name.
        progress: told what comes next.

    """
    answers = PipelineAnswers()
    for name, photo in photos.items():
        progress(f"{name}, alone")
        answers.alone[name] = reconstruct(photo)
    for order, (names, concurrency) in orders(list(photos)).items():
        progress(order)
        with ThreadPoolExecutor(concurrency) as pool:
            found = list(pool.map(lambda name: reconstruct(photos[name]), names))
        pairs = [compare_faces(faces, answers.alone[name]) for name, faces in zip(names, found, strict=True)]
        answers.moved_px[order] = max(pair.moved_px for pair in pairs)
        answers.psnr_db[order] = min(pair.psnr_db for pair in pairs)
    return answers


class Likeness(NamedTuple):
    """How alike two answers to one photo are: the worst landmark, the worst texture."""

    moved_px: float
    psnr_db: float
    ssim: float


def compare_faces(found: Sequence[Face], expected: Sequence[Face], *, structure: bool = False) -> Likeness:
    """Compare two answers to one photo, face by face; another number of faces is infinitely far.

    Args:
        found: one answer.
        expected: the other.
        structure: compute the SSIM too; it is 1 otherwise.

    """
    if len(found) != len(expected):
        return Likeness(float("inf"), 0.0, 0.0)
    moved, psnr, structural = 0.0, float("inf"), 1.0
    for a, b in zip(found, expected, strict=True):
        moved = max(moved, float(np.abs(a.landmarks_px - b.landmarks_px).max()))
        psnr = min(psnr, psnr_db(a.texture_rgb, b.texture_rgb))
        if structure:
            structural = min(structural, ssim(a.texture_rgb, b.texture_rgb))
    return Likeness(moved, psnr, structural)


def check_orders(answers: PipelineAnswers, profile: str) -> list[Check]:
    """Check that an answer does not depend on what was asked before it or beside it."""
    checks = []
    for order, moved_px in answers.moved_px.items():
        title = f"{profile}, order {order}"
        checks.append(at_most(LEVEL, f"{title}: landmarks against alone", moved_px, ORDER_TOLERANCE_PX, "px"))
        checks.append(
            at_least(LEVEL, f"{title}: texture against alone, PSNR", answers.psnr_db[order], ORDER_PSNR_DB, "dB")
        )
    return checks


def check_pair(found: PipelineAnswers, expected: PipelineAnswers, names: tuple[str, str], bars: Bars) -> list[Check]:
    """Check that two profiles answer alike."""
    checks = [
        equal(
            LEVEL,
            f"{names[0]} against {names[1]}: faces found",
            [len(faces) for faces in found.alone.values()],
            [len(faces) for faces in expected.alone.values()],
        )
    ]
    checks.append(
        at_least(LEVEL, f"{names[0]} against {names[1]}: faces to compare", sum(map(len, expected.alone.values())), 1)
    )
    for photo, faces in expected.alone.items():
        if not faces:
            continue
        likeness = compare_faces(found.alone[photo], faces, structure=True)
        title = f"{names[0]} against {names[1]}, {photo}"
        checks.append(at_most(LEVEL, f"{title}: landmarks", likeness.moved_px, bars.landmarks_px, "px"))
        checks.append(at_least(LEVEL, f"{title}: texture, PSNR", likeness.psnr_db, bars.texture_psnr_db, "dB"))
        name = f"{title}: texture, SSIM"
        if bars.texture_ssim is None:
            checks.append(not_judged(LEVEL, name, "recorded only: two implementations", likeness.ssim))
        else:
            checks.append(at_least(LEVEL, name, likeness.ssim, bars.texture_ssim))
    return checks


def bars_for(profiles: tuple[str, str]) -> Bars:
    """Return how alike two profiles must be."""
    same = set(profiles) == {"tensorrt", "nograph"} or profiles[0] == profiles[1]
    return SAME_CODE if same else SAME_ALGORITHM


def answer_bytes(faces: Sequence[Face]) -> bytes:
    """Return an answer as bytes: equal if and only if every number in it is."""
    arrays: list[NDArray[np.generic]] = []
    for face in faces:
        arrays += [face.landmarks_px, face.vertices_cm, face.pose, face.texture_rgb, face.coverage]
    return b"".join(array.tobytes() for array in arrays)


def _png(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()
