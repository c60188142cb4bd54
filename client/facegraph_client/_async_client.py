"""The client for asyncio: :mod:`facegraph_client._client` with ``await``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from facegraph_client import _protocol as protocol
from facegraph_client._client import DEFAULT_ADDRESS
from facegraph_client._errors import ServerError, ServerTimeoutError
from facegraph_client._photo import Photo, encoded_photo
from facegraph_client._protocol import SwappedPhoto, checked_selector
from facegraph_client._results import Face, FaceLandmarks

if TYPE_CHECKING:
    from facegraph_client._grpc_transport import AsyncGrpcTransport
    from facegraph_client._http_transport import AsyncHttpTransport


class AsyncFaceClient:
    """Find and reconstruct faces with a Triton server that serves facegraph's models.

    Use it as an async context manager, or await :meth:`close`. Tasks of one event loop may share a client: it connects
    on the first call and belongs to the loop that made it. Photos given as paths are read in a worker thread.

    Usage::

        async with AsyncFaceClient("127.0.0.1:8001") as client:
            for face in await client.reconstruct("photo.jpg"):
                face.save_glb("face.glb")

    Args:
        url: ``HOST:PORT`` or ``grpc://HOST:PORT`` for gRPC, ``http://HOST:PORT`` for HTTP, or a gRPC name such as
            ``dns:///HOST:PORT`` that resolves to several replicas: requests are spread over them.
        timeout_s: how long one request may take.

    Raises:
        InputError: the address or the timeout makes no sense.

    """

    def __init__(self, url: str = DEFAULT_ADDRESS, *, timeout_s: float = protocol.DEFAULT_TIMEOUT_S) -> None:
        self._address = protocol.parse_address(url)
        self._timeout_s = protocol.checked_timeout(timeout_s)
        self._transport: AsyncGrpcTransport | AsyncHttpTransport | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"AsyncFaceClient({str(self._address)!r}, timeout_s={self._timeout_s:g})"

    async def __aenter__(self) -> AsyncFaceClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def landmarks(self, photo: Photo, *, search_tiles: bool = False) -> list[FaceLandmarks]:
        """Find every face in a photo.

        Args:
            photo: a path, the bytes of an encoded picture, or UINT8 [H,W,3] RGB.
            search_tiles: also search in overlapping tiles, which finds faces down to 3 % of the photo's height
                instead of 8 %, and takes longer.

        Returns:
            The faces; an empty list where there are none.

        Raises:
            ImageError: the photo cannot be read or decoded.
            ServerError: the server could not answer; see its subclasses.

        """
        call = protocol.landmarks_call(await asyncio.to_thread(encoded_photo, photo), search_tiles=search_tiles)
        return protocol.parse_landmarks(await self._infer(call))

    async def reconstruct(
        self,
        photo: Photo,
        *,
        search_tiles: bool = False,
        texture_size_px: int = protocol.DEFAULT_TEXTURE_SIZE_PX,
    ) -> list[Face]:
        """Turn every face in a photo into a textured 3D mesh.

        Args:
            photo: a path, the bytes of an encoded picture, or UINT8 [H,W,3] RGB.
            search_tiles: see :meth:`landmarks`.
            texture_size_px: side of the square texture, 64 to 4096.

        Returns:
            The faces; an empty list where there are none.

        Raises:
            ImageError: the photo cannot be read or decoded.
            InputError: the texture size is out of range.
            ServerError: the server could not answer; see its subclasses.

        """
        call = protocol.reconstruction_call(
            await asyncio.to_thread(encoded_photo, photo), search_tiles=search_tiles, texture_size_px=texture_size_px
        )
        return protocol.parse_faces(await self._infer(call))

    async def track(
        self, frame_rgb: NDArray[np.uint8], prior: Sequence[FaceLandmarks] | None = None
    ) -> list[FaceLandmarks]:
        """Find the faces in the next frame of a video, smoothed over time.

        Args:
            frame_rgb: UINT8 [H,W,3].
            prior: what this method returned for the frame before; None for the first one.

        Returns:
            The faces, in the order of ``prior`` where a face goes on.

        Raises:
            InputError: the frame is not UINT8 [H,W,3].
            ServerError: the server could not answer; see its subclasses.

        """
        return protocol.parse_landmarks(await self._infer(protocol.tracking_call(frame_rgb, prior or ())))

    async def swap(
        self,
        source: Photo,
        target: Photo,
        *,
        mode: str = "one",
        order: str = "large-small",
        search_tiles: bool = False,
    ) -> SwappedPhoto:
        """Put the faces of one photo onto those of another.

        For video see :class:`FaceSwapSession`.

        Args:
            source: the photo whose faces to take, the largest first.
            target: the photo to change.
            mode: which of its faces: ``one``, as many as the source has; ``many``, all.
            order: in which its faces are counted: ``large-small``, ``small-large``, ``left-right``, ``right-left``,
                ``top-bottom`` or ``bottom-top``.
            search_tiles: see :meth:`landmarks`; in the target.

        Raises:
            ImageError: a photo cannot be read or decoded, or the source shows no face.
            InputError: mode or order is unknown.
            ServerError: the server could not answer; see its subclasses.

        """
        call = protocol.photo_swap_call(
            encoded_photo(source), encoded_photo(target), checked_selector(mode, order), search_tiles=search_tiles
        )
        return protocol.parse_photo_swap(await self._infer(call))

    async def is_ready(self) -> bool:
        """Say, within two seconds, whether the server answers and can find faces."""
        try:
            return await self._open_transport().is_model_ready(protocol.LANDMARKS_MODEL, protocol.READY_CHECK_TIMEOUT_S)
        except ServerError:
            return False

    async def wait_until_ready(self, timeout_s: float = protocol.DEFAULT_READY_TIMEOUT_S) -> None:
        """Wait for a server that is starting.

        Raises:
            ServerTimeoutError: it is not ready within ``timeout_s``.

        """
        deadline = time.monotonic() + protocol.checked_timeout(timeout_s)
        while not await self.is_ready():
            if time.monotonic() > deadline:
                raise ServerTimeoutError(protocol.not_ready_message(self._address, timeout_s))
            await asyncio.sleep(protocol.READY_POLL_S)

    async def stage_times_ms(self) -> dict[str, float]:
        """Return each model's compute time in ms since the server started.

        Subtract two answers to time what ran between them. The steps of an ensemble are listed under their own names;
        the ensemble repeats their sum.

        Raises:
            ServerError: the server could not answer; see its subclasses.

        """
        return protocol.compute_times_ms(await self._open_transport().compute_times_ns(self._timeout_s))

    async def close(self) -> None:
        """Close the connection. Later calls raise RuntimeError."""
        if not self._closed:
            self._closed = True
            if self._transport is not None:
                await self._transport.close()

    async def _infer(self, call: protocol.Call) -> dict[str, NDArray[np.generic]]:
        return await self._open_transport().infer(call, self._timeout_s)

    def _open_transport(self) -> AsyncGrpcTransport | AsyncHttpTransport:
        if self._closed:
            raise RuntimeError("this AsyncFaceClient is closed: make a new one")
        if self._transport is None:
            self._transport = _connect(self._address)
        return self._transport


def _connect(address: protocol.Address) -> AsyncGrpcTransport | AsyncHttpTransport:
    # Either tritonclient takes most of a second to import.
    if address.protocol == "http":
        from facegraph_client._http_transport import AsyncHttpTransport  # noqa: PLC0415

        return AsyncHttpTransport(address)
    from facegraph_client._grpc_transport import AsyncGrpcTransport  # noqa: PLC0415

    return AsyncGrpcTransport(address)
