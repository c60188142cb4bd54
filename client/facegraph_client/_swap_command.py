"""The work of ``facegraph swap``: target by target, photos and videos, a bad one reported and the rest finished."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from facegraph_client._batch import naming
from facegraph_client._client import FaceClient
from facegraph_client._errors import (
    FaceGraphError,
    ImageError,
    InputError,
    ModelUnavailableError,
    ServerUnavailableError,
)
from facegraph_client._files import prepare_folder, refuse_existing, write_files
from facegraph_client._results import Face
from facegraph_client._swap import SWAP_TEXTURE_SIZE_PX, FaceSwapSession
from facegraph_client._video_live import is_live
from facegraph_client._video_pipeline import VideoProgress

PHOTO_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".heic", ".heif", ".avif")
VIDEO_SUFFIXES = (".mp4", ".mov", ".mkv", ".m4v", ".webm", ".avi", ".mts", ".mpg", ".mpeg")
_WRITABLE_VIDEO_SUFFIXES = (".mp4", ".mov", ".mkv")
_SMALL_FACE_PX = 60

_FATAL = (ServerUnavailableError, ModelUnavailableError)


@dataclass(frozen=True, kw_only=True)
class SwapOptions:
    """What the user chose for all targets."""

    mode: str
    order: str
    search_tiles: bool
    overwrite: bool
    resume: bool


@dataclass(frozen=True, kw_only=True)
class SwapListener:
    """Who hears of the work: a remark, a finished target, a failed one, the progress of a video."""

    warn: Callable[[str], None]
    done: Callable[[str], None]
    fail: Callable[[str], None]
    progress: Callable[[Path, VideoProgress], None]


def load_sources(client: FaceClient, photos: Sequence[Path], warn: Callable[[str], None]) -> list[Face]:
    """Return the faces of the source photos, the largest of each first.

    Raises:
        ImageError: a photo cannot be read or shows no face.

    """
    sources = []
    for photo in photos:
        faces = client.reconstruct(photo, texture_size_px=SWAP_TEXTURE_SIZE_PX)
        if not faces:
            raise ImageError(f"{photo} shows no face to take: choose a photo with a larger, sharper, less turned face")
        if len(faces) > 1:
            warn(f"{photo} shows {len(faces)} faces: all are sources, the largest first")
        if _width_px(faces[0]) < _SMALL_FACE_PX:
            warn(f"the face in {photo} is only {_width_px(faces[0]):.0f} pixels wide: the result will be blurred")
        sources.extend(faces)
    return sources


def swap_targets(
    client: FaceClient,
    sources: Sequence[Path],
    target: str,
    out: Path,
    options: SwapOptions,
    listener: SwapListener,
) -> int:
    """Swap the faces of a photo, a video, a live source, or of all photos and videos of a folder.

    Returns:
        How many targets failed.

    Raises:
        InputError: the target is of no kind that can be changed, or does not fit the result's name.
        FaceGraphError: the only target failed, or the server is gone.

    """
    swapper = _Swapper(client, sources, options, listener)
    if is_live(target):
        report = swapper.session.swap_live(target, target=out, overwrite=options.overwrite)
        listener.done(
            f"{out}: {report.frames} frames, {report.dropped} dropped, {report.median_latency_ms:.0f} ms behind"
        )
        return 0
    path = Path(target)
    if not path.is_dir():
        swapper.swap(path, out)
        return 0
    prepare_folder(out)
    failures = 0
    for source, result in _results_of_folder(path, out):
        try:
            swapper.swap(source, result)
        except _FATAL:
            raise
        except FaceGraphError as error:
            failures += 1
            listener.fail(naming(source, error))
    return failures


def _results_of_folder(folder: Path, out: Path) -> Iterator[tuple[Path, Path]]:
    """Yield each photo and video of a folder with the place of its result.

    Raises:
        InputError: there is none, or the results would replace them.

    """
    if out.exists() and out.samefile(folder):
        raise InputError(f"{out} is the folder of the targets itself: choose another one for the results")
    suffixes = PHOTO_SUFFIXES + VIDEO_SUFFIXES
    targets = sorted(path for path in folder.iterdir() if path.suffix.lower() in suffixes and path.is_file())
    if not targets:
        raise InputError(f"{folder} holds no photo or video: their names must end in one of {', '.join(suffixes)}")
    for path in targets:
        yield path, out / (path.name if path.suffix.lower() in _KEPT_SUFFIXES else f"{path.name}{_new_suffix(path)}")


_KEPT_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", *_WRITABLE_VIDEO_SUFFIXES)


def _new_suffix(path: Path) -> str:
    """Return what to append to the name of a format that is not written."""
    if path.suffix.lower() in VIDEO_SUFFIXES:
        return ".mp4"
    return ".jpg" if path.suffix.lower() in (".heic", ".heif", ".avif") else ".png"


class _Swapper:
    """Swaps one target after the other; what a video needs of the sources is asked for once, and only for a video."""

    def __init__(
        self, client: FaceClient, sources: Sequence[Path], options: SwapOptions, listener: SwapListener
    ) -> None:
        self._client, self._sources, self._options, self._listener = client, sources, options, listener

    @cached_property
    def session(self) -> FaceSwapSession:
        faces = load_sources(self._client, self._sources, self._listener.warn)
        return FaceSwapSession(self._client, faces, mode=self._options.mode, order=self._options.order)

    def swap(self, target: Path, out: Path) -> None:
        if out.suffix.lower() in _WRITABLE_VIDEO_SUFFIXES:
            self._swap_video(target, out)
        elif target.suffix.lower() in VIDEO_SUFFIXES:
            raise InputError(f"{out} must end in {', '.join(_WRITABLE_VIDEO_SUFFIXES)}: {target} is a video")
        else:
            self._swap_photo(target, out)

    def _swap_video(self, target: Path, out: Path) -> None:
        report = self.session.swap_video(
            target,
            out,
            overwrite=self._options.overwrite,
            resume=self._options.resume,
            on_progress=lambda progress: self._listener.progress(target, progress),
        )
        for remark in report.remarks:
            self._listener.warn(f"{target}: {remark}")
        resumed = f", {report.resumed_frames} of them from the interrupted run" if report.resumed_frames else ""
        self._listener.done(f"{out}: {report.frames} frames{resumed}")

    def _swap_photo(self, target: Path, out: Path) -> None:
        if len(self._sources) > 1:
            raise InputError(
                f"{target} is a photo, which takes one --source: a photo of several people gives several faces"
            )
        if out.exists() and target.exists() and out.samefile(target):
            raise InputError(f"{out} is the photo itself: choose another name")
        refuse_existing([out], overwrite=self._options.overwrite)
        photo = self._client.swap(
            self._sources[0],
            target,
            mode=self._options.mode,
            order=self._options.order,
            search_tiles=self._options.search_tiles,
        )
        kind = _encoded_suffixes(photo.encoded)
        if photo.swapped and out.suffix.lower() not in kind:
            raise InputError(f"{out} must end in {' or '.join(kind)}, as {target} is such a picture")
        write_files({out: photo.encoded}, overwrite=self._options.overwrite)
        if photo.swapped == 0:
            self._listener.warn(f"{target}: no face was swapped, so {out} is a copy")
        self._listener.done(f"{out}: {photo.swapped} of {photo.faces} faces swapped")


def _encoded_suffixes(encoded: bytes) -> tuple[str, ...]:
    """Return what a file with these bytes may end in: the server writes JPEG, WebP or PNG."""
    if encoded.startswith(b"\xff\xd8"):
        return ".jpg", ".jpeg"
    return (".webp",) if encoded.startswith(b"RIFF") else (".png",)


def _width_px(face: Face) -> float:
    return float(face.box_xyxy[2] - face.box_xyxy[0])
