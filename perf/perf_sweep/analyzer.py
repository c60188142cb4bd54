"""Find a perf_analyzer that runs here: the one on PATH, or the pinned wheel's, if need be through a newer loader.

The wheel's binary needs glibc 2.38. Where glibc is older, :mod:`perf_sweep.old_glibc` makes a folder with a newer one,
which nothing but perf_analyzer uses.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from facegraph_server.paths import BUILD

from perf_sweep.errors import AnalyzerMissingError
from perf_sweep.old_glibc import loader_command, make_runtime

VERSION = "2.60.0"
_WHEEL_SHA256 = "23ef56b107ae9233e5cf09fbdf508dd9b936a52f1bae2f63f53c8117087b3f25"
_MEMBER = "perf_analyzer/bin/perf_analyzer"
_PLATFORM = ("--platform", "manylinux_2_38_x86_64", "--python-version", "3.12")

_DOWNLOAD_TIMEOUT_S = 600.0
_START_TIMEOUT_S = 30.0
_SAYS = "Perf Analyzer Version"

_ELSEWHERE = (
    "run the sweep where perf_analyzer is at home: in NVIDIA's Triton SDK container, or on Ubuntu 24.04, Debian 13 or "
    "newer; --server measures a server that runs elsewhere"
)

Report = Callable[[str], None]


@dataclass(frozen=True)
class PerfAnalyzer:
    """One that runs.

    Attributes:
        command: what to start; its options follow.
        version: for reports.

    """

    command: tuple[str, ...]
    version: str


def find_perf_analyzer(report: Report, folder: Path = BUILD / "perf_analyzer") -> PerfAnalyzer:
    """Return a perf_analyzer that runs, fetching up to 25 MB into ``folder`` the first time.

    Args:
        report: called with a line of text before slow work.
        folder: where the fetched one is kept.

    Raises:
        AnalyzerMissingError: none runs here.

    """
    if (installed := shutil.which("perf_analyzer")) and (version := _version((installed,))) is not None:
        return PerfAnalyzer((installed,), f"{version}, {installed}")
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise AnalyzerMissingError(
            f"there is no perf_analyzer wheel for {sys.platform} {platform.machine()}; {_ELSEWHERE}"
        )
    binary = folder / VERSION / "perf_analyzer"
    if not binary.is_file():
        report(f"downloading perf-analyzer {VERSION} (7 MB)")
        _unpack_wheel(binary.parent)
    if _version((str(binary),)) is not None:
        return PerfAnalyzer((str(binary),), VERSION)
    runtime = folder / "runtime"
    if not runtime.is_dir():
        report("this system's glibc is older than perf_analyzer's: downloading a newer one for it alone (17 MB)")
        try:
            make_runtime(runtime)
        except AnalyzerMissingError as error:
            raise AnalyzerMissingError(f"{error}; {_ELSEWHERE}") from error
    command = (*loader_command(runtime), str(binary))
    if _version(command) is None:
        raise AnalyzerMissingError(
            f"perf_analyzer does not start, with the libraries in {runtime} neither:\n"
            f"{_start(command).stderr.strip()}\nremove {folder} and try again, or {_ELSEWHERE}"
        )
    return PerfAnalyzer(command, f"{VERSION}, through a newer loader")


def _version(command: Sequence[str]) -> str | None:
    """Return what it says about itself, or None if it does not start. The wheel's own script always exits with 0."""
    done = _start(command)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith(_SAYS)]
    return lines[0].removeprefix(_SAYS).strip() if lines else None


def _start(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [*command, "--version"], capture_output=True, text=True, timeout=_START_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def _unpack_wheel(target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".wheel-") as temporary:
        wheel = _download_wheel(Path(temporary))
        whole = Path(temporary) / "whole"
        whole.mkdir()
        with zipfile.ZipFile(wheel) as archive:
            (whole / "perf_analyzer").write_bytes(archive.read(_MEMBER))
            licence = next(name for name in archive.namelist() if name.endswith("/LICENSE"))
            (whole / "LICENSE").write_bytes(archive.read(licence))
        (whole / "perf_analyzer").chmod(0o755)
        rename_folder(whole, target)


def _download_wheel(folder: Path) -> Path:
    requirements = folder / "requirements.txt"
    requirements.write_text(f"perf-analyzer=={VERSION} --hash=sha256:{_WHEEL_SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", *_PLATFORM]
    command += ["--require-hashes", "--requirement", str(requirements), "--dest", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise AnalyzerMissingError(
            f"downloading perf-analyzer took longer than {_DOWNLOAD_TIMEOUT_S:.0f} s; check the network and try again"
        ) from error
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        reason = "\n".join(line for line in done.stderr.splitlines() if not line.startswith("WARNING"))
        raise AnalyzerMissingError(
            f"pip could not download perf-analyzer {VERSION}; check the network and pip's index, or {_ELSEWHERE}. "
            f"pip says:\n{reason}"
        )
    return wheels[0]


def rename_folder(whole: Path, target: Path) -> None:
    """Give a finished folder its name; if another process was faster, keep the other one's."""
    try:
        os.rename(whole, target)
    except OSError:
        if not target.is_dir():
            raise
