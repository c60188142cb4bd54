"""gRPC to Triton, blocking and for asyncio."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from facegraph_client._protocol import COMPUTE_PARTS, Address, Call, output_arrays, server_error

_MESSAGE_LIMIT_BYTES = 2**31 - 1  # INT32_MAX, gRPC's largest; its default of 4 MiB is less than one texture
_RETRY_BUFFER_BYTES = 32 * 2**20  # gRPC retries only what it has kept, by default 256 KiB: less than a photo
_SERVICE_CONFIG = {
    # By default a channel to several replicas uses one of them.
    "loadBalancingConfig": [{"round_robin": {}}],
    "methodConfig": [
        {
            "name": [{"service": "inference.GRPCInferenceService"}],
            # A replica that is shut down refuses what it has not begun: the next one can take it.
            "retryPolicy": {
                "maxAttempts": 3,
                "initialBackoff": "0.05s",
                "maxBackoff": "0.5s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ],
    # A server that is overloaded for long must not get three times the requests.
    "retryThrottling": {"maxTokens": 10, "tokenRatio": 0.1},
}


def channel_args(address: Address) -> list[tuple[str, Any]]:
    """Return the whole list of channel options: giving any replaces tritonclient's own, message limits included."""
    options: list[tuple[str, Any]] = [
        ("grpc.max_send_message_length", _MESSAGE_LIMIT_BYTES),
        ("grpc.max_receive_message_length", _MESSAGE_LIMIT_BYTES),
        ("grpc.per_rpc_retry_buffer_size", _RETRY_BUFFER_BYTES),
        ("grpc.service_config", json.dumps(_SERVICE_CONFIG)),
        # While a server starts, ask it often: the default backs off to two minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2000),
    ]
    if re.match(r"(localhost|127\.[\d.]+|\[::1\]):", address.target):
        options.append(("grpc.enable_http_proxy", 0))  # http_proxy in the environment is not for this machine
    return options


class GrpcTransport:
    """Blocking calls over one channel. Threads may share it."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._client = triton.InferenceServerClient(address.target, channel_args=channel_args(address))

    def infer(self, call: Call, timeout_s: float) -> dict[str, NDArray[np.generic]]:
        """Run one inference and return the outputs by name."""
        inputs, outputs = _tensors(call)
        with _our_errors(call.model, self.address, timeout_s):
            result = self._client.infer(call.model, inputs, outputs=outputs, client_timeout=timeout_s)
        return output_arrays(result.as_numpy, call.outputs)

    def is_model_ready(self, model: str, timeout_s: float) -> bool:
        """Ask whether the server can run the model."""
        with _our_errors(model, self.address, timeout_s):
            return bool(self._client.is_model_ready(model, client_timeout=timeout_s))

    def compute_times_ns(self, timeout_s: float) -> dict[str, dict[str, int]]:
        """Return the statistics' compute times by model, summed over versions."""
        with _our_errors("statistics", self.address, timeout_s):
            return _compute_times_ns(self._client.get_inference_statistics(client_timeout=timeout_s))

    def close(self) -> None:
        """Close the channel."""
        self._client.close()


class AsyncGrpcTransport:
    """Calls for asyncio over one channel. Belongs to the event loop it is made in."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._client = triton_aio.InferenceServerClient(address.target, channel_args=channel_args(address))

    async def infer(self, call: Call, timeout_s: float) -> dict[str, NDArray[np.generic]]:
        """Run one inference and return the outputs by name."""
        inputs, outputs = _tensors(call)
        with _our_errors(call.model, self.address, timeout_s):
            result = await self._client.infer(call.model, inputs, outputs=outputs, client_timeout=timeout_s)
        return output_arrays(result.as_numpy, call.outputs)

    async def is_model_ready(self, model: str, timeout_s: float) -> bool:
        """Ask whether the server can run the model."""
        with _our_errors(model, self.address, timeout_s):
            return bool(await self._client.is_model_ready(model, client_timeout=timeout_s))

    async def compute_times_ns(self, timeout_s: float) -> dict[str, dict[str, int]]:
        """Return the statistics' compute times by model, summed over versions."""
        with _our_errors("statistics", self.address, timeout_s):
            return _compute_times_ns(await self._client.get_inference_statistics(client_timeout=timeout_s))

    async def close(self) -> None:
        """Close the channel."""
        await self._client.close()


@contextmanager
def _our_errors(model: str, address: Address, timeout_s: float) -> Iterator[None]:
    try:
        yield
    except InferenceServerException as error:
        message = error.message() or str(error)
        raise server_error(error.status(), message, model=model, address=address, timeout_s=timeout_s) from error


def _tensors(call: Call) -> tuple[list[triton.InferInput], list[triton.InferRequestedOutput]]:
    inputs = []
    for name, datatype, array in call.inputs:
        tensor = triton.InferInput(name, list(array.shape), datatype)
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    return inputs, [triton.InferRequestedOutput(name) for name in call.outputs]


def _compute_times_ns(statistics: Any) -> dict[str, dict[str, int]]:
    times: defaultdict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(COMPUTE_PARTS, 0))
    for model in statistics.model_stats:
        for part in COMPUTE_PARTS:
            times[model.name][part] += int(getattr(model.inference_stats, part).ns)
    return dict(times)
