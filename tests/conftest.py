"""Fixtures that several test folders share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import matplotlib.cbook
import numpy as np
import pytest
import skimage.data
from facegraph_client import FaceClient
from facegraph_server.embedded import EmbeddedServer
from numpy.typing import NDArray
from PIL import Image

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def _no_server_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FACEGRAPH_SERVER", raising=False)


@pytest.fixture(scope="session")
def astronaut_rgb() -> NDArray[np.uint8]:
    """A portrait of Eileen Collins (NASA, public domain), UINT8 [512,512,3]; her face is 94 px wide."""
    return np.asarray(skimage.data.astronaut(), np.uint8)


@pytest.fixture(scope="session")
def hopper_rgb() -> NDArray[np.uint8]:
    """A portrait of Grace Hopper (US Navy, public domain), UINT8 [600,512,3]."""
    path = Path(matplotlib.cbook._get_data_path("sample_data")) / "grace_hopper.jpg"
    return np.asarray(Image.open(path).convert("RGB"), np.uint8)


@pytest.fixture(scope="session")
def sample_photo() -> Path:
    """The photo of `make demo`."""
    return REPOSITORY / "samples" / "astronaut.jpg"


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(profile="cpu") as running:
        yield running


@pytest.fixture(scope="session", params=["grpc", "http"])
def client(request: pytest.FixtureRequest, server: EmbeddedServer) -> Iterator[FaceClient]:
    url = server.grpc_address if request.param == "grpc" else f"http://{server.http_address}"
    with FaceClient(url) as connected:
        yield connected
