"""Every command and every line of Python in the README runs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from facegraph_server.embedded import EmbeddedServer

REPOSITORY = Path(__file__).parents[1]
README = (REPOSITORY / "README.md").read_text()
SERVES_FOREVER = ".venv/bin/python scripts/serve.py"  # started and stopped in tests/integration/test_embedded.py


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


COMMANDS = [line.split("  #")[0].strip() for block in blocks("bash") for line in block.splitlines()]


def test_the_readme_has_commands() -> None:
    assert len(COMMANDS) >= 6
    assert len(blocks("python")) == 1


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("make ")])
def test_make_targets_exist(command: str) -> None:
    done = subprocess.run([*shlex.split(command), "--dry-run"], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", [c for c in COMMANDS if not c.startswith("make ") and c != SERVES_FOREVER])
def test_commands_run(command: str, server: EmbeddedServer) -> None:
    command = command.replace(".venv/bin/", f"{Path(sys.executable).parent}/")
    environment = os.environ | {"FACEGRAPH_SERVER": server.grpc_address}
    (REPOSITORY / "out").mkdir(exist_ok=True)
    done = subprocess.run(command, shell=True, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_python_runs(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(REPOSITORY)
    (source,) = blocks("python")
    exec(compile(source.replace("127.0.0.1:8001", server.grpc_address), "README.md", "exec"), {})
    assert "(468, 3) (1024, 1024, 3)" in capsys.readouterr().out


@pytest.mark.parametrize("path", re.findall(r"^\| `([\w/_]+)/` \|", README, re.MULTILINE))
def test_folders_exist(path: str) -> None:
    assert (REPOSITORY / path).is_dir()
