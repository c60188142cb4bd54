from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from facegraph_client import (
    Face,
    FaceLandmarks,
    ImageError,
    ServerTimeoutError,
    ServerUnavailableError,
    SetupError,
    _server_choice,
)
from facegraph_client._batch import _stages_ms
from facegraph_client._cli import main
from facegraph_client._photo import encoded_photo
from PIL import Image

from .conftest import make_face

SUFFIXES = ["glb", "json", "mtl", "obj", "png"]


class FakeClient:
    """Provokes what a real server does too rarely: answers by the photo's bytes."""

    def __init__(self) -> None:
        self.calls: list[dict[str, object]] = []
        self.clock_ms = 0.0

    def reconstruct(self, photo: bytes, *, search_tiles: bool, texture_size_px: int) -> list[Face]:
        self.calls.append({"search_tiles": search_tiles, "texture_size_px": texture_size_px})
        self.clock_ms += 0.001
        for error in (ImageError, ServerTimeoutError, ServerUnavailableError):
            if photo == error.__name__.encode():
                raise error(f"provoked {error.__name__}")
        if photo == b"interrupt":
            raise KeyboardInterrupt
        return [] if photo == b"nobody" else [make_face()] * (2 if photo == b"two" else 1)

    def landmarks(self, photo: Path, *, search_tiles: bool) -> list[FaceLandmarks]:
        return list(self.reconstruct(encoded_photo(photo), search_tiles=search_tiles, texture_size_px=0))

    def stage_times_ms(self) -> dict[str, float]:
        return {"face_reconstruction": 3 * self.clock_ms, "preprocess": self.clock_ms, "face_mesh": 2 * self.clock_ms}


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    fake = FakeClient()

    @contextlib.contextmanager
    def connect(address: str | None, *, timeout_s: float, waiting: object) -> Iterator[FakeClient]:
        yield fake

    monkeypatch.setattr(_server_choice, "connect", connect)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # main() takes signals over for its process
    return fake


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with photos, which is the current one."""
    folder = tmp_path / "photos"
    folder.mkdir()
    Image.new("RGB", (400, 300), "gray").save(folder / "good.png")
    Image.new("RGB", (400, 300), "gray").save(folder / "Zoë am Meer.jpg")
    (folder / "nobody.jpg").write_bytes(b"nobody")
    (folder / "two.jpg").write_bytes(b"two")
    (folder / "empty.jpg").touch()
    (folder / "folder.jpg").mkdir()
    for error in ("ImageError", "ServerTimeoutError", "ServerUnavailableError", "interrupt"):
        (folder / f"{error}.jpg").write_bytes(error.encode())
    for place in ("rome", "paris"):
        (folder / place).mkdir()
        Image.new("RGB", (400, 300), "red").save(folder / place / "a.png")
    monkeypatch.chdir(folder)
    return folder


def _files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _expected(stem: str, faces: int = 1) -> list[str]:
    return [f"{stem}-face{k}.{s}" for k in range(1, faces + 1) for s in SUFFIXES] + [f"{stem}-preview.jpg"]


def test_reconstruct_writes_every_file(client: FakeClient, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reconstruct", "good.png", "Zoë am Meer.jpg", "--out", "deep/out"]) == 0
    out = photos / "deep" / "out"
    assert _files(out) == sorted(_expected("good") + _expected("Zoë am Meer"))
    document = json.loads((out / "Zoë am Meer-face1.json").read_text("utf-8"))
    assert document["source"] == "Zoë am Meer.jpg"
    assert {"face", "units", "score", "box_xyxy", "landmarks_px", "pose", "scale_px_per_cm"} <= set(document)
    assert np.shape(document["landmarks_px"]) == (468, 3)
    with Image.open(out / "good-preview.jpg") as preview:
        assert preview.width == 1600
    captured = capsys.readouterr()
    assert captured.err == ""
    for word in (
        "good.png",
        "Zoë am Meer.jpg",
        "preprocess",
        "read the photo",
        "draw the preview",
        "2 faces in deep/out",
    ):
        assert word in captured.out
    assert "\x1b" not in captured.out
    assert client.calls == [{"search_tiles": False, "texture_size_px": 1024}] * 2


def test_options_reach_the_server(client: FakeClient, photos: Path) -> None:
    assert main(["reconstruct", "good.png", "--out", "o", "--texture-size", "512", "--search-tiles"]) == 0
    assert client.calls == [{"search_tiles": True, "texture_size_px": 512}]


def test_a_bad_photo_is_reported_and_the_rest_finish(
    client: FakeClient, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = ["missing.jpg", "empty.jpg", "folder.jpg", "ImageError.jpg", "ServerTimeoutError.jpg"]
    assert main(["reconstruct", *bad[:3], "good.png", *bad[3:], "two.jpg", "--out", "o"]) == 1
    assert _files(photos / "o") == sorted(_expected("good") + _expected("two", faces=2))
    captured = capsys.readouterr()
    errors = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == len(bad)
    assert all(name in line for name, line in zip(bad, errors, strict=True))
    assert "3 faces in o, 5 of 7 photos failed" in captured.out
    assert "warning: two.jpg: the preview is without the photo" in captured.err  # its bytes are no picture


def test_no_face_is_no_error(client: FakeClient, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reconstruct", "nobody.jpg", "--out", "o"]) == 0
    assert _files(photos / "o") == ["nobody-preview.jpg"]
    captured = capsys.readouterr()
    assert "warning: nobody.jpg: no face found; --search-tiles finds smaller ones" in captured.err
    assert "0 faces in o" in captured.out


def test_the_same_name_in_two_folders(client: FakeClient, photos: Path) -> None:
    assert main(["reconstruct", "rome/a.png", "paris/a.png", "rome/../rome/a.png", "--out", "o"]) == 0
    assert {"rome-a-face1.glb", "paris-a-face1.glb"} <= set(_files(photos / "o"))
    assert json.loads((photos / "o" / "rome-a-face1.json").read_text())["source"] == "rome/a.png"


def test_a_photo_given_twice_is_done_once(client: FakeClient, photos: Path) -> None:
    assert main(["reconstruct", "good.png", str(photos / "good.png"), "--out", "o"]) == 0
    assert len(client.calls) == 1


def test_nothing_is_overwritten_unless_told(
    client: FakeClient, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "o").mkdir()
    (photos / "o" / "good-face1.mtl").write_text("precious")
    assert main(["reconstruct", "good.png", "--out", "o"]) == 1
    assert client.calls == []  # said before the work
    assert _files(photos / "o") == ["good-face1.mtl"]
    assert "exists already" in capsys.readouterr().err
    assert main(["reconstruct", "good.png", "--out", "o", "--overwrite"]) == 0
    assert "Kd" in (photos / "o" / "good-face1.mtl").read_text()


def test_a_photo_is_never_overwritten(client: FakeClient, photos: Path) -> None:
    Image.new("RGB", (400, 300), "gray").save("good-face1.png")
    before = Path("good-face1.png").read_bytes()
    assert main(["reconstruct", "good.png", "good-face1.png", "--out", ".", "--overwrite"]) == 1
    assert Path("good-face1.png").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reconstruct", "--out", "o"], "Missing argument"),
        (["reconstruct", "good.png"], "Missing option '--out'"),
        (["reconstruct", "good.png", "--out", "good.png"], "good.png is a file"),
        (["reconstruct", "good.png", "--out", "good.png/o"], "cannot write"),
        (["reconstruct", "good.png", "--out", "/proc/o"], "cannot write"),
        (["reconstruct", "good.png", "--out", "o", "--texture-size", "7"], "64<=x<=4096"),
        (["landmarks", "good.png", "two.jpg", "--picture", "p.png"], "takes one photo"),
        (["landmarks", "good.png", "--picture", "p.gif"], "must end in"),
        (["landmarks", "good.png", "--picture", "good.png", "--overwrite"], "is the photo itself"),
        (["landmarks", "good.png", "--picture", "Zoë am Meer.jpg"], "exists already"),
        (["unknown"], "No such command"),
        ([], "Usage"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_refused_before_any_work(
    client: FakeClient, photos: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""
    assert client.calls == []


def test_a_server_that_goes_away_ends_the_run(
    client: FakeClient, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reconstruct", "good.png", "ServerUnavailableError.jpg", "two.jpg", "--out", "o"]) == 2
    assert _files(photos / "o") == sorted(_expected("good"))
    assert "1 of 2 photos failed" in capsys.readouterr().out
    assert len(client.calls) == 2


def test_ctrl_c_leaves_whole_files_only(client: FakeClient, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reconstruct", "good.png", "interrupt.jpg", "two.jpg", "--out", "o"]) == 130
    assert _files(photos / "o") == sorted(_expected("good"))
    assert capsys.readouterr().err.endswith("Stopped.\n")


def test_landmarks_prints_one_document(client: FakeClient, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["landmarks", "good.png", "nobody.jpg", "two.jpg"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert [(entry["source"], len(entry["faces"])) for entry in document] == [
        ("good.png", 1),
        ("nobody.jpg", 0),
        ("two.jpg", 2),
    ]
    assert captured.err == "warning: nobody.jpg: no face found; --search-tiles finds smaller ones\n"


def test_landmarks_reports_a_bad_photo(client: FakeClient, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["landmarks", "ImageError.jpg", "good.png"]) == 1
    captured = capsys.readouterr()
    bad, good = json.loads(captured.out)
    assert bad == {"source": "ImageError.jpg", "error": "provoked ImageError"}
    assert len(good["faces"]) == 1
    assert captured.err == "error: ImageError.jpg: provoked ImageError\n"


@pytest.mark.parametrize("name", ["mesh.png", "mesh.JPG", "mesh.webp"])
def test_landmarks_draws_a_picture(
    client: FakeClient, photos: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["landmarks", "good.png", "--picture", name]) == 0
    with Image.open(name) as image:
        picture = np.asarray(image.convert("RGB")).astype(int)
    assert picture.shape == (300, 400, 3)
    assert (np.abs(picture - 128).max(-1) > 60).sum() > 200
    assert capsys.readouterr().out == ""


def test_the_embedded_server_is_for_when_no_other_answers(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_server_choice, "DEFAULT_ADDRESS", "127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "facegraph_server.embedded", None)
    assert main(["landmarks", "good.png"]) == 2
    error = capsys.readouterr().err
    assert "pip install 'facegraph[server]'" in error
    assert "scripts/serve.py" in error
    with pytest.raises(SetupError), _server_choice.connect(None, timeout_s=1, waiting=contextlib.nullcontext):
        pass


@pytest.mark.parametrize("variable", [False, True], ids=["--server", "FACEGRAPH_SERVER"])
def test_a_server_that_is_named_must_be_there(
    photos: Path, variable: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if variable:
        monkeypatch.setenv("FACEGRAPH_SERVER", "127.0.0.1:1")
    assert main(["landmarks", "good.png", *([] if variable else ["--server", "127.0.0.1:1"])]) == 2
    assert "no server is ready at 127.0.0.1:1" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "status"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_signals_unwind(tmp_path: Path, name: str, status: int) -> None:
    """In a process of its own, which waits inside a context manager as it would for an embedded server."""
    code = f"""
import contextlib, pathlib, sys, time
from facegraph_client import _cli, _server_choice
@contextlib.contextmanager
def connect(address, **_):
    try:
        pathlib.Path({str(tmp_path / "started")!r}).touch()
        time.sleep(30)
        yield
    finally:
        pathlib.Path({str(tmp_path / "stopped")!r}).touch()
_server_choice.connect = connect
sys.exit(_cli.main(["landmarks", "x.jpg"]))
"""
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 20
    while not (tmp_path / "started").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(getattr(signal, name))
    process.communicate(timeout=20)
    assert process.returncode == status
    assert (tmp_path / "stopped").exists()


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (
            {"face_mesh": 1.0, "face_reconstruction": 5.0, "idle": 3.0},
            {"face_mesh": 4.0, "preprocess": 2.0, "face_reconstruction": 11.0, "idle": 3.0},
            {"read": 1.0, "server: preprocess": 2.0, "server: face_mesh": 3.0, "server: queue and transport": 5.0},
        ),
        (
            {},
            {"face_reconstruction": 4.0},
            {"read": 1.0, "server: face_reconstruction": 4.0, "server: queue and transport": 6.0},
        ),
        ({}, {"face_mesh": 99.0}, {"read": 1.0, "server: face_mesh": 99.0}),
        ({}, {}, {"read": 1.0, "server": 10.0}),
    ],
    ids=["steps", "a model without steps", "steps side by side", "no statistics"],
)
def test_stages(before: dict[str, float], after: dict[str, float], expected: dict[str, float]) -> None:
    stages = _stages_ms({"read": 1.0, "server": 10.0, "write": 2.0}, before, after)
    assert stages == {**expected, "write": 2.0}
    assert list(stages) == [*expected, "write"]
