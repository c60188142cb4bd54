"""Which files a photo's results go to, so that no two photos of one call share one."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

FACE_SUFFIXES = (".glb", ".obj", ".mtl", ".png", ".json")


def output_stems(photos: Sequence[Path]) -> list[str]:
    """Return a different stem for each photo.

    A photo's own stem where no other photo has it. Otherwise, for all that share it: with the suffix
    (``photo-jpg``, ``photo-png``) if that tells them apart, else with the folder (``paris-photo``, ``rome-photo``),
    else with both, and as a last resort with a number, in the order given. Stems that differ only in case, or in how an
    accent is encoded, count as the same: on some file systems they are.
    """
    groups: dict[str, list[int]] = {}
    for index, photo in enumerate(photos):
        groups.setdefault(_key(photo.stem), []).append(index)
    stems = [photo.stem for photo in photos]
    for members in groups.values():
        for index, stem in zip(members, _told_apart([photos[index] for index in members]), strict=True):
            stems[index] = stem
    return _numbered(stems)


def face_path(folder: Path, stem: str, face: int, suffix: str) -> Path:
    """Return where a face's file goes; faces count from 1."""
    return folder / f"{stem}-face{face}{suffix}"


def preview_path(folder: Path, stem: str) -> Path:
    """Return where a photo's preview goes."""
    return folder / f"{stem}-preview.jpg"


def _told_apart(photos: Sequence[Path]) -> list[str]:
    """Name photos that share a stem in the first way that gives them different names, if any does."""
    for name in (_stem, _with_suffix, _with_folder, _with_folder_and_suffix):
        names = [name(photo) for photo in photos]
        if len({_key(name) for name in names}) == len(names):
            return names
    return [photo.stem for photo in photos]


def _numbered(stems: Sequence[str]) -> list[str]:
    """Give the second and later bearers of a stem the first number that no other stem has."""
    taken = Counter(_key(stem) for stem in stems)
    seen: set[str] = set()
    result = []
    for stem in stems:
        name, number = stem, 1
        while _key(name) in seen or (number > 1 and _key(name) in taken):
            number += 1
            name = f"{stem}-{number}"
        seen.add(_key(name))
        result.append(name)
    return result


def _key(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _stem(photo: Path) -> str:
    return photo.stem


def _with_suffix(photo: Path) -> str:
    return "-".join(part for part in (photo.stem, photo.suffix.lstrip(".")) if part)


def _with_folder(photo: Path) -> str:
    return "-".join(part for part in (photo.absolute().parent.name, photo.stem) if part)


def _with_folder_and_suffix(photo: Path) -> str:
    return "-".join(part for part in (photo.absolute().parent.name, _with_suffix(photo)) if part)
