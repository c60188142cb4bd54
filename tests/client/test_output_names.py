from __future__ import annotations

import unicodedata
from itertools import permutations
from pathlib import Path

import pytest
from facegraph_client._output_names import FACE_SUFFIXES, face_path, output_stems, preview_path


@pytest.mark.parametrize(
    ("photos", "stems"),
    [
        (["a.jpg"], ["a"]),
        (["x/a.jpg", "y/b.png"], ["a", "b"]),
        (["rome/a.jpg", "paris/a.jpg"], ["rome-a", "paris-a"]),
        (["a.jpg", "a.png", "b.jpg"], ["a-jpg", "a-png", "b"]),
        (["x/a.jpg", "y/a.png"], ["a-jpg", "a-png"]),
        (["x/a.jpg", "y/a.png", "y/a.jpg"], ["x-a-jpg", "y-a-png", "y-a-jpg"]),
        (["1/x/a.jpg", "2/x/a.jpg"], ["a", "a-2"]),
        (["x/a.jpg", "y/a.jpg", "x-a.jpg"], ["x-a", "y-a", "x-a-2"]),
        (["1/x/a.jpg", "2/x/a.jpg", "a-2.jpg"], ["a", "a-3", "a-2"]),
        (["x/A.jpg", "y/a.jpg"], ["x-A", "y-a"]),
        (["my photo.jpg", "Zoë.heic"], ["my photo", "Zoë"]),
        ([unicodedata.normalize(form, f"{form}/Zoë.jpg") for form in ("NFC", "NFD")], ["NFC-Zoë", "NFD-Zoë"]),
        (["a.tar.gz"], ["a.tar"]),
        (["a", "a.jpg"], ["a", "a-jpg"]),
        (["../a.jpg", "/a.jpg"], None),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_stems(photos: list[str], stems: list[str] | None) -> None:
    result = output_stems([Path(photo) for photo in photos])
    if stems is not None:
        assert [unicodedata.normalize("NFC", stem) for stem in result] == stems
    assert len(set(result)) == len(photos)
    assert all("/" not in stem and stem for stem in result)


def test_no_two_photos_ever_share_a_file() -> None:
    names = ["x/a.jpg", "y/a.jpg", "x-a.jpg", "a-2.png", "z/x/a.jpg", "a-face1.png", "x/A.png"]
    for photos in permutations(names, 5):
        targets = [
            path.name.casefold()
            for stem in output_stems([Path(photo) for photo in photos])
            for path in [
                preview_path(Path("o"), stem),
                *(face_path(Path("o"), stem, face, suffix) for face in (1, 2) for suffix in FACE_SUFFIXES),
            ]
        ]
        assert len(set(targets)) == len(targets), photos


def test_paths() -> None:
    assert face_path(Path("out"), "my photo", 2, ".glb") == Path("out/my photo-face2.glb")
    assert preview_path(Path("out"), "a") == Path("out/a-preview.jpg")
