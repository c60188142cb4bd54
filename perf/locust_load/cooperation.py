"""Is gevent really switching between the users while they wait for gRPC?

Without ``grpc.experimental.gevent.init_gevent()`` one waiting call stops the whole process: ten users then ask one
after the other, and Locust still reports the short response time of each call.
"""

from __future__ import annotations

import socket

import gevent
from facegraph_client import FaceClient, ServerError

_PROBE_S = 0.5
_TICK_S = 0.01
_LEAST_TICKS = 0.3 * _PROBE_S / _TICK_S  # a busy machine is slow, a process that does not switch has no tick at all

NOT_COOPERATING = (
    "gevent does not switch between users while they wait for gRPC, so this load would be one user's: call "
    "grpc.experimental.gevent.init_gevent() after importing locust and before the first gRPC channel"
)


def is_cooperating() -> bool:
    """Wait half a second for a gRPC server that never answers, and see whether other greenlets ran meanwhile."""
    ticks = 0

    def tick() -> None:
        nonlocal ticks
        while True:
            gevent.sleep(_TICK_S)
            ticks += 1

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with FaceClient(f"127.0.0.1:{silent.getsockname()[1]}", timeout_s=_PROBE_S) as client:
            ticker = gevent.spawn(tick)
            try:
                client.landmarks(b"a photo")
            except ServerError:  # as it must, when the time is over
                return ticks >= _LEAST_TICKS
            finally:
                ticker.kill()
    return False
