"""Profile fused: photo in, landmarks, metric mesh and texture out; the landmarks from one CUDA graph.

The geometry, a few small matrix products for each face, stays on the CPU, and so does the texture.
"""

from facegraph_server.contract import DEFAULT_TEXTURE_SIZE_PX
from facegraph_server.fused_model import FusedModel
from facegraph_server.image_decode import decode_image
from facegraph_server.reconstruction import reconstruct_faces
from facegraph_server.triton_step import Arrays


class TritonPythonModel(FusedModel):
    """Triton's entry point."""

    def answer(self, inputs: Arrays) -> Arrays:
        """Reconstruct the faces of a photo."""
        photo = decode_image(inputs["IMAGE"][0])
        fine = bool(inputs["SEARCH_TILES"][0]) if "SEARCH_TILES" in inputs else False
        size_px = int(inputs["TEXTURE_SIZE"][0]) if "TEXTURE_SIZE" in inputs else DEFAULT_TEXTURE_SIZE_PX
        found = self.frames.find(photo, fine=fine)
        faces = reconstruct_faces(photo, found.landmarks_px, size_px)
        return {
            "LANDMARKS": found.landmarks_px,
            "BOX": found.box_xyxy,
            "SCORE": found.score,
            "VERTICES": faces.vertices_cm,
            "POSE": faces.pose,
            "TEXTURE": faces.texture_rgb,
            "COVERAGE": faces.coverage,
        }
