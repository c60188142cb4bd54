"""Profile fused: video frame, prior and source texture in, swapped frame out. Its face_tracking finds the faces."""

from typing import Any

from facegraph_server.image_decode import check_frame
from facegraph_server.swap_request import answer_swap
from facegraph_server.triton_step import Arrays, ask, respond


class TritonPythonModel:
    """Triton's entry point."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer a list of requests."""
        return respond(requests, _swap)


def _swap(inputs: Arrays) -> Arrays:
    frame = check_frame(inputs["FRAME"])
    found = ask("face_tracking", {"FRAME": frame, "PRIOR": inputs["PRIOR"]}, ["LANDMARKS"])
    return found | answer_swap(frame, found["LANDMARKS"], inputs)
