"""Hold a Triton process for exactly as long as whoever started it lives.

Runs as its own process, with the standard library only: ``python supervisor.py SHM_PREFIX FOLDER -- COMMAND...``.
Its standard input is a pipe from the owner. When the pipe closes, because the owner asked for it or died in whatever
way, the server is stopped, its leftover processes are killed, and its shared memory and temporary folder are removed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

GRACE_S = 10.0
"""How long the server may take to stop by itself."""

NAME = "facegraph-supervisor"
"""How its lines in the server's log begin."""

_POLL_S = 0.2
_DEAD_POLLS = 3  # a process that ends while its model is unloaded is a zombie for a moment only
_DEAD_POLL_S = 1.0
_PR_SET_PDEATHSIG = 1
_SHARED_MEMORY = Path("/dev/shm")


def main(arguments: list[str]) -> int:
    """Run the command until it ends or the owner goes; return its exit status."""
    shm_prefix, folder, _, *command = arguments
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)  # the pipe alone says when to stop
    # preexec_fn is safe: this process has one thread.
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_die_with_parent)  # noqa: PLW1509
    dead_polls, next_look = 0, time.monotonic() + _DEAD_POLL_S
    try:
        while child.poll() is None:
            readable, _, _ = select.select([sys.stdin], [], [], _POLL_S)
            if readable and not os.read(sys.stdin.fileno(), 1):
                break
            if time.monotonic() < next_look:
                continue
            next_look += _DEAD_POLL_S
            dead_polls = dead_polls + 1 if _has_dead_child(child.pid) else 0
            if dead_polls == _DEAD_POLLS:
                # Triton would go on and fail every request that this process should have answered.
                os.write(1, f"{NAME}: a process of a Python model died, so the server was stopped\n".encode())
                _stop(child)
                return 1
        return _stop(child)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # stubs that outlive their server
        for region in _SHARED_MEMORY.glob(f"{shm_prefix}*"):
            region.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)


def _has_dead_child(pid: int) -> bool:
    """Tell whether a child of this process has ended and was not waited for."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if state == "Z" and int(parent) == pid:
                return True
    return False


def _stop(child: subprocess.Popen[bytes]) -> int:
    child.terminate()
    try:
        return child.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()


def _die_with_parent() -> None:
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
