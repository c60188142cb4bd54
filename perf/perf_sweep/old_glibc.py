"""A folder with Debian 13's C and C++ libraries, so that a program built for them runs on an older Debian.

The packages come through apt, which checks their signatures, from the mirror that the machine uses anyway. They are
unpacked, not installed: the system does not change, and no administrator is needed.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from perf_sweep.errors import AnalyzerMissingError

_SUITE = "trixie"
_PACKAGES = ("libc6", "libgcc-s1", "libssl3t64", "libstdc++6", "libzstd1", "zlib1g")
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_APT_SOURCES = Path("/etc/apt")
_TIMEOUT_S = 300.0


class AptSource(NamedTuple):
    """Where a machine gets its Debian packages.

    Attributes:
        uri: of the mirror.
        signed_by: file of the keys that sign it.

    """

    uri: str
    signed_by: str


def loader_command(runtime: Path) -> tuple[str, ...]:
    """Return what starts a program with the libraries in the folder; the program and its arguments follow."""
    return (
        str(runtime / "usr/lib64/ld-linux-x86-64.so.2"),
        "--library-path",
        str(runtime / "usr/lib/x86_64-linux-gnu"),
    )


def make_runtime(target: Path) -> None:
    """Download and unpack the libraries into a new folder; it appears only when it is whole.

    Raises:
        AnalyzerMissingError: this is no Debian, or apt cannot do it.

    """
    system = platform.freedesktop_os_release() if Path("/etc/os-release").exists() else {}
    if system.get("ID") != "debian" or not shutil.which("apt-get") or not shutil.which("dpkg"):
        name = system.get("PRETTY_NAME", "this system")
        raise AnalyzerMissingError(f"perf_analyzer needs a newer glibc than {_glibc()} of {name}")
    source = find_source(_read_sources(), system.get("VERSION_CODENAME", ""))
    if source is None:
        raise AnalyzerMissingError(
            "perf_analyzer needs a newer glibc, and /etc/apt names no Debian mirror to take it from"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".runtime-") as temporary:
        folder = Path(temporary)
        apt = _prepare_apt(folder, source)
        packages = folder / "packages"
        packages.mkdir()
        _run([*apt, "update"], folder)
        _run([*apt, "download", *_PACKAGES], packages)
        for package in sorted(packages.glob("*.deb")):
            _run(["dpkg", "-x", str(package), str(folder / "root")], folder)
        try:
            os.rename(folder / "root", target)
        except OSError:
            if not target.is_dir():  # otherwise another process was faster
                raise


def find_source(texts: Sequence[str], codename: str) -> AptSource | None:
    """Return where a release comes from, by the texts of apt's source files of both formats; None without it."""
    for text in texts:
        for source, suites in (*_stanzas(text), *_lines(text)):
            if codename in suites:
                return source
    return None


def _stanzas(text: str) -> Iterator[tuple[AptSource, list[str]]]:
    for stanza in re.split(r"\n\s*\n", text):
        lines = (line for line in stanza.splitlines() if not line.startswith("#"))
        fields = {key.strip().lower(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        if fields.get("uris") and fields.get("enabled") != "no":
            signed_by = fields.get("signed-by") or _KEYRING
            yield AptSource(fields["uris"].split()[0], signed_by), fields.get("suites", "").split()


def _lines(text: str) -> Iterator[tuple[AptSource, list[str]]]:
    for options, uri, suite in re.findall(r"^deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)", text, re.MULTILINE):
        signed_by = re.search(r"signed-by=(\S+)", options)
        yield AptSource(uri, signed_by[1] if signed_by else _KEYRING), [suite]


def _read_sources() -> list[str]:
    files = [_APT_SOURCES / "sources.list", *sorted(_APT_SOURCES.glob("sources.list.d/*"))]
    return [file.read_text() for file in files if file.suffix in (".list", ".sources") and file.is_file()]


def _prepare_apt(folder: Path, source: AptSource) -> list[str]:
    """Return an apt-get that keeps its lists and its cache in ``folder`` and knows the one source only."""
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    (folder / "sources.list").write_text(f"deb [arch=amd64 signed-by={source.signed_by}] {source.uri} {_SUITE} main\n")
    options = {
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": folder / "lists",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "",  # apt's own user cannot write here
    }
    configuration = [f'{name} "{value}";' for name, value in options.items()]
    # What the system does after an update of its own lists is no business of these.
    configuration += [f"#clear APT::Update::{hook};" for hook in ("Post-Invoke", "Post-Invoke-Success")]
    (folder / "apt.conf").write_text("\n".join(configuration) + "\n")
    return ["apt-get", "--config-file", str(folder / "apt.conf"), "--quiet"]


def _run(command: Sequence[str], folder: Path) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise AnalyzerMissingError(f"{command[0]} took longer than {_TIMEOUT_S:.0f} s; check the network") from error
    if done.returncode != 0:
        raise AnalyzerMissingError(
            f"{' '.join(command)} failed; check the network and apt's mirror:\n{done.stderr.strip()}"
        )


def _glibc() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or "glibc"
    except (OSError, ValueError):  # another C library
        return "the C library"
