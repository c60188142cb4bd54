"""Profile fused: photo in, landmarks out, everything after the decoder in one CUDA graph."""

from facegraph_server.fused_model import FusedModel
from facegraph_server.image_decode import decode_image
from facegraph_server.triton_step import Arrays


class TritonPythonModel(FusedModel):
    """Triton's entry point."""

    def answer(self, inputs: Arrays) -> Arrays:
        """Find the faces of a photo."""
        fine = bool(inputs["SEARCH_TILES"][0]) if "SEARCH_TILES" in inputs else False
        faces = self.frames.find(decode_image(inputs["IMAGE"][0]), fine=fine)
        return {"LANDMARKS": faces.landmarks_px, "BOX": faces.box_xyxy, "SCORE": faces.score}
