"""A whole frame, from pixels to faces, as one torch function of fixed shape: what one CUDA graph replays.

Inside the CUDA graph. The arithmetic is that of the NumPy steps (``detector_views``, ``detection``, ``face_crop``,
``faces``, ``smoothing``); what they decide by branching is decided here by masks. The shapes depend on the bucket
alone: the frame lies in the upper left corner of the bucket's buffer, its size and its views are input tensors, and
what the buffer holds beyond the frame does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from facegraph_client import InputError
from numpy.typing import NDArray
from torch import Tensor, nn

from facegraph_server.contract import DEFAULT_TEXTURE_SIZE_PX, MAX_BATCH, MESH_SIZE_PX, VERTICES
from facegraph_server.detection import WEAK_DETECTION
from facegraph_server.detector_views import View, choose_views, whole_view
from facegraph_server.face_crop import can_be_faces
from facegraph_server.faces import (
    DUPLICATE_CONTAINMENT,
    PRESENCE_THRESHOLD,
    WEAK_DETECTION_PRESENCE_THRESHOLD,
)
from facegraph_server.torch_detection import (
    TorchRegions,
    box_containment,
    choose_regions,
    keep_greedily,
    landmarks_box,
    merge_candidates,
    rotate,
)
from facegraph_server.torch_networks import TorchNetwork
from facegraph_server.torch_resample import crop_regions, render_views, summed_area
from facegraph_server.torch_smoothing import smooth_landmarks

TextureFunction = Callable[[Tensor, Tensor, Tensor, int], tuple[Tensor, Tensor]]
"""Frame UINT8 [H,W,3], its size INT32 [2], landmarks FP32 [n,468,3] and T to textures UINT8 [n,T,T,3] and coverage
UINT8 [n,T,T]. It must be safe to capture, and take landmarks that are all zero."""


class FrameBucket(NamedTuple):
    """The largest frame that a function of fixed shape takes.

    Attributes:
        width_px: width of the buffer.
        height_px: height of the buffer.
        views: how many detector views it holds; a picture of width w and height h needs 1, or 1 + ceil(w / h) where
            w >= 1.2 h, and up to 16 for the search in tiles.

    """

    width_px: int
    height_px: int
    views: int

    def __str__(self) -> str:
        """Return it as it is written in a configuration."""
        return f"{self.width_px}x{self.height_px}x{self.views}"

    def holds(self, width_px: int, height_px: int, views: int) -> bool:
        """Tell whether a frame of this size with so many views fits."""
        return width_px <= self.width_px and height_px <= self.height_px and views <= self.views


class FrameFunction(nn.Module):
    """The whole frame as one function: inputs by name in, faces by name out.

    Inputs: ``FRAME`` UINT8 [H,W,3], the bucket's buffer; ``SIZE`` INT32 [2], the frame's width and height;
    ``VIEWS`` FP64 [V,3], left, top and side of each view, the whole picture first; ``VIEW_COUNT`` INT32 [1]; with
    ``tracking``, ``PRIOR`` FP32 [16,468,3], an all-zero row is no face. :func:`frame_inputs` makes them.

    Outputs, whose rows from ``COUNT`` on are zero: ``LANDMARKS`` FP32 [N,468,3], ``BOX`` FP32 [N,4], ``SCORE`` FP32
    [N]; ``COUNT`` INT32 [1]; ``REGIONS`` INT32 [1], how many regions there were to look at: where it is larger than N,
    smaller or weaker ones were left out. With ``unwrap`` also ``TEXTURE`` UINT8 [1,T,T,3] and ``COVERAGE`` UINT8
    [1,T,T] of the first face, T = 1024: most photos show one face, and a texture for each of N would cost N times as
    much whether the faces are there or not.

    Args:
        detector: the network ``face_detector``.
        mesh: the network ``face_mesh``.
        bucket: the shapes.
        max_faces: N, 1 to 16.
        tracking: whether there is a frame before.
        unwrap: makes textures, or None.

    """

    def __init__(
        self,
        detector: TorchNetwork,
        mesh: TorchNetwork,
        bucket: FrameBucket,
        *,
        max_faces: int = MAX_BATCH,
        tracking: bool = False,
        unwrap: TextureFunction | None = None,
    ) -> None:
        super().__init__()
        if not 1 <= max_faces <= MAX_BATCH:
            raise InputError(f"a frame function finds 1 to {MAX_BATCH} faces, not {max_faces}")
        self.detector, self.mesh = detector, mesh
        self.bucket, self.max_faces, self.tracking, self.unwrap = bucket, max_faces, tracking, unwrap

    def input_specs(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Return shape and type of each input; the frame, which is filled only in part, comes last."""
        specs: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            "VIEWS": ((self.bucket.views, 3), torch.float64),
            "SIZE": ((2,), torch.int32),
            "VIEW_COUNT": ((1,), torch.int32),
        }
        if self.tracking:
            specs["PRIOR"] = ((MAX_BATCH, VERTICES, 3), torch.float32)
        return specs | {"FRAME": ((self.bucket.height_px, self.bucket.width_px, 3), torch.uint8)}

    def forward(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Find the faces of one frame."""
        size_wh, views = inputs["SIZE"].double(), inputs["VIEWS"]
        table = summed_area(inputs["FRAME"])
        found = self.detector(render_views(table, size_wh, views))
        detections = merge_candidates(
            found["BOXES"], found["KEYPOINTS"], found["SCORES"], views.float(), inputs["VIEW_COUNT"], size_wh.float()
        )
        prior_px = inputs["PRIOR"] if self.tracking else None
        regions = choose_regions(detections, prior_px, self.max_faces)
        seen = self.mesh(crop_regions(table, size_wh, regions.roi))
        faces = collect_faces(seen["CROP_LANDMARKS"], seen["PRESENCE"][:, 0], regions, prior_px)
        if self.unwrap is not None:
            first = faces["LANDMARKS"][:1]
            texture, coverage = self.unwrap(inputs["FRAME"], inputs["SIZE"], first, DEFAULT_TEXTURE_SIZE_PX)
            faces |= {"TEXTURE": texture, "COVERAGE": coverage}
        return {**faces, "REGIONS": regions.wanted}


def collect_faces(
    crop_landmarks: Tensor, presence: Tensor, regions: TorchRegions, prior_px: Tensor | None
) -> dict[str, Tensor]:
    """Bring the landmarks into the picture, drop false alarms and doubles, smooth what goes on.

    The same as :func:`facegraph_server.faces.collect_faces`.

    Args:
        crop_landmarks: FP32 [N,468,3] px of the crop.
        presence: FP32 [N].
        regions: where the crops come from.
        prior_px: FP32 [P,468,3] or None.

    Returns:
        ``LANDMARKS``, ``BOX``, ``SCORE`` and ``COUNT``, see :class:`FrameFunction`.

    """
    weak = regions.detection < WEAK_DETECTION
    sure = torch.where(weak, presence >= WEAK_DETECTION_PRESENCE_THRESHOLD, presence >= PRESENCE_THRESHOLD)
    present = sure & regions.valid
    landmarks = _landmarks_in_picture(crop_landmarks, regions.roi)
    box = landmarks_box(landmarks)

    is_new = regions.prior_index < 0
    rank = torch.where(is_new, -(box[:, 2:] - box[:, :2]).prod(1), regions.prior_index.float())
    order = rank.sort(stable=True).indices
    order = order[(is_new.int() + 2 * (~present).int())[order].sort(stable=True).indices]
    landmarks, box, present, score, prior_index = (
        value[order] for value in (landmarks, box, present, presence, regions.prior_index)
    )

    row = torch.arange(len(box), device=box.device)
    doubles = (box_containment(box, box) >= DUPLICATE_CONTAINMENT) & (row[:, None] < row)
    kept = keep_greedily(doubles, present, len(box))
    if prior_px is not None:
        smooth = smooth_landmarks(landmarks, prior_px[prior_index.clamp(min=0)])
        landmarks = torch.where((prior_index >= 0)[:, None, None], smooth, landmarks)
        box = landmarks_box(landmarks)
    order = kept.int().sort(descending=True, stable=True).indices
    absent = ~kept[order]
    return {
        "LANDMARKS": landmarks[order].masked_fill(absent[:, None, None], 0),
        "BOX": box[order].masked_fill(absent[:, None], 0),
        "SCORE": score[order].masked_fill(absent, 0),
        "COUNT": kept.sum(dtype=torch.int32).reshape(1),
    }


def _landmarks_in_picture(crop_landmarks: Tensor, roi: Tensor) -> Tensor:
    """Map landmarks [N,468,3] in px of the crop into the picture, see ``face_crop``."""
    centred = crop_landmarks * (roi[:, 2] / MESH_SIZE_PX)[:, None, None]
    turned = rotate(centred[..., :2] - roi[:, None, 2:3] / 2, roi[:, 3]) + roi[:, None, :2]
    return torch.cat([turned, centred[..., 2:]], 2)


def frame_views(width_px: int, height_px: int, *, fine: bool = False, tracking: bool = False) -> list[View]:
    """Return the detector's views of a frame: the whole alone where faces are known from the frame before."""
    return [whole_view(width_px, height_px)] if tracking else choose_views(width_px, height_px, fine=fine)


def frame_inputs(
    frame_rgb: NDArray[np.uint8],
    views: list[View],
    bucket: FrameBucket,
    prior_px: NDArray[np.float32] | None = None,
) -> dict[str, NDArray[np.generic]]:
    """Return the inputs of a :class:`FrameFunction` for one frame.

    ``FRAME`` and, with ``prior_px``, ``PRIOR`` keep their own size: whoever owns the buffers puts them into their
    upper left corner.

    Args:
        frame_rgb: UINT8 [H,W,3].
        views: see :func:`frame_views`.
        bucket: one that holds the frame.
        prior_px: FP32 [n,468,3] landmarks of the frame before.

    Raises:
        InputError: more than 16 faces go on.

    """
    height, width = frame_rgb.shape[:2]
    padded = [*views, *[views[0]] * (bucket.views - len(views))]
    inputs: dict[str, NDArray[np.generic]] = {
        "VIEWS": np.array(padded, np.float64),
        "SIZE": np.array([width, height], np.int32),
        "VIEW_COUNT": np.array([len(views)], np.int32),
    }
    if prior_px is not None:
        alive = prior_px[can_be_faces(prior_px)]
        if len(alive) > MAX_BATCH:
            raise InputError(f"PRIOR holds {len(alive)} faces; at most {MAX_BATCH} can go on, send the largest")
        inputs["PRIOR"] = np.zeros((MAX_BATCH, VERTICES, 3), np.float32)
        inputs["PRIOR"][: len(alive)] = alive
    return inputs | {"FRAME": frame_rgb}
