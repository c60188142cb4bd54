"""The steps of `face_landmarks` and `face_tracking` called one after the other, without Triton."""

from __future__ import annotations

from functools import cache

import numpy as np
from facegraph_server.cpu_runtime import CpuNetwork
from facegraph_server.detection import Detections, merge_candidates
from facegraph_server.detector_views import choose_views, render_views, whole_view
from facegraph_server.face_crop import crop_faces
from facegraph_server.faces import Faces, collect_faces
from facegraph_server.paths import onnx_path
from numpy.typing import NDArray


@cache
def network(name: str) -> CpuNetwork:
    return CpuNetwork(onnx_path(name))


def detect(image_rgb: NDArray[np.uint8], *, fine: bool = False, tracking: bool = False) -> Detections:
    height, width = image_rgb.shape[:2]
    views = [whole_view(width, height)] if tracking else choose_views(width, height, fine=fine)
    found = network("face_detector").run(render_views(image_rgb, views))
    return merge_candidates(
        found["BOXES"], found["KEYPOINTS"], found["SCORES"], np.array(views, np.float32), (width, height)
    )


def find_faces(
    image_rgb: NDArray[np.uint8], *, fine: bool = False, prior_px: NDArray[np.float32] | None = None
) -> Faces:
    found = detect(image_rgb, fine=fine, tracking=prior_px is not None)
    crops = crop_faces(image_rgb, found, prior_px)
    mesh = network("face_mesh").run(crops.crops)
    return collect_faces(mesh["CROP_LANDMARKS"], mesh["PRESENCE"][:, 0], *crops[1:], prior_px)
