"""End with the process that started this one, in whatever way it ended."""

from __future__ import annotations

import os
import signal
import threading


def end_with_owner() -> None:
    """Watch standard input, a pipe from the owner: when it closes, end this process and its children."""

    def watch() -> None:
        # Not through sys.stdin, whose lock a daemon thread would still hold when the interpreter ends.
        while os.read(0, 1 << 16):
            pass
        os.killpg(0, signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
