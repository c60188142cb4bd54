"""Where things lie in a checkout of the repository."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
MODEL_REPOSITORY = REPOSITORY / "model_repository"
BUILD = REPOSITORY / "build"
WEIGHTS = BUILD / "weights"
SAMPLE_PHOTO = REPOSITORY / "samples" / "astronaut.jpg"

NETWORKS = ("face_detector", "face_mesh")
"""The two models that are neural networks."""


def onnx_path(model: str, model_repository: Path = MODEL_REPOSITORY) -> Path:
    """Return where the ONNX file of a network lies: beside the model.py that runs it on a CPU."""
    return model_repository / model / "1" / "model.onnx"
