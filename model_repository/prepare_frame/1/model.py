"""Video frame in, detector input out: the whole frame only, since faces that are known go on from PRIOR.

Python, outside the graph: the frame's size is free.
"""

from typing import Any

import numpy as np
from facegraph_server.detector_views import render_views, whole_view
from facegraph_server.image_decode import check_frame
from facegraph_server.triton_step import Arrays, respond


class TritonPythonModel:
    """Triton's entry point."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer a list of requests."""
        return respond(requests, _prepare)


def _prepare(inputs: Arrays) -> Arrays:
    frame = check_frame(inputs["FRAME"])
    views = [whole_view(frame.shape[1], frame.shape[0])]
    return {"DETECTOR_INPUT": render_views(frame, views), "VIEWS": np.array(views, np.float32)}
