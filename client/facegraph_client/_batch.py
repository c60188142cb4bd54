"""The work of ``facegraph reconstruct``: photo by photo, a bad one reported and the rest finished."""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

import click
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from facegraph_client._errors import (
    FaceGraphError,
    ImageError,
    ModelUnavailableError,
    OutputError,
    ServerError,
    ServerUnavailableError,
)
from facegraph_client._files import refuse_existing, write_files
from facegraph_client._output_names import FACE_SUFFIXES, face_path, output_stems, preview_path
from facegraph_client._photo import encoded_photo, load_upright_rgb
from facegraph_client._preview import preview
from facegraph_client._protocol import LANDMARKS_MODEL, RECONSTRUCTION_MODEL, TRACKING_MODEL
from facegraph_client._results import Face, FaceLandmarks

_UNITS = {
    "landmarks_px": "pixels of the upright photo, x right, y down; z in the same scale, smaller is nearer",
    "box_xyxy": "pixels: left, top, right, bottom",
    "pose": "4x4, head to OpenGL camera, centimetres",
    "scale_px_per_cm": "pixels per centimetre",
    "glb, obj": "metres; +x to the person's left, +y up, +z out of the face",
}
_BLANK_RGB = (52, 56, 65)
_STAGE_ORDER = ("preprocess", "face_detector", "crop_faces", "face_mesh", "postprocess", "unwrap_texture")
_PUBLIC_MODELS = (LANDMARKS_MODEL, RECONSTRUCTION_MODEL, TRACKING_MODEL)
_FATAL = (ServerUnavailableError, ModelUnavailableError)
"""The next photo would fare no better."""


class Reconstructor(Protocol):
    """What the batch needs of a client."""

    def reconstruct(self, photo: bytes, *, search_tiles: bool, texture_size_px: int) -> list[Face]:
        """See :meth:`FaceClient.reconstruct`."""

    def stage_times_ms(self) -> dict[str, float]:
        """See :meth:`FaceClient.stage_times_ms`."""


class Listener(Protocol):
    """Who hears of a batch's progress."""

    def warn(self, message: str) -> None:
        """Take a remark about a photo that went well."""

    def fail(self, message: str) -> None:
        """Take the reason why a photo failed."""

    def advance(self) -> None:
        """Count one photo, good or bad."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the user chose for all photos of a batch."""

    folder: Path
    search_tiles: bool
    texture_size_px: int
    overwrite: bool


@dataclass(frozen=True)
class PhotoReport:
    """What became of one photo: ``faces`` is None where it failed."""

    photo: Path
    faces: int | None
    total_ms: float


@dataclass
class BatchReport:
    """What became of all photos. ``stages_ms`` has the batch's sum for each stage, in the order of the work."""

    photos: list[PhotoReport] = field(default_factory=list)
    stages_ms: dict[str, float] = field(default_factory=dict)
    fatal: FaceGraphError | None = None
    untried: int = 0

    @property
    def failures(self) -> int:
        """How many photos failed."""
        return sum(report.faces is None for report in self.photos)


def reconstruct_photos(
    client: Reconstructor, photos: Sequence[Path], options: Options, listener: Listener
) -> BatchReport:
    """Reconstruct every photo and write its files; stop early only where the server is gone."""
    photos = _without_repeats(photos)
    inputs = {_identity(photo) for photo in photos}
    clock = _Clock()
    before = _stage_times_ms(client)
    report = BatchReport()
    for photo, stem in zip(photos, output_stems(photos), strict=True):
        start = time.perf_counter()
        faces: int | None = None
        try:
            faces = _reconstruct_photo(client, photo, stem, options, listener, clock, inputs)
        except _FATAL as error:
            report.fatal = error
            listener.fail(naming(photo, error))
        except FaceGraphError as error:
            listener.fail(naming(photo, error))
        report.photos.append(PhotoReport(photo, faces, (time.perf_counter() - start) * 1e3))
        listener.advance()
        if report.fatal:
            report.untried = len(photos) - len(report.photos)
            break
    report.stages_ms = _stages_ms(clock.ms, before, _stage_times_ms(client))
    return report


def shown(path: Path) -> str:
    """Return a path as text that any terminal takes."""
    return click.format_filename(path)


def no_face_found(*, search_tiles: bool) -> str:
    """Return the remark about a photo without a face."""
    return "no face found" if search_tiles else "no face found; --search-tiles finds smaller ones"


def naming(photo: Path, error: FaceGraphError) -> str:
    """Return an error's message with the photo's name in it, once."""
    return str(error) if str(photo) in str(error) else f"{shown(photo)}: {error}"


def photo_document(photo: Path, faces: Sequence[FaceLandmarks]) -> dict[str, Any]:
    """Return what ``facegraph landmarks`` says about one photo."""
    return {"source": shown(photo), "faces": [face.to_dict() for face in faces]}


def _reconstruct_photo(
    client: Reconstructor,
    photo: Path,
    stem: str,
    options: Options,
    listener: Listener,
    clock: _Clock,
    inputs: set[Path],
) -> int:
    with clock.measure("read the photo"):
        encoded = encoded_photo(photo)
    # Before the work and not after it; further faces are checked when they are written.
    _check_targets([preview_path(options.folder, stem), *_face_paths(options.folder, stem, 1)], options, inputs)
    with clock.measure(_ROUND_TRIP):
        faces = client.reconstruct(encoded, search_tiles=options.search_tiles, texture_size_px=options.texture_size_px)
    if not faces:
        listener.warn(f"{shown(photo)}: {no_face_found(search_tiles=options.search_tiles)}")
    for number, face in enumerate(faces, start=1):
        _check_targets(_face_paths(options.folder, stem, number), options, inputs)
        with clock.measure("write the 3D files"):
            _write_face(face, photo, stem, number, options)
    with clock.measure("draw the preview"):
        image = _image_or_blank(encoded, photo, faces, listener)
        picture = encoded_picture(preview(image, faces), ".jpg")
        write_files({preview_path(options.folder, stem): picture}, overwrite=options.overwrite)
    return len(faces)


def _write_face(face: Face, photo: Path, stem: str, number: int, options: Options) -> None:
    face.save_glb(face_path(options.folder, stem, number, ".glb"), overwrite=options.overwrite)
    face.save_obj(face_path(options.folder, stem, number, ".obj"), overwrite=options.overwrite)
    document = {"source": shown(photo), "face": number, "units": _UNITS, **face.to_dict()}
    content = (json.dumps(document, ensure_ascii=False) + "\n").encode("utf-8", "replace")
    write_files({face_path(options.folder, stem, number, ".json"): content}, overwrite=options.overwrite)


def _face_paths(folder: Path, stem: str, number: int) -> list[Path]:
    return [face_path(folder, stem, number, suffix) for suffix in FACE_SUFFIXES]


def _check_targets(targets: Sequence[Path], options: Options, inputs: set[Path]) -> None:
    for target in targets:
        if _identity(target) in inputs:
            raise OutputError(f"{shown(target)} is one of the photos: choose another folder for the results")
    refuse_existing(targets, overwrite=options.overwrite)


def _image_or_blank(encoded: bytes, photo: Path, faces: Sequence[Face], listener: Listener) -> NDArray[np.uint8]:
    """Decode the photo; where this machine cannot (HEIC), an empty picture that holds all the faces."""
    try:
        return load_upright_rgb(encoded)
    except ImageError as error:
        listener.warn(f"{shown(photo)}: the preview is without the photo: {error}")
        corners = [face.landmarks_px[:, :2].max(0) for face in faces] or [np.array([640.0, 480.0])]
        width, height = (int(x) for x in np.ceil(np.max(corners, axis=0) * 1.1).clip(1, 20_000))
        return np.full((height, width, 3), _BLANK_RGB, np.uint8)


def encoded_picture(image_rgb: NDArray[np.uint8], suffix: str) -> bytes:
    """Encode a picture by its file's suffix: ``.png``, ``.jpg``, ``.jpeg`` or ``.webp``."""
    buffer = BytesIO()
    kind = {".png": "PNG", ".webp": "WEBP"}.get(suffix, "JPEG")
    # Thin coloured lines blur in a JPEG whose colours have half the resolution.
    Image.fromarray(image_rgb).save(buffer, kind, quality=90, **({"subsampling": 0} if kind == "JPEG" else {}))
    return buffer.getvalue()


def _without_repeats(photos: Sequence[Path]) -> list[Path]:
    return list({_identity(photo): photo for photo in reversed(photos)}.values())[::-1]


def _identity(path: Path) -> Path:
    """Return the one spelling of a path, but keep the name: two links to one photo are two photos."""
    return Path(os.path.realpath(path.parent), path.name)


class _Clock:
    """Sums of wall time by stage."""

    def __init__(self) -> None:
        self.ms: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.ms[stage] += (time.perf_counter() - start) * 1e3


_ROUND_TRIP = "server"
_REST_OF_ROUND_TRIP = "server: queue and transport"


def _stage_times_ms(client: Reconstructor) -> dict[str, float]:
    try:
        return client.stage_times_ms()
    except ServerError:  # statistics may be switched off; the times are then those that the client sees
        return {}


def _stages_ms(
    client_ms: Mapping[str, float], before: Mapping[str, float], after: Mapping[str, float]
) -> dict[str, float]:
    """Put the server's own stages in the place of the round trip.

    Steps that Triton runs side by side, or another user's work, can add up to more than the round trip: then there is
    no rest to show.
    """
    used = {name: after[name] - before.get(name, 0.0) for name in after}
    used = {name: ms for name, ms in used.items() if ms > 0}
    # An ensemble repeats the time of its steps; where a public model has no steps, it is the stage.
    steps = {name: ms for name, ms in used.items() if name not in _PUBLIC_MODELS} or used
    rank = {name: index for index, name in enumerate(_STAGE_ORDER)}
    ordered = sorted(steps, key=lambda name: (rank.get(name, len(rank)), name))
    rest = client_ms.get(_ROUND_TRIP, 0.0) - sum(steps.values())
    stages: dict[str, float] = {}
    for stage, ms in client_ms.items():
        if stage == _ROUND_TRIP and steps:
            stages |= {f"server: {name}": steps[name] for name in ordered}
            stages |= {_REST_OF_ROUND_TRIP: rest} if rest > 0 else {}
        else:
            stages[stage] = ms
    return stages
