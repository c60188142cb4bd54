"""The `facegraph` command against the real server: files that open, bad photos reported, exit statuses."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pillow_heif
import pytest
import trimesh
from facegraph_server.embedded import EmbeddedServer
from numpy.typing import NDArray
from PIL import Image

FACEGRAPH = Path(sys.executable).parent / "facegraph"


@pytest.fixture
def photos(tmp_path: Path, sample_photo: Path, astronaut_rgb: NDArray[np.uint8]) -> Path:
    """A folder of photos, good and bad."""
    folder = tmp_path / "my photos"
    (folder / "more").mkdir(parents=True)
    data = sample_photo.read_bytes()
    for name in ("same.jpg", "more/same.jpg", "Zoë 顔.jpg"):
        (folder / name).write_bytes(data)
    pillow_heif.from_pillow(Image.fromarray(astronaut_rgb)).save(folder / "phone.heic")
    sideways = Image.fromarray(astronaut_rgb).transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[0x0112] = 6
    sideways.save(folder / "sideways.jpg", exif=exif, quality=95)
    (folder / "truncated.jpg").write_bytes(data[:30_000])
    (folder / "notes.jpg").write_text("not a photo")
    (folder / "empty.jpg").touch()
    Image.new("RGB", (300, 200), "grey").save(folder / "nobody.png")
    return folder


def run(server: EmbeddedServer, *arguments: object) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"FACEGRAPH_SERVER": server.grpc_address, "COLUMNS": "200"}
    return subprocess.run(
        [str(FACEGRAPH), *map(str, arguments)],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_good_photos_finish_and_bad_ones_are_named(server: EmbeddedServer, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    names = ["same.jpg", "more/same.jpg", "Zoë 顔.jpg", "phone.heic", "sideways.jpg", "nobody.png"]
    bad = ["truncated.jpg", "notes.jpg", "empty.jpg", "missing.jpg", "more"]
    done = run(server, "reconstruct", *(photos / name for name in names + bad), "--out", out)
    assert done.returncode == 1
    for name in bad:
        assert name in done.stderr
    assert len(list(out.glob("*.glb"))) == 5
    assert len(list(out.glob("*-preview.jpg"))) == 6
    assert not [path for path in out.iterdir() if path.name.startswith(".")]
    for glb in out.glob("*.glb"):
        (mesh,) = trimesh.load(glb, process=False).geometry.values()
        assert len(mesh.vertices) == 468
        from_obj = trimesh.load(glb.with_suffix(".obj"), process=False)
        assert len(from_obj.vertices) == 468
        assert mesh.visual.uv.min() >= 0
        assert mesh.visual.uv.max() <= 1
        facts = json.loads(glb.with_suffix(".json").read_text())
        assert np.array(facts["landmarks_px"]).shape == (468, 3)


def test_an_exif_orientation_changes_nothing_about_the_face(server: EmbeddedServer, photos: Path) -> None:
    upright, sideways = (
        json.loads(run(server, "landmarks", photos / name).stdout)[0]["faces"][0]["landmarks_px"]
        for name in ("same.jpg", "sideways.jpg")
    )
    assert np.abs(np.array(upright) - np.array(sideways)).max() < 4


def test_nothing_is_overwritten_unless_asked(server: EmbeddedServer, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run(server, "reconstruct", photos / "same.jpg", "--out", out).returncode == 0
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    again = run(server, "reconstruct", photos / "same.jpg", "--out", out)
    assert again.returncode != 0
    assert "--overwrite" in again.stderr
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == before
    assert run(server, "reconstruct", photos / "same.jpg", "--out", out, "--overwrite").returncode == 0


def test_the_picture_shows_the_mesh(server: EmbeddedServer, photos: Path, tmp_path: Path) -> None:
    picture = tmp_path / "mesh.png"
    assert run(server, "landmarks", photos / "same.jpg", "--picture", picture).returncode == 0
    drawn = np.asarray(Image.open(io.BytesIO(picture.read_bytes())).convert("RGB"), int)
    original = np.asarray(Image.open(photos / "same.jpg").convert("RGB"), int)
    if drawn.shape == original.shape:
        changed = np.abs(drawn - original).max(2) > 30
        y, x = np.nonzero(changed)
        assert 0.001 < changed.mean() < 0.1
        assert (x.min(), y.min()) >= (165, 55)
        assert (x.max(), y.max()) <= (290, 190)


def test_no_server_is_exit_status_two(tmp_path: Path, sample_photo: Path) -> None:
    done = subprocess.run(
        [str(FACEGRAPH), "landmarks", str(sample_photo), "--server", "127.0.0.1:9"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "127.0.0.1:9" in done.stderr


@pytest.mark.slow
def test_without_a_server_one_is_started_for_the_call(sample_photo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.run([str(FACEGRAPH), "landmarks", str(sample_photo)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)[0]["faces"]) == 1
