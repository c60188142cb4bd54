"""Program: MediaPipe behind FastAPI and uvicorn, two worker processes. POST /landmarks takes and returns raw bytes."""

from __future__ import annotations

import sys

import uvicorn
from fastapi import FastAPI, Request, Response

from peers.face_mesh import FaceMesh, decode_with_simplejpeg
from peers.owner import end_with_owner

_WORKERS = 2

app = FastAPI()
_meshes: list[FaceMesh] = []


async def landmarks(request: Request) -> Response:
    """Return FLOAT32 [F,468,3] in the photo's pixels.

    Runs in the event loop: with a worker a core and one FaceMesh a worker, a thread pool only adds hops.
    """
    if not _meshes:
        _meshes.append(FaceMesh())
    image = decode_with_simplejpeg(await request.body())
    return Response(_meshes[0].landmarks_px(image).tobytes(), media_type="application/octet-stream")


app.add_api_route("/landmarks", landmarks, methods=["POST"])


def main() -> None:
    """Serve on 127.0.0.1 and the port given."""
    end_with_owner()
    uvicorn.run(
        "peers.serve_fastapi:app",
        host="127.0.0.1",
        port=int(sys.argv[1]),
        workers=_WORKERS,
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
    )


if __name__ == "__main__":
    main()
