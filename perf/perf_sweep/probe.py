"""A few requests before the measurement: do the faces come back, and how long is a window to be."""

from __future__ import annotations

import base64
import time

import numpy as np
from facegraph_server.paths import NETWORKS
from tritonclient import grpc
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from perf_sweep.errors import SweepError
from perf_sweep.inputs import LENGTH_BYTES, Step
from perf_sweep.measurement import Addresses

_REQUESTS = 3
_TIMEOUT_S = 60.0


def probe(addresses: Addresses, model: str, step: Step) -> float:
    """Send a request a few times, one after the other; return the seconds of the fastest.

    Args:
        addresses: of the server.
        model: which one.
        step: the request, as perf_analyzer will send it.

    Raises:
        SweepError: the server refuses the request, or finds no face where there is one.

    """
    times_s = []
    try:
        with grpc.InferenceServerClient(addresses.grpc) as client:
            metadata = client.get_model_metadata(model, client_timeout=_TIMEOUT_S)
            inputs = [_read_tensor(model, tensor.datatype, tensor.name, step) for tensor in metadata.inputs]
            for _ in range(_REQUESTS):
                start = time.perf_counter()
                answer = client.infer(model, inputs, client_timeout=_TIMEOUT_S)
                times_s.append(time.perf_counter() - start)
    except InferenceServerException as error:
        raise SweepError(f"{model} does not answer: {error.message()}") from error
    if model not in NETWORKS and not len(answer.as_numpy("SCORE")):
        raise SweepError(f"{model} finds no face in a photo that has one: its times would mean nothing")
    return min(times_s)


def _read_tensor(model: str, datatype: str, name: str, step: Step) -> grpc.InferInput:
    content, shape = base64.b64decode(step[name]["b64"]), list(step[name]["shape"])
    if datatype == "BYTES":
        array = np.array([content[LENGTH_BYTES:]], np.object_)
    else:
        array = np.frombuffer(content, triton_to_np_dtype(datatype)).reshape(shape)
    if model in NETWORKS:  # perf_analyzer's files have no batch dimension
        array = array[np.newaxis]
    tensor = grpc.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return tensor
