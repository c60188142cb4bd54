"""Face swap: the same sources onto frame after frame."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from facegraph_client import _protocol as protocol
from facegraph_client._errors import InputError
from facegraph_client._results import VERTICES, Face
from facegraph_client._video_live import LiveReport, LiveResult, process_live
from facegraph_client._video_pipeline import VideoProgress, VideoReport, process_video

if TYPE_CHECKING:
    from facegraph_client._client import FaceClient

SWAP_TEXTURE_SIZE_PX = 512
"""Side of the texture that a swap uses: enough for a face of 512 px, and a quarter of the default's bytes."""


class SwapState(NamedTuple):
    """What a frame hands to the next one: its faces and what each of them got.

    Attributes:
        landmarks_px: FP32 [n,468,3].
        source_index: INT32 [n], the source of each face, -1 for a face that keeps its own.

    """

    landmarks_px: NDArray[np.float32]
    source_index: NDArray[np.int32]


FRAMES_IN_FLIGHT = 3
"""Frames of a video that the server works on at a time; each gets the faces of the one as many before it."""

NO_FACES = SwapState(np.empty((0, VERTICES, 3), np.float32), np.empty(0, np.int32))
"""The state before the first frame."""


class FaceSwapSession:
    """Swap faces in the frames of one video.

    The session holds no state of the video: :meth:`swap` takes the state of an earlier frame and returns the next one,
    so frames may be in flight side by side. Threads may share it.

    Usage::

        with FaceClient() as client:
            session = FaceSwapSession(client, client.reconstruct("source.jpg", texture_size_px=512))
            session.swap_video("in.mp4", "out.mp4")

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
        self._client = client
        digest = hashlib.sha256(repr((mode, order)).encode())
        for face in sources:
            digest.update(face.texture_rgb.tobytes() + face.coverage.tobytes())
        self._job = digest.hexdigest()
        self._sources = (
            np.stack([face.texture_rgb for face in sources]),
            np.stack([face.coverage for face in sources]),
        )
        self._selector = protocol.checked_selector(mode, order)

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
        changed = bool((source_index >= 0).any())
        return swapped if changed else frame_rgb, SwapState(landmarks_px, source_index)

    def swap_video(
        self,
        source: str | os.PathLike[str],
        target: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        resume: bool = False,
        on_progress: Callable[[VideoProgress], None] | None = None,
    ) -> VideoReport:
        """Swap the faces of a video file; its sound, frame times, size and colours are kept.

        Ctrl-C leaves no half video: what is done lies beside the target, and ``resume`` goes on with it.

        Args:
            source: the video to change.
            target: to write; its suffix, .mp4, .mov or .mkv, says the container.
            overwrite: replace the target.
            resume: go on with what an interrupted run left.
            on_progress: called after every frame.

        Raises:
            VideoError: the video cannot be read, or is of a kind that cannot be kept (HDR).
            OutputError: the target exists or cannot be written.
            SetupError: PyAV is not installed.
            ServerError: the server could not answer; see its subclasses.

        """
        return process_video(
            source,
            target,
            self.swap,
            job=self._job,
            in_flight=FRAMES_IN_FLIGHT,
            make_state=SwapState._make,
            overwrite=overwrite,
            resume=resume,
            on_progress=on_progress,
        )

    def swap_live(
        self,
        source: str,
        *,
        target: str | os.PathLike[str] | None = None,
        on_result: Callable[[LiveResult], None] | None = None,
        overwrite: bool = False,
    ) -> LiveReport:
        """Swap the faces of a live source, always in its newest frame, until it ends or Ctrl-C.

        Args:
            source: ``rtsp://...``, the number of a camera, or ``-`` for a video stream on standard input.
            target: record the result in this file, without sound.
            on_result: called with every frame.
            overwrite: replace the target.

        Raises:
            VideoError: the source cannot be opened or breaks off.
            InputError: there is neither ``target`` nor ``on_result``.
            OutputError: the target exists or cannot be written.
            ServerError: the server could not answer; see its subclasses.

        """
        return process_live(source, self.swap, target=target, on_result=on_result, overwrite=overwrite)
