"""Frame, landmarks and source texture in, swapped frame out. Python, outside the graph: a face may be of any size."""

from typing import Any

from facegraph_server.swap_request import answer_swap
from facegraph_server.triton_step import Arrays, respond


class TritonPythonModel:
    """Triton's entry point."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer a list of requests."""
        return respond(requests, _swap)


def _swap(inputs: Arrays) -> Arrays:
    return answer_swap(inputs["FRAME"], inputs["LANDMARKS"], inputs)
