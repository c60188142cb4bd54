"""Talk to a Triton server that serves facegraph: photos in, 3D faces out."""

from facegraph_client._async_client import AsyncFaceClient
from facegraph_client._canonical import CanonicalFace, canonical_face
from facegraph_client._client import FaceClient
from facegraph_client._errors import (
    FaceGraphError,
    ImageError,
    InputError,
    ModelUnavailableError,
    OutputError,
    ServerError,
    ServerOverloadedError,
    ServerTimeoutError,
    ServerUnavailableError,
    SetupError,
    VideoError,
)
from facegraph_client._photo import Photo, load_upright_rgb
from facegraph_client._preview import draw_landmarks, preview
from facegraph_client._protocol import SwappedPhoto
from facegraph_client._provenance import marked_picture, read_provenance
from facegraph_client._raster import Raster, rasterize
from facegraph_client._results import Face, FaceLandmarks
from facegraph_client._swap import FaceSwapSession, SwapState
from facegraph_client._video_live import LiveReport, LiveResult
from facegraph_client._video_pipeline import VideoProgress, VideoReport

__all__ = [
    "AsyncFaceClient",
    "CanonicalFace",
    "Face",
    "FaceClient",
    "FaceGraphError",
    "FaceLandmarks",
    "FaceSwapSession",
    "ImageError",
    "InputError",
    "LiveReport",
    "LiveResult",
    "ModelUnavailableError",
    "OutputError",
    "Photo",
    "Raster",
    "ServerError",
    "ServerOverloadedError",
    "ServerTimeoutError",
    "ServerUnavailableError",
    "SetupError",
    "SwapState",
    "SwappedPhoto",
    "VideoError",
    "VideoProgress",
    "VideoReport",
    "canonical_face",
    "draw_landmarks",
    "load_upright_rgb",
    "marked_picture",
    "preview",
    "rasterize",
    "read_provenance",
]
