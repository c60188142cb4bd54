"""Profile fused: video frame, prior and source texture in, swapped frame out; the faces from one CUDA graph."""

from facegraph_server.fused_model import FusedModel
from facegraph_server.image_decode import check_frame
from facegraph_server.swap_request import answer_swap
from facegraph_server.triton_step import Arrays


class TritonPythonModel(FusedModel):
    """Triton's entry point."""

    tracking = True

    def answer(self, inputs: Arrays) -> Arrays:
        """Swap the faces of a frame."""
        frame = check_frame(inputs["FRAME"])
        landmarks_px = self.frames.find(frame, prior_px=inputs["PRIOR"]).landmarks_px
        return {"LANDMARKS": landmarks_px, **answer_swap(frame, landmarks_px, inputs)}
