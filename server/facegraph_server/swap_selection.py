"""Which face of a frame gets which source.

The words are those of FaceFusion's face selector. A face that goes on from the frame before keeps its source, so that
two people who pass each other do not change faces.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from facegraph_client import InputError
from numpy.typing import NDArray

from facegraph_server.detection import box_iou

KEPT = -1
"""Source index of a face that keeps its own."""

SELECTOR_MODES = ("one", "many", "reference")
"""``one``: as many faces as there are sources, the first in the order. ``many``: every face, the sources in turn.
``reference``: only the faces that go on from ``PRIOR``."""

_SAME_FACE_IOU = 0.3

_ORDERS: dict[str, Callable[[NDArray[np.float32]], NDArray[np.float32]]] = {
    "left-right": lambda box: box[:, 0],
    "right-left": lambda box: -box[:, 0],
    "top-bottom": lambda box: box[:, 1],
    "bottom-top": lambda box: -box[:, 1],
    "small-large": lambda box: _area(box),
    "large-small": lambda box: -_area(box),
}
SELECTOR_ORDERS = tuple(_ORDERS)


def select_sources(
    landmarks_px: NDArray[np.float32],
    prior_px: NDArray[np.float32],
    prior_source: NDArray[np.int32],
    sources: int,
    mode: str,
    order: str,
) -> NDArray[np.int32]:
    """Choose the source of each face.

    Args:
        landmarks_px: FP32 [F,468,3] the faces of this frame.
        prior_px: FP32 [n,468,3] the faces of the frame before; an all-zero row is no face.
        prior_source: INT32 [n] the source of each of those, or :data:`KEPT`.
        sources: how many sources there are.
        mode: one of :data:`SELECTOR_MODES`; for faces that do not go on.
        order: one of :data:`SELECTOR_ORDERS`; likewise.

    Returns:
        INT32 [F], from 0 to sources - 1, or :data:`KEPT`.

    Raises:
        InputError: the mode or the order is unknown, or ``prior_source`` does not fit ``prior_px`` or the sources.

    """
    _check(prior_px, prior_source, sources, mode, order)
    box, prior_box = _boxes(landmarks_px), _boxes(prior_px)
    chosen = np.full(len(box), KEPT, np.int32)
    is_new = np.ones(len(box), bool)
    free = np.flatnonzero(np.abs(prior_px[..., :2]).max((1, 2), initial=0) > 0).tolist()
    for face, one in enumerate(box):
        if free:
            overlap = box_iou(one, prior_box[free])
            best = int(overlap.argmax())
            if overlap[best] > _SAME_FACE_IOU:
                chosen[face], is_new[face] = prior_source[free.pop(best)], False
    new = np.flatnonzero(is_new)
    new = new[np.argsort(_ORDERS[order](box[new]), kind="stable")]
    if mode == "many":
        chosen[new] = np.arange(len(new)) % sources
    elif mode == "one":
        waiting = [source for source in range(sources) if source not in chosen]
        chosen[new[: len(waiting)]] = waiting[: len(new)]
    return chosen


def _check(prior_px: NDArray[np.float32], prior_source: NDArray[np.int32], sources: int, mode: str, order: str) -> None:
    for name, value, known in (("mode", mode, SELECTOR_MODES), ("order", order, SELECTOR_ORDERS)):
        if value not in known:
            raise InputError(f"there is no face selector {name} {value!r}; choose one of {', '.join(known)}")
    if prior_source.shape != (len(prior_px),):
        raise InputError(
            f"SOURCE_INDEX has shape {list(prior_source.shape)}, but PRIOR has {len(prior_px)} faces: send one for each"
        )
    if len(prior_source) and not KEPT <= prior_source.min() <= prior_source.max() < sources:
        raise InputError(f"SOURCE_INDEX must be {KEPT} (keep the face) to {sources - 1}: there are {sources} sources")


def _boxes(landmarks_px: NDArray[np.float32]) -> NDArray[np.float32]:
    xy = landmarks_px[..., :2]
    return np.asarray(np.concatenate([xy.min(1), xy.max(1)], axis=1), np.float32)


def _area(box: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray((box[:, 2:] - box[:, :2]).prod(1), np.float32)
