"""The peers' own virtual environment: their dependencies exclude the project's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from facegraph_client import SetupError
from facegraph_server.paths import BUILD

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
_TIMEOUT_S = 1200.0


def peers_python(folder: Path = BUILD / "peers", requirements: Path = REQUIREMENTS) -> Path:
    """Return the Python of the environment in ``folder``, made first if it is not there or not up to date.

    Raises:
        SetupError: it could not be made; the message ends with what pip said.

    """
    python, stamp = folder / "bin" / "python", folder / "requirements.txt"
    wanted = requirements.read_text()
    if python.exists() and stamp.exists() and stamp.read_text() == wanted:
        return python
    _run([sys.executable, "-m", "venv", "--clear", str(folder)])
    _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(requirements)])
    stamp.write_text(wanted)
    return python


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise SetupError(
            f"{' '.join(command)} took over {_TIMEOUT_S:.0f} s: is the package index reachable?"
        ) from error
    if done.returncode != 0:
        raise SetupError(f"{' '.join(command)} failed:\n{(done.stderr or done.stdout)[-2000:]}")
