"""Detector output in, upright face crops out. Python, outside the graph: the number of faces depends on the picture."""

from typing import Any

import numpy as np
from facegraph_server.detection import merge_candidates
from facegraph_server.face_crop import crop_faces
from facegraph_server.triton_step import Arrays, respond


class TritonPythonModel:
    """Triton's entry point."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer a list of requests."""
        return respond(requests, _crop)


def _crop(inputs: Arrays) -> Arrays:
    frame = inputs["FRAME"]
    candidates = (inputs[name] for name in ("BOXES", "KEYPOINTS", "SCORES", "VIEWS"))
    found = merge_candidates(*candidates, image_wh=(frame.shape[1], frame.shape[0]))
    crops = crop_faces(frame, found, inputs.get("PRIOR"))
    return {
        "CROPS": crops.crops,
        "ROI": crops.roi,
        "PRIOR_INDEX": crops.prior_index,
        "DETECTION": crops.detection,
        "FACE_COUNT": np.array([crops.face_count], np.int32),
    }
