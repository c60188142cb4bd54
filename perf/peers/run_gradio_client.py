"""Program: ask the Gradio server through gradio_client, which uploads a file each time. See worker_protocol."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from gradio_client import Client, handle_file
from numpy.typing import NDArray

from peers.worker_protocol import read_photos, serve_lines


def main() -> None:
    """Run with the arguments PORT PHOTOS_FOLDER."""
    folder = Path(sys.argv[2])
    client = Client(f"http://127.0.0.1:{sys.argv[1]}", verbose=False)
    paths = dict(zip(read_photos(folder), sorted(folder.glob("*.jpg")), strict=True))

    def ask(photo: bytes) -> NDArray[np.float32]:
        faces = client.predict(handle_file(str(paths[photo])), api_name="/landmarks")
        return np.array(faces, np.float32).reshape(-1, 468, 3)

    serve_lines(ask, sys.argv[2])


if __name__ == "__main__":
    main()
