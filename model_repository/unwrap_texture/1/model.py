"""Landmarks and pixels in, metric mesh and UV texture out. Python, outside the graph: the frame's size is free."""

from typing import Any

from facegraph_server.contract import DEFAULT_TEXTURE_SIZE_PX
from facegraph_server.reconstruction import reconstruct_faces
from facegraph_server.texel_map import layout_mask, texel_map
from facegraph_server.triton_step import Arrays, respond


class TritonPythonModel:
    """Triton's entry point."""

    def initialize(self, _args: dict[str, str]) -> None:
        """Build the map of the default texture size, so that the first photo does not wait for it."""
        texel_map(DEFAULT_TEXTURE_SIZE_PX)
        layout_mask(DEFAULT_TEXTURE_SIZE_PX)

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
