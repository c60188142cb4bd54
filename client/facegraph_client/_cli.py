"""The ``facegraph`` command.

Results go to stdout, messages and progress to stderr. Exit status: 0 all went well, 1 some photos failed, 2 nothing
could be done (wrong usage, no server, no place to write), 130 and 143 stopped by Ctrl-C and SIGTERM.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from facegraph_client._errors import FaceGraphError
from facegraph_client._protocol import (
    DEFAULT_TEXTURE_SIZE_PX,
    DEFAULT_TIMEOUT_S,
    SELECTOR_MODES,
    SELECTOR_ORDERS,
    TEXTURE_SIZE_RANGE_PX,
)

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from facegraph_client._batch import BatchReport
    from facegraph_client._swap_command import SwapListener
    from facegraph_client._video_pipeline import VideoProgress

_OK, _SOME_FAILED, _NOTHING_DONE, _INTERRUPTED = 0, 1, 2, 130
_PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
_CONSENT = "Swap only faces of people who agreed to it. The result is marked as a composite."
_PLAIN_WIDTH = 200  # of a table that goes to a file or a pipe

# A photo that may not be read is that photo's trouble only.
_photo_path = click.Path(path_type=Path, readable=False)
_photos = click.argument("photos", nargs=-1, required=True, type=_photo_path, metavar="PHOTO...")
_server = click.option(
    "--server",
    metavar="ADDRESS",
    envvar="FACEGRAPH_SERVER",
    help="HOST:PORT (gRPC) or http://HOST:PORT of a running server; also from $FACEGRAPH_SERVER. Without it: the one at"
    " 127.0.0.1:8001, or an embedded one that lives as long as the command.",
)
_search_tiles = click.option("--search-tiles", is_flag=True, help="Also find small faces, down to 3 % of the height.")
_timeout = click.option(
    "--timeout",
    "timeout_s",
    metavar="SECONDS",
    default=DEFAULT_TIMEOUT_S,
    show_default=True,
    help="How long one photo may take.",
)
_overwrite = click.option("--overwrite", is_flag=True, help="Replace files that exist.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="facegraph", prog_name="facegraph")
def cli() -> None:
    """Turn the faces in photos into textured 3D meshes.

    \b
    Examples:
      facegraph reconstruct photo.jpg --out faces/
      facegraph reconstruct holiday/*.jpg --out faces/ --texture-size 2048
      facegraph landmarks photo.jpg > landmarks.json
      facegraph landmarks photo.jpg --picture mesh.png
      facegraph swap --source face.jpg --target in.mp4 --out out.mp4
    """  # noqa: D301  (the backspace keeps click from wrapping)


@cli.command()
@_photos
@click.option(
    "--out",
    "folder",
    required=True,
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Where the results go; created where needed.",
)
@_server
@click.option(
    "--texture-size",
    "texture_size_px",
    metavar="PIXELS",
    type=click.IntRange(*TEXTURE_SIZE_RANGE_PX),
    default=DEFAULT_TEXTURE_SIZE_PX,
    show_default=True,
    help="Side of the square texture.",
)
@_search_tiles
@_overwrite
@_timeout
def reconstruct(
    photos: tuple[Path, ...],
    folder: Path,
    server: str | None,
    texture_size_px: int,
    search_tiles: bool,
    overwrite: bool,
    timeout_s: float,
) -> int:
    """Write a textured 3D mesh of every face in the photos.

    For each face: NAME-face1.glb, .obj with .mtl and .png, and .json (landmarks, box, score, pose, scale).
    For each photo: NAME-preview.jpg.

    \b
    Examples:
      facegraph reconstruct photo.jpg --out faces/
      facegraph reconstruct a/*.jpg b/*.heic --out faces/ --server 10.0.0.7:8001
    """  # noqa: D301  (the backspace keeps click from wrapping)
    from facegraph_client._batch import Options, reconstruct_photos  # noqa: PLC0415  (--help must be quick)
    from facegraph_client._files import prepare_folder  # noqa: PLC0415
    from facegraph_client._server_choice import connect  # noqa: PLC0415

    prepare_folder(folder)
    options = Options(folder=folder, search_tiles=search_tiles, texture_size_px=texture_size_px, overwrite=overwrite)
    with connect(server, timeout_s=timeout_s, waiting=_waiting) as client, _progress(len(photos)) as progress:
        report = reconstruct_photos(client, photos, options, progress)
    _print_summary(report, folder)
    if report.fatal:
        return _NOTHING_DONE
    return _SOME_FAILED if report.failures else _OK


@cli.command()
@_photos
@click.option(
    "--picture",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Instead of JSON, write the photo with the mesh drawn on it (.png, .jpg or .webp); for one photo.",
)
@_server
@_search_tiles
@_overwrite
@_timeout
def landmarks(
    photos: tuple[Path, ...],
    picture: Path | None,
    server: str | None,
    search_tiles: bool,
    overwrite: bool,
    timeout_s: float,
) -> int:
    """Print the 468 landmarks of every face as JSON.

    One list with an entry for each photo: {"source", "faces": [{"score", "box_xyxy", "landmarks_px"}]}, or "error"
    instead of "faces". Coordinates are pixels of the upright photo.

    \b
    Examples:
      facegraph landmarks photo.jpg > landmarks.json
      facegraph landmarks photo.jpg --picture mesh.png
    """  # noqa: D301  (the backspace keeps click from wrapping)
    from facegraph_client._batch import naming, no_face_found, photo_document, shown  # noqa: PLC0415
    from facegraph_client._files import prepare_folder, refuse_existing  # noqa: PLC0415
    from facegraph_client._server_choice import connect  # noqa: PLC0415

    if picture is not None:
        _check_picture(picture, photos)
        prepare_folder(picture.parent)
        refuse_existing([picture], overwrite=overwrite)
    documents: list[dict[str, Any]] = []
    with connect(server, timeout_s=timeout_s, waiting=_waiting) as client:
        for photo in photos:
            try:
                faces = client.landmarks(photo, search_tiles=search_tiles)
                if not faces:
                    _tell(f"warning: {shown(photo)}: {no_face_found(search_tiles=search_tiles)}")
                if picture is not None:
                    _write_picture(photo, faces, picture, overwrite)
            except FaceGraphError as error:
                _tell(f"error: {naming(photo, error)}")
                documents.append({"source": shown(photo), "error": str(error)})
            else:
                documents.append(photo_document(photo, faces))
    if picture is None:
        click.echo(json.dumps(documents))
    return _SOME_FAILED if any("error" in document for document in documents) else _OK


@cli.command()
@click.option(
    "--source",
    "sources",
    required=True,
    multiple=True,
    metavar="PHOTO",
    type=_photo_path,
    help="Whose face to put in; may be repeated for a video, for several faces.",
)
@click.option(
    "--target",
    required=True,
    metavar="TARGET",
    help="A photo, a video, a folder of them, or live: rtsp://..., a camera's number, - for a stream on stdin.",
)
@click.option(
    "--out",
    required=True,
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="The result: a photo, a video (.mp4, .mov, .mkv), or a folder for a folder.",
)
@click.option(
    "--face-selector-mode",
    "mode",
    type=click.Choice(SELECTOR_MODES[:2]),
    default="one",
    show_default=True,
    help="one: as many faces as there are sources, the first in the order. many: all faces, the sources in turn.",
)
@click.option(
    "--face-selector-order",
    "order",
    type=click.Choice(SELECTOR_ORDERS),
    default="large-small",
    show_default=True,
    help="In which order the faces of the target are counted.",
)
@click.option("--resume", is_flag=True, help="Go on with a video that was interrupted.")
@_server
@_search_tiles
@_overwrite
@_timeout
def swap(
    sources: tuple[Path, ...],
    target: str,
    out: Path,
    mode: str,
    order: str,
    resume: bool,
    server: str | None,
    search_tiles: bool,
    overwrite: bool,
    timeout_s: float,
) -> int:
    """Put the face of one photo onto those of another photo, of a video or of a live source.

    A video keeps its sound, times, size and colours. Every result carries the mark of a composite with synthetic
    elements (IPTC digital source type). Use it only with the consent of the people shown, and say what it is.

    \b
    Examples:
      facegraph swap --source face.jpg --target photo.jpg --out swapped.jpg
      facegraph swap --source face.jpg --target in.mp4 --out out.mp4
      facegraph swap --source a.jpg --source b.jpg --target in.mp4 --out out.mp4 --face-selector-order left-right
      facegraph swap --source face.jpg --target 0 --out recorded.mp4
    """  # noqa: D301  (the backspace keeps click from wrapping)
    from facegraph_client._server_choice import connect  # noqa: PLC0415
    from facegraph_client._swap_command import SwapOptions, swap_targets  # noqa: PLC0415

    _tell(_CONSENT)
    options = SwapOptions(mode=mode, order=order, search_tiles=search_tiles, overwrite=overwrite, resume=resume)
    with connect(server, timeout_s=timeout_s, waiting=_waiting) as client, _swap_progress() as listener:
        failures = swap_targets(client, sources, target, out, options, listener)
    return _SOME_FAILED if failures else _OK


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    for name in ("SIGTERM", "SIGHUP"):  # unwind like Ctrl-C, so that an embedded server is stopped
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), _terminate)
    try:
        status: int | None = cli.main(arguments, prog_name="facegraph", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        _tell("Stopped.")
        return _INTERRUPTED
    except FaceGraphError as error:
        _tell(f"error: {error}")
        return _NOTHING_DONE
    except BrokenPipeError:  # the reader of stdout, such as head, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _SOME_FAILED
    except OSError as error:  # stdout went to a full disk
        _tell(f"error: the results cannot be written: {error.strerror or error}")
        return _NOTHING_DONE
    return status or _OK


def _terminate(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _tell(message: str) -> None:
    click.echo(message, err=True)


@contextlib.contextmanager
def _waiting(message: str) -> Iterator[None]:
    """Tell what is waited for, with a spinner where somebody looks."""
    from rich.console import Console  # noqa: PLC0415

    console = Console(stderr=True)
    if not console.is_terminal:
        _tell(message)
        yield
        return
    with console.status(message):
        yield


def _check_picture(picture: Path, photos: Sequence[Path]) -> None:
    if len(photos) > 1:
        raise click.UsageError("--picture takes one photo; call the command once for each")
    if picture.suffix.lower() not in _PICTURE_SUFFIXES:
        raise click.UsageError(f"--picture must end in one of {', '.join(_PICTURE_SUFFIXES)}")
    if picture.exists() and photos[0].exists() and picture.samefile(photos[0]):
        raise click.UsageError(f"--picture {picture} is the photo itself: choose another name")


def _write_picture(photo: Path, faces: Sequence[Any], picture: Path, overwrite: bool) -> None:
    from facegraph_client._batch import encoded_picture, shown  # noqa: PLC0415
    from facegraph_client._files import write_files  # noqa: PLC0415
    from facegraph_client._photo import load_upright_rgb  # noqa: PLC0415
    from facegraph_client._preview import draw_landmarks  # noqa: PLC0415

    image = draw_landmarks(load_upright_rgb(photo), faces)
    write_files({picture: encoded_picture(image, picture.suffix.lower())}, overwrite=overwrite)
    _tell(f"{shown(photo)}: {_faces_text(len(faces))}, drawn in {shown(picture)}")


class _Listener:
    """Writes messages above the progress bar, or plainly where there is none."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task

    def warn(self, message: str) -> None:
        self._say(f"warning: {message}", "yellow")

    def fail(self, message: str) -> None:
        self._say(f"error: {message}", "red")

    def advance(self) -> None:
        self._progress.advance(self._task)

    def _say(self, message: str, style: str) -> None:
        from rich.text import Text  # noqa: PLC0415

        self._progress.console.print(Text(message, style), soft_wrap=True)


@contextlib.contextmanager
def _progress(photos: int) -> Iterator[_Listener]:
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield _Listener(progress, progress.add_task("photos", total=photos))


@contextlib.contextmanager
def _swap_progress() -> Iterator[SwapListener]:
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    from facegraph_client._swap_command import SwapListener  # noqa: PLC0415

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bars: dict[Path, TaskID] = {}

        def show(target: Path, video: VideoProgress) -> None:
            if target not in bars:
                bars[target] = progress.add_task("")
            text = f"{target.name}: {video.frames_done} frames, {video.frames_per_s:.1f} frames/s"
            progress.update(bars[target], description=text, completed=video.frames_done, total=video.frames_estimate)

        def say(prefix: str, style: str) -> Callable[[str], None]:
            from rich.text import Text  # noqa: PLC0415

            return lambda message: progress.console.print(Text(prefix + message, style), soft_wrap=True)

        yield SwapListener(warn=say("warning: ", "yellow"), done=say("", ""), fail=say("error: ", "red"), progress=show)


def _print_summary(report: BatchReport, folder: Path) -> None:
    from rich import box  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from facegraph_client._batch import shown  # noqa: PLC0415

    console = Console()
    if not console.is_terminal:
        console = Console(width=_PLAIN_WIDTH)
    frame = box.SIMPLE_HEAD if console.is_terminal else None
    photos = Table("photo", box=frame)
    photos.add_column("faces", justify="right")
    photos.add_column("ms", justify="right")
    for photo in report.photos:
        faces = Text("failed", "red") if photo.faces is None else Text(str(photo.faces))
        photos.add_row(Text(shown(photo.photo), overflow="fold"), faces, f"{photo.total_ms:.0f}")
    console.print(photos)
    console.print()
    if report.failures < len(report.photos):
        stages = Table("stage", box=frame)
        stages.add_column("ms", justify="right")
        stages.add_column("ms/photo", justify="right")
        for stage, ms in report.stages_ms.items():
            stages.add_row(Text(stage), f"{ms:.1f}", f"{ms / len(report.photos):.1f}")
        console.print(stages)
        console.print()
    faces_found = sum(photo.faces or 0 for photo in report.photos)
    failed = f", {report.failures} of {len(report.photos)} photos failed" if report.failures else ""
    untried = f", {report.untried} not tried" if report.untried else ""
    console.print(Text(f"{_faces_text(faces_found)} in {shown(folder)}{failed}{untried}"), soft_wrap=True)


def _faces_text(faces: int) -> str:
    return f"{faces} face" if faces == 1 else f"{faces} faces"
