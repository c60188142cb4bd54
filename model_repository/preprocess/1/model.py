"""Photo in, pixels and detector input out. Python, outside the graph: a decoder branches on every byte."""

from typing import Any

import numpy as np
from facegraph_server.detector_views import choose_views, render_views
from facegraph_server.image_decode import decode_image
from facegraph_server.triton_step import Arrays, respond


class TritonPythonModel:
    """Triton's entry point."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer a list of requests."""
        return respond(requests, _preprocess)


def _preprocess(inputs: Arrays) -> Arrays:
    frame = decode_image(inputs["IMAGE"][0])
    fine = bool(inputs["SEARCH_TILES"][0]) if "SEARCH_TILES" in inputs else False
    views = choose_views(frame.shape[1], frame.shape[0], fine=fine)
    return {"FRAME": frame, "DETECTOR_INPUT": render_views(frame, views), "VIEWS": np.array(views, np.float32)}
