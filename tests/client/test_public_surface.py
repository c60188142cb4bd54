from __future__ import annotations

import inspect
import subprocess
import sys

import facegraph_client
import pytest
from facegraph_client import AsyncFaceClient, FaceClient, FaceGraphError, _errors


def test_all_lists_every_public_name_and_no_other() -> None:
    public = {
        name
        for name, value in vars(facegraph_client).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert sorted(public) == facegraph_client.__all__ == sorted(facegraph_client.__all__)


def test_every_error_is_public_and_has_the_one_root() -> None:
    errors = {v for v in vars(_errors).values() if inspect.isclass(v) and issubclass(v, Exception)}
    assert {error.__name__ for error in errors} <= set(facegraph_client.__all__)
    assert all(issubclass(error, FaceGraphError) for error in errors)
    assert all(error.__name__ in (_errors.__doc__ or "") for error in errors)  # the tree that is drawn there


def _signatures(kind: type) -> dict[str, list[str]]:
    functions = {name: f for name, f in vars(kind).items() if inspect.isfunction(f) and not name.startswith("_")}
    functions["__init__"] = kind.__init__  # type: ignore[misc]
    return {name: [str(p) for p in inspect.signature(f).parameters.values()] for name, f in functions.items()}


def test_both_clients_have_the_same_methods_and_arguments() -> None:
    assert _signatures(FaceClient) == _signatures(AsyncFaceClient)
    asynchronous = {name for name, f in vars(AsyncFaceClient).items() if inspect.iscoroutinefunction(f)}
    assert asynchronous >= set(_signatures(FaceClient)) - {"__init__"}


@pytest.mark.parametrize("statement", ["import facegraph_client", "import facegraph_client._cli"])
def test_import_leaves_heavy_packages_alone(statement: str) -> None:
    heavy = ["trimesh", "tritonclient", "grpc", "gevent", "aiohttp", "rich", "cv2", "scipy"]
    code = f"{statement}; import sys; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert result.stdout.strip() == "[]"
