"""Profile fused: photo and source photo in, swapped photo out. The profile's other models find the faces."""

from typing import Any

import numpy as np
from facegraph_server.image_decode import decode_image
from facegraph_server.swap_request import answer_encoded, answer_swap
from facegraph_server.triton_step import Arrays, ask, respond


class TritonPythonModel:
    """Triton's entry point."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer a list of requests."""
        return respond(requests, _swap)


def _swap(inputs: Arrays) -> Arrays:
    source = ask("face_reconstruction", {"IMAGE": inputs["SOURCE"]}, ["TEXTURE", "COVERAGE"])
    photo = {name: inputs[name] for name in ("IMAGE", "SEARCH_TILES") if name in inputs}
    landmarks_px = ask("face_landmarks", photo, ["LANDMARKS"])["LANDMARKS"]
    answer = answer_swap(decode_image(inputs["IMAGE"][0]), landmarks_px, inputs | source)
    encoded = answer_encoded(answer["SWAPPED"], answer["SWAP_COUNT"], inputs["IMAGE"][0])
    return {
        "SWAPPED_IMAGE": np.array([encoded], np.object_),
        "LANDMARKS": landmarks_px,
        "SOURCE_INDEX": answer["SOURCE_INDEX"],
    }
