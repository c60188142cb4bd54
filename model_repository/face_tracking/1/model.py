"""Profile fused: video frame and the frame before's landmarks in, smoothed landmarks out, all in one CUDA graph."""

from facegraph_server.fused_model import FusedModel
from facegraph_server.image_decode import check_frame
from facegraph_server.triton_step import Arrays


class TritonPythonModel(FusedModel):
    """Triton's entry point."""

    tracking = True

    def answer(self, inputs: Arrays) -> Arrays:
        """Find the faces of a frame."""
        faces = self.frames.find(check_frame(inputs["FRAME"]), prior_px=inputs["PRIOR"])
        return {"LANDMARKS": faces.landmarks_px, "BOX": faces.box_xyxy, "SCORE": faces.score}
