"""What the swapping models of all profiles share: read the options of a request, choose, swap."""

from __future__ import annotations

from typing import Any

import numpy as np
from facegraph_client import InputError
from numpy.typing import NDArray

from facegraph_server.contract import VERTICES
from facegraph_server.face_swap import swap_faces
from facegraph_server.image_encode import encode_like
from facegraph_server.swap_selection import KEPT, select_sources

DEFAULT_SELECTOR_MODE = "one"
DEFAULT_SELECTOR_ORDER = "large-small"

_NOBODY = np.zeros((1, VERTICES, 3), np.float32)


def answer_swap(
    frame_rgb: NDArray[np.uint8], landmarks_px: NDArray[np.float32], inputs: dict[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Swap the faces of a frame as a request wants it.

    Args:
        frame_rgb: UINT8 [H,W,3].
        landmarks_px: FP32 [F,468,3] its faces.
        inputs: the request's ``TEXTURE`` UINT8 [S,T,T,3] and ``COVERAGE`` UINT8 [S,T,T]; where given also ``PRIOR``
            FP32 [n,468,3] with ``PRIOR_SOURCE`` INT32 [n],
            ``FACE_SELECTOR_MODE`` and ``FACE_SELECTOR_ORDER`` BYTES [1].

    Returns:
        ``SWAPPED`` UINT8 [H,W,3]; ``SOURCE_INDEX`` INT32 [F]: with the landmarks, the next frame's prior; and
        ``SWAP_COUNT`` INT32 [1], how many faces were swapped.

    Raises:
        InputError: an option makes no sense, or there is no source.

    """
    prior = inputs.get("PRIOR", _NOBODY)
    chosen = select_sources(
        landmarks_px,
        prior,
        inputs.get("PRIOR_SOURCE", np.full(len(prior), KEPT, np.int32)),
        len(inputs["TEXTURE"]),
        _text(inputs, "FACE_SELECTOR_MODE", DEFAULT_SELECTOR_MODE),
        _text(inputs, "FACE_SELECTOR_ORDER", DEFAULT_SELECTOR_ORDER),
    )
    swapped = swap_faces(frame_rgb, landmarks_px, chosen, inputs["TEXTURE"], inputs["COVERAGE"])
    count = np.array([(chosen != KEPT).sum()], np.int32)
    return {"SWAPPED": swapped, "SOURCE_INDEX": chosen, "SWAP_COUNT": count}


def answer_encoded(swapped_rgb: NDArray[np.uint8], swap_count: NDArray[np.int32], photo: bytes) -> bytes:
    """Return the swapped photo in the format that it came in, or the very photo where no face was swapped."""
    return encode_like(swapped_rgb, photo) if swap_count[0] else photo


def _text(inputs: dict[str, NDArray[Any]], name: str, default: str) -> str:
    if name not in inputs:
        return default
    try:
        return str(inputs[name][0].decode())
    except UnicodeDecodeError:
        raise InputError(f"{name} is not UTF-8 text") from None
