"""Crop landmarks in, faces of the picture out. Python, outside the graph: their number depends on the picture."""

from typing import Any

from facegraph_server.faces import collect_faces
from facegraph_server.triton_step import Arrays, respond


class TritonPythonModel:
    """Triton's entry point."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer a list of requests."""
        return respond(requests, _collect)


def _collect(inputs: Arrays) -> Arrays:
    faces = collect_faces(
        inputs["CROP_LANDMARKS"],
        inputs["PRESENCE"][:, 0],
        inputs["ROI"],
        inputs["PRIOR_INDEX"],
        inputs["DETECTION"],
        int(inputs["FACE_COUNT"][0]),
        inputs.get("PRIOR"),
    )
    return {
        "LANDMARKS": faces.landmarks_px,
        "FACES": faces.landmarks_px,
        "BOX": faces.box_xyxy,
        "SCORE": faces.score,
    }
