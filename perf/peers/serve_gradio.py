"""Program: MediaPipe behind Gradio, its queue at a concurrency of two, one FaceMesh for each."""

from __future__ import annotations

import queue
import sys
import time
from typing import Any

import gradio
import numpy as np
from numpy.typing import NDArray

from peers.face_mesh import FaceMesh
from peers.owner import end_with_owner

_CONCURRENCY = 2

_meshes: queue.SimpleQueue[FaceMesh] = queue.SimpleQueue()


def landmarks(image_rgb: NDArray[np.uint8]) -> list[Any]:
    """Return [F,468,3] in pixels as nested lists."""
    mesh = _meshes.get()
    try:
        return list(mesh.landmarks_px(image_rgb).tolist())
    finally:
        _meshes.put(mesh)


def main() -> None:
    """Serve on 127.0.0.1 and the port given."""
    end_with_owner()
    for _ in range(_CONCURRENCY):
        _meshes.put(FaceMesh())
    page = gradio.Interface(
        landmarks,
        gradio.Image(type="numpy"),
        gradio.JSON(),
        api_name="landmarks",
        concurrency_limit=_CONCURRENCY,
        flagging_mode="never",
    )
    # api_open also lets a program ask without the queue: compare_peers.py measures both ways.
    page.queue(api_open=True, default_concurrency_limit=_CONCURRENCY, max_size=64)
    page.launch(
        server_name="127.0.0.1", server_port=int(sys.argv[1]), prevent_thread_lock=True, quiet=True, ssr_mode=False
    )
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main()
