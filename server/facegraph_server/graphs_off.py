"""A copy of the models whose fused profile runs without CUDA graphs: what the one with graphs is compared with."""

from __future__ import annotations

import shutil
from pathlib import Path

from facegraph_server.errors import ServerStartError
from facegraph_server.paths import MODEL_REPOSITORY

_ON, _OFF = 'key: "GRAPHS"\n  value { string_value: "on" }', 'key: "GRAPHS"\n  value { string_value: "off" }'


def without_graphs(folder: Path, model_repository: Path = MODEL_REPOSITORY) -> Path:
    """Copy the models into ``folder`` with the fused profile's graphs switched off; return the copy.

    A model without graphs of its own has no parameters.

    Raises:
        ServerStartError: a fused model does not have the parameter GRAPHS.

    """
    copy = folder / "model_repository"
    shutil.copytree(model_repository, copy, ignore=shutil.ignore_patterns("*.plan", "__pycache__"))
    for path in copy.glob("*/configs/fused.pbtxt"):
        text = path.read_text()
        if "parameters" not in text:
            continue
        if _ON not in text:
            raise ServerStartError(
                f"{path.parent.parent.name} has no parameter GRAPHS that is on in configs/fused.pbtxt"
            )
        path.write_text(text.replace(_ON, _OFF))
    return copy
