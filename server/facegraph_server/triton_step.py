"""What all Python-backend steps share: tensors in, one function, tensors out, errors mapped request by request."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import triton_python_backend_utils as pb_utils
from facegraph_client import InputError
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]

cv2.setNumThreads(1)  # the server is parallel by its instances; threads within a step only take cores from the others


def respond(requests: list[Any], step: Callable[[Arrays], Arrays]) -> list[Any]:
    """Answer each request with ``step`` of its input tensors; a failing request fails alone.

    Args:
        requests: what Triton gave to ``execute``.
        step: maps input arrays by name to output arrays by name. An :class:`facegraph_client.InputError` becomes
            INVALID_ARGUMENT; any other exception is logged with its traceback and becomes INTERNAL.

    """
    return [_respond_to_one(request, step) for request in requests]


def ask(model: str, inputs: Arrays, outputs: list[str]) -> Arrays:
    """Ask another model of this server.

    Raises:
        InputError: it refused the input.
        RuntimeError: it failed.

    """
    tensors = [pb_utils.Tensor(name, array) for name, array in inputs.items()]
    request = pb_utils.InferenceRequest(model_name=model, inputs=tensors, requested_output_names=outputs)
    answer = request.exec()
    if answer.has_error():
        error = answer.error()
        kind = InputError if error.code() == pb_utils.TritonError.INVALID_ARG else RuntimeError
        raise kind(error.message())
    return {tensor.name(): tensor.as_numpy() for tensor in answer.output_tensors()}


def _respond_to_one(request: Any, step: Callable[[Arrays], Arrays]) -> Any:
    try:
        outputs = step({tensor.name(): tensor.as_numpy() for tensor in request.inputs()})
        wanted = request.requested_output_names()
        tensors = [pb_utils.Tensor(name, np.ascontiguousarray(outputs[name])) for name in wanted]
        return pb_utils.InferenceResponse(output_tensors=tensors)
    except InputError as error:
        return _failure(str(error), pb_utils.TritonError.INVALID_ARG)
    except Exception as error:
        pb_utils.Logger.log_error(traceback.format_exc())
        return _failure(f"internal error: {type(error).__name__}: {error}", pb_utils.TritonError.INTERNAL)


def _failure(message: str, code: int) -> Any:
    return pb_utils.InferenceResponse(output_tensors=[], error=pb_utils.TritonError(message, code))
