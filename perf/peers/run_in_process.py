"""Program: MediaPipe in this process. Reads a line with seconds, runs so long, answers with a line of JSON."""

from __future__ import annotations

import sys

from peers import face_mesh
from peers.worker_protocol import serve_lines


def main() -> None:
    """Run with the arguments DECODER PHOTOS_FOLDER."""
    decode = {"opencv": face_mesh.decode_with_opencv, "simplejpeg": face_mesh.decode_with_simplejpeg}[sys.argv[1]]
    mesh = face_mesh.FaceMesh()
    serve_lines(lambda photo: mesh.landmarks_px(decode(photo)), sys.argv[2])


if __name__ == "__main__":
    main()
