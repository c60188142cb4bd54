"""Face swap: the same sources onto frame after frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from facegraph_client import _protocol as protocol
from facegraph_client._errors import InputError
from facegraph_client._results import VERTICES, Face

if TYPE_CHECKING:
    from facegraph_client._client import FaceClient

SWAP_TEXTURE_SIZE_PX = 512
"""Side of the texture that a swap uses: enough for a face of 512 px, and a quarter of the default's bytes."""

SELECTOR_MODES = ("one", "many", "reference")
SELECTOR_ORDERS = ("large-small", "small-large", "left-right", "right-left", "top-bottom", "bottom-top")


class SwapState(NamedTuple):
    """What a frame hands to the next one: its faces and what each of them got.

    Attributes:
        landmarks_px: FP32 [n,468,3].
        source_index: INT32 [n], the source of each face, -1 for a face that keeps its own.

    """

    landmarks_px: NDArray[np.float32]
    source_index: NDArray[np.int32]


NO_FACES = SwapState(np.empty((0, VERTICES, 3), np.float32), np.empty(0, np.int32))
"""The state before the first frame."""


class FaceSwapSession:
    """Swap faces in the frames of one video.

    The session holds no state of the video: :meth:`swap` takes the state of an earlier frame and returns the next one,
    so frames may be in flight side by side. Threads may share it.

    Usage::

        with FaceClient() as client:
            session = client.swap_session("source.jpg")
            state = None
            for frame_rgb in frames:
                swapped_rgb, state = session.swap(frame_rgb, state)

    Args:
        client: open for as long as the session is used.
        sources: the faces to put in, from :meth:`FaceClient.reconstruct`; all with textures of one size.
        mode: which faces get a source: ``one``, as many as there are sources, the first in the order; ``many``, every
            face, the sources in turn; ``reference``, only those of the state that is given.
        order: ``large-small``, ``small-large``, ``left-right``, ``right-left``, ``top-bottom`` or ``bottom-top``.

    Raises:
        InputError: there is no source, their textures differ in size, or mode or order is unknown.

    """

    def __init__(
        self, client: FaceClient, sources: Sequence[Face], *, mode: str = "one", order: str = "large-small"
    ) -> None:
        if not sources:
            raise InputError("the source shows no face: choose a photo with a larger, sharper, less turned face")
        if len({face.texture_size_px for face in sources}) > 1:
            raise InputError("the sources' textures differ in size: reconstruct them with one texture_size_px")
        for name, value, known in (("mode", mode, SELECTOR_MODES), ("order", order, SELECTOR_ORDERS)):
            if value not in known:
                raise InputError(f"there is no face selector {name} {value!r}; choose one of {', '.join(known)}")
        self._client = client
        self._sources = (
            np.stack([face.texture_rgb for face in sources]),
            np.stack([face.coverage for face in sources]),
        )
        self._selector = (mode, order)

    def swap(self, frame_rgb: NDArray[np.uint8], state: SwapState | None = None) -> tuple[NDArray[np.uint8], SwapState]:
        """Swap the faces of one frame.

        Args:
            frame_rgb: UINT8 [H,W,3].
            state: of an earlier frame of the same video, None for the first.

        Returns:
            The frame, UINT8 [H,W,3], and its state. Without a face that is chosen it is the frame that was given.

        Raises:
            InputError: the frame is not UINT8 [H,W,3].
            ServerError: the server could not answer; see its subclasses.

        """
        frame = protocol.checked_frame(frame_rgb)
        before = state or NO_FACES
        call = protocol.swap_call(frame, before.landmarks_px, before.source_index, self._sources, self._selector)
        swapped, landmarks_px, source_index = protocol.parse_swap(self._client._infer(call), frame)
        return swapped, SwapState(landmarks_px, source_index)
