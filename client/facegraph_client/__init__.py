"""Talk to a Triton server that serves facegraph: photos in, 3D faces out."""

from facegraph_client._canonical import CanonicalFace, canonical_face
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
from facegraph_client._raster import Raster, rasterize

__all__ = [
    "CanonicalFace",
    "FaceGraphError",
    "ImageError",
    "InputError",
    "ModelUnavailableError",
    "OutputError",
    "Raster",
    "ServerError",
    "ServerOverloadedError",
    "ServerTimeoutError",
    "ServerUnavailableError",
    "SetupError",
    "canonical_face",
    "rasterize",
]
