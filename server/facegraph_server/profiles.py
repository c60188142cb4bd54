"""The profiles of the model repository, and the proof that a server loaded the one that was asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

from facegraph_server.errors import ServerStartError
from facegraph_server.triton_install import TritonInstallation

PROFILES = ("tensorrt", "nograph", "cpu", "fused")
"""``tensorrt`` is the default configuration of each model, the others are ``configs/<profile>.pbtxt``."""

_TIMEOUT_S = 10.0


def default_profile(installation: TritonInstallation) -> str:
    """Return ``tensorrt`` where there are a GPU and Triton's TensorRT backend, otherwise ``cpu``."""
    return "tensorrt" if installation.has_tensorrt and Path("/dev/nvidiactl").exists() else "cpu"


def check_profile(profile: str) -> str:
    """Return ``profile`` if it exists.

    Raises:
        ServerStartError: there is no such profile. (Triton itself would silently use the default.)

    """
    if profile not in PROFILES:
        raise ServerStartError(f"there is no profile {profile!r}; choose one of {', '.join(PROFILES)}")
    return profile


def config_file(model_folder: Path, profile: str) -> Path:
    """Return the file that Triton reads for a model under ``--model-config-name=profile``."""
    own = model_folder / "configs" / f"{profile}.pbtxt"
    return own if own.is_file() else model_folder / "config.pbtxt"


def loaded_models(model_repository: Path, profile: str) -> list[str]:
    """Return the models that a server of this profile loads: all, or in ``fused`` those that have it.

    The other models are steps that the fused ones replace; their default configuration needs TensorRT.
    """
    folders = sorted(path for path in model_repository.iterdir() if (path / "config.pbtxt").is_file())
    if profile == "fused":
        folders = [path for path in folders if config_file(path, profile).name == f"{profile}.pbtxt"]
    return [path.name for path in folders]


def read_config(path: Path) -> Any:
    """Parse a ``config.pbtxt`` with Triton's own message type."""
    return text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())


def verify_profile(http_address: str, model_repository: Path, profile: str) -> None:
    """Compare what the server loaded with the files of the profile.

    Raises:
        ServerStartError: a model runs with another backend, or with other CUDA-graph settings.

    """
    for folder in (model_repository / name for name in loaded_models(model_repository, profile)):
        expected = read_config(config_file(folder, profile))
        with urlopen(f"http://{http_address}/v2/models/{folder.name}/config", timeout=_TIMEOUT_S) as answer:
            loaded = json_format.ParseDict(
                json.load(answer), model_config_pb2.ModelConfig(), ignore_unknown_fields=True
            )
        for what in ("backend", "platform", "optimization.cuda.graphs"):
            wanted, got = (_field(config, what) for config in (expected, loaded))
            if wanted and wanted != got:
                raise ServerStartError(
                    f"the server at {http_address} runs {folder.name} with {what} = {got!r}, but profile {profile} "
                    f"means {wanted!r}; start it with --model-config-name={profile}"
                )


def _field(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = getattr(config, name)
    return config
