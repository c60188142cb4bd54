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
)
from facegraph_client._photo import Photo, load_upright_rgb
from facegraph_client._preview import draw_landmarks, preview
from facegraph_client._raster import Raster, rasterize
from facegraph_client._results import Face, FaceLandmarks

__all__ = [
    "AsyncFaceClient",
    "CanonicalFace",
    "Face",
    "FaceClient",
    "FaceGraphError",
    "FaceLandmarks",
    "ImageError",
    "InputError",
    "ModelUnavailableError",
    "OutputError",
    "Photo",
    "Raster",
    "ServerError",
    "ServerOverloadedError",
    "ServerTimeoutError",
    "ServerUnavailableError",
    "SetupError",
    "canonical_face",
    "draw_landmarks",
    "load_upright_rgb",
    "preview",
    "rasterize",
]
