"""What the numbers depend on: the machine, the software, and how busy it was."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import time
from pathlib import Path

from facegraph_server.nvidia_smi import identify_gpu
from facegraph_server.paths import REPOSITORY

_PACKAGES = ("facegraph", "numpy", "opencv-python-headless", "openvino", "simplejpeg", "torch")
_TIMEOUT_S = 10.0


def describe_machine() -> dict[str, str]:
    """Return facts about this machine by name, for people to read."""
    system = platform.freedesktop_os_release().get("PRETTY_NAME", "") if Path("/etc/os-release").exists() else ""
    facts = {
        "CPU": f"{_cpu_name()}, {len(os.sched_getaffinity(0))} cores",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "system": f"{system or platform.system()}, kernel {platform.release()}, {platform.machine()}",
    }
    gpu = identify_gpu()
    facts["GPU"] = f"{gpu.name}, driver {gpu.driver}" if gpu is not None else "none"
    if gpu is not None and gpu.power_limit_w is not None:
        facts["GPU power limit"] = f"{gpu.power_limit_w:g} W"
    facts["Python"] = platform.python_version()
    facts["packages"] = ", ".join(f"{name} {version}" for name, version in _versions().items())
    facts["commit"] = _commit()
    facts["date"] = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    return facts


def load_per_core() -> float:
    """Return how many processes ran or wanted to, on average over the last minute, a core."""
    return os.getloadavg()[0] / len(os.sched_getaffinity(0))


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _versions() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _commit() -> str:
    try:
        commit = _git("rev-parse", "--short", "HEAD")
        return f"{commit}, with changes" if _git("status", "--porcelain", "--untracked-files=no") else commit
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
    )
    return done.stdout.strip()
