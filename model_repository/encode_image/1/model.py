"""Swapped frame in, encoded photo out. Python, outside the graph: an encoder branches on every pixel."""

from typing import Any

import numpy as np
from facegraph_server.swap_request import answer_encoded
from facegraph_server.triton_step import Arrays, respond


class TritonPythonModel:
    """Triton's entry point."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer a list of requests."""
        return respond(requests, _encode)


def _encode(inputs: Arrays) -> Arrays:
    photo = answer_encoded(inputs["SWAPPED"], inputs["SWAP_COUNT"], inputs["IMAGE"][0])
    return {"SWAPPED_IMAGE": np.array([photo], np.object_)}
