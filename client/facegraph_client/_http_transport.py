"""HTTP to Triton, blocking and for asyncio."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gevent
import numpy as np
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from aiohttp import ClientError
from geventhttpclient.response import HTTPConnectionClosed, HTTPParseError
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from facegraph_client._protocol import COMPUTE_PARTS, Address, Call, output_arrays, server_error

if hasattr(os, "register_at_fork"):
    # Or a forked process waits on its parent's events.
    os.register_at_fork(after_in_child=gevent.reinit)


class HttpTransport:
    """Blocking calls. Threads may share it: each gets its own connection, as gevent ties a socket to its thread."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._of_thread = threading.local()

    def infer(self, call: Call, timeout_s: float) -> dict[str, NDArray[np.generic]]:
        """Run one inference and return the outputs by name."""
        inputs, outputs = _tensors(call)
        with _our_errors(call.model, self.address, timeout_s):
            result = self._client(timeout_s).infer(call.model, inputs, outputs=outputs)
        return output_arrays(result.as_numpy, call.outputs)

    def is_model_ready(self, model: str, timeout_s: float) -> bool:
        """Ask whether the server can run the model."""
        with _our_errors(model, self.address, timeout_s):
            return bool(self._client(timeout_s).is_model_ready(model))

    def compute_times_ns(self, timeout_s: float) -> dict[str, dict[str, int]]:
        """Return the statistics' compute times by model, summed over versions."""
        with _our_errors("statistics", self.address, timeout_s):
            return _compute_times_ns(self._client(timeout_s).get_inference_statistics())

    def close(self) -> None:
        """Close this thread's connections; those of other threads close with them."""
        for client in vars(self._of_thread).pop("clients", {}).values():
            client.close()

    def _client(self, timeout_s: float) -> triton.InferenceServerClient:
        """Return this thread's client; tritonclient fixes the timeout when it is made, so there is one for each.

        A forked process makes its own: on a shared socket it would read the answers to its parent.
        """
        clients: dict[tuple[int, float], triton.InferenceServerClient] = vars(self._of_thread).setdefault("clients", {})
        key = os.getpid(), timeout_s
        if key not in clients:
            clients[key] = triton.InferenceServerClient(
                self.address.target, connection_timeout=timeout_s, network_timeout=timeout_s
            )
        return clients[key]


class AsyncHttpTransport:
    """Calls for asyncio. Belongs to the event loop it is made in."""

    def __init__(self, address: Address) -> None:
        self.address = address
        # Each call has its own timeout; the session's would also count the wait for a free connection.
        self._client = triton_aio.InferenceServerClient(address.target, conn_timeout=None)

    async def infer(self, call: Call, timeout_s: float) -> dict[str, NDArray[np.generic]]:
        """Run one inference and return the outputs by name."""
        inputs, outputs = _tensors(call)
        with _our_errors(call.model, self.address, timeout_s):
            result = await asyncio.wait_for(self._client.infer(call.model, inputs, outputs=outputs), timeout_s)
        return output_arrays(result.as_numpy, call.outputs)

    async def is_model_ready(self, model: str, timeout_s: float) -> bool:
        """Ask whether the server can run the model."""
        with _our_errors(model, self.address, timeout_s):
            return bool(await asyncio.wait_for(self._client.is_model_ready(model), timeout_s))

    async def compute_times_ns(self, timeout_s: float) -> dict[str, dict[str, int]]:
        """Return the statistics' compute times by model, summed over versions."""
        with _our_errors("statistics", self.address, timeout_s):
            return _compute_times_ns(await asyncio.wait_for(self._client.get_inference_statistics(), timeout_s))

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()


@contextmanager
def _our_errors(model: str, address: Address, timeout_s: float) -> Iterator[None]:
    try:
        yield
    except InferenceServerException as error:
        status, message, cause = error.status(), error.message() or str(error), error
    except (TimeoutError, asyncio.TimeoutError) as error:
        status, message, cause = "504", str(error), error
    except (OSError, ClientError, HTTPConnectionClosed, HTTPParseError) as error:
        status, message, cause = "503", str(error) or type(error).__name__, error
    else:
        return
    raise server_error(status, message, model=model, address=address, timeout_s=timeout_s) from cause


def _tensors(call: Call) -> tuple[list[triton.InferInput], list[triton.InferRequestedOutput]]:
    inputs = []
    for name, datatype, array in call.inputs:
        tensor = triton.InferInput(name, list(array.shape), datatype)
        tensor.set_data_from_numpy(array, binary_data=True)
        inputs.append(tensor)
    return inputs, [triton.InferRequestedOutput(name, binary_data=True) for name in call.outputs]


def _compute_times_ns(statistics: dict[str, Any]) -> dict[str, dict[str, int]]:
    times: defaultdict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(COMPUTE_PARTS, 0))
    for model in statistics["model_stats"]:
        for part in COMPUTE_PARTS:
            times[model["name"]][part] += int(model["inference_stats"][part]["ns"])
    return dict(times)
