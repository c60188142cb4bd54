"""Landmarks and pixels in, metric mesh and UV texture out. Python, outside the graph: the frame's size is free."""

from typing import Any

from facegraph_server.reconstruction import reconstruct_faces
from facegraph_server.triton_step import Arrays, respond


class TritonPythonModel:
    """Triton's entry point."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer a list of requests."""
        return respond(requests, _unwrap)


def _unwrap(inputs: Arrays) -> Arrays:
    options = {"texture_size_px": int(inputs["TEXTURE_SIZE"][0])} if "TEXTURE_SIZE" in inputs else {}
    faces = reconstruct_faces(inputs["FRAME"], inputs["LANDMARKS"], **options)
    return {
        "VERTICES": faces.vertices_cm,
        "POSE": faces.pose,
        "TEXTURE": faces.texture_rgb,
        "COVERAGE": faces.coverage,
    }
