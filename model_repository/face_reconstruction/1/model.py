"""Profile fused: photo in, landmarks, metric mesh and texture out; landmarks and texture from one CUDA graph.

The geometry, a few small matrix products for each face, stays on the CPU.
"""

import numpy as np
from facegraph_server.contract import DEFAULT_TEXTURE_SIZE_PX, VERTICES
from facegraph_server.fused_model import FusedModel
from facegraph_server.geometry import fit_head
from facegraph_server.image_decode import decode_image
from facegraph_server.torch_texture import FaceUnwrapper
from facegraph_server.triton_step import Arrays


class TritonPythonModel(FusedModel):
    """Triton's entry point."""

    unwrap = FaceUnwrapper()

    def answer(self, inputs: Arrays) -> Arrays:
        """Reconstruct the faces of a photo."""
        photo = decode_image(inputs["IMAGE"][0])
        fine = bool(inputs["SEARCH_TILES"][0]) if "SEARCH_TILES" in inputs else False
        size_px = int(inputs["TEXTURE_SIZE"][0]) if "TEXTURE_SIZE" in inputs else DEFAULT_TEXTURE_SIZE_PX
        found, texture, coverage = self.frames.find_textured(photo, fine=fine, texture_size_px=size_px)
        heads = [fit_head(landmarks, (photo.shape[1], photo.shape[0])) for landmarks in found.landmarks_px]
        return {
            "LANDMARKS": found.landmarks_px,
            "BOX": found.box_xyxy,
            "SCORE": found.score,
            "VERTICES": np.array([head.vertices_cm for head in heads], np.float32).reshape(-1, VERTICES, 3),
            "POSE": np.array([head.pose for head in heads], np.float32).reshape(-1, 4, 4),
            "TEXTURE": texture,
            "COVERAGE": coverage,
        }
