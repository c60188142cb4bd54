"""How compare_peers.py talks to a program that measures by itself: a line with seconds, a line of JSON back."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from peers.timed_loop import Ask, Timing, timed_loop

PEER_TOLERANCE = 0.01
"""In widths of the face. The peers share the networks of the reference; only the JPEG decoders round differently."""


def read_photos(folder: Path) -> list[bytes]:
    """Return the encoded photos of a folder, by name."""
    return [path.read_bytes() for path in sorted(folder.glob("*.jpg"))]


def serve_lines(ask: Ask, folder: str) -> None:
    """Answer until standard input closes.

    A first line of JSON tells the landmarks of every photo, in lists; they are the reference for the later ones.
    """
    photos = read_photos(Path(folder))
    references = [ask(photo) for photo in photos]
    _say(json.dumps([reference.tolist() for reference in references]))
    for line in sys.stdin:
        timing = timed_loop([ask], photos, references, seconds=float(line), tolerance=PEER_TOLERANCE)
        _say(json.dumps(timing._asdict()))


def read_references(line: str) -> list[NDArray[np.float32]]:
    """Read the first line: FP32 [F,468,3] for each photo."""
    return [np.array(faces, np.float32).reshape(-1, 468, 3) for faces in json.loads(line)]


def read_timing(line: str) -> Timing:
    """Read a later line."""
    return Timing(**json.loads(line))


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - the answer of the protocol
