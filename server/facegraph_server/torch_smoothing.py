"""Steady landmarks over time for several faces at once: ``smoothing`` as a torch function of fixed shape.

Inside the CUDA graph. The library's singular value decomposition checks its result on the host, which a capture does
not allow; the rotation comes from Horn's quaternion instead, found by repeated squaring of a 4x4 matrix.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from facegraph_server.smoothing import (
    FRAME_RATE_HZ,
    HEAD_BETA,
    HEAD_MIN_CUTOFF_HZ,
    POINT_BETA,
    POINT_MIN_CUTOFF_HZ,
)

_SQUARINGS = 12


def smooth_landmarks(raw_px: Tensor, prior_px: Tensor) -> Tensor:
    """Smooth the landmarks of faces as :func:`facegraph_server.smoothing.smooth_landmarks` does.

    Args:
        raw_px: FP32 [N,V,3], this frame's landmarks.
        prior_px: FP32 [N,V,3], the landmarks returned for the same faces in the frame before.

    Returns:
        FP32 [N,V,3].

    """
    width_px = (raw_px[..., 0].amax(1) - raw_px[..., 0].amin(1)).clamp(min=1)[:, None, None]
    carried = _similarity_fit(prior_px, raw_px)
    head_motion, own_motion = carried - prior_px, raw_px - carried
    head_speed = _length(head_motion[..., :2]).mean(1, keepdim=True) / width_px * FRAME_RATE_HZ
    own_speed = _length(own_motion[..., :2]) / width_px * FRAME_RATE_HZ
    head_gain = _one_euro_gain(head_speed, HEAD_MIN_CUTOFF_HZ, HEAD_BETA)
    own_gain = _one_euro_gain(own_speed, POINT_MIN_CUTOFF_HZ, POINT_BETA)
    return prior_px + head_gain * head_motion + own_gain * own_motion


def _length(vectors: Tensor) -> Tensor:
    return vectors.square().sum(-1, keepdim=True).sqrt()


def _one_euro_gain(speed: Tensor, min_cutoff_hz: float, beta: float) -> Tensor:
    rate = 2 * math.pi * (min_cutoff_hz + beta * speed) / FRAME_RATE_HZ
    return rate / (1 + rate)


def _similarity_fit(source: Tensor, target: Tensor) -> Tensor:
    """Move ``source`` [N,V,3] by the similarity that brings it nearest to ``target``."""
    source_mean, target_mean = source.mean(1, keepdim=True), target.mean(1, keepdim=True)
    a, b = (source - source_mean).double(), (target - target_mean).double()
    covariance = b.transpose(1, 2) @ a  # [N,3,3]
    turn = _nearest_rotation(covariance)
    scale = (turn * covariance).sum((1, 2)) / a.square().sum((1, 2)).clamp(min=1e-9)
    return (scale[:, None, None] * (a @ turn.transpose(1, 2))).float() + target_mean


def _nearest_rotation(covariance: Tensor) -> Tensor:
    """Return the rotations R [N,3,3] with the largest trace of R^T M, for FP64 M [N,3,3].

    R is that of the unit quaternion that is the eigenvector of Horn's symmetric 4x4 matrix with the largest
    eigenvalue (Horn, "Closed-form solution of absolute orientation using unit quaternions", JOSA A 1987). Shifted so
    that no eigenvalue is negative and squared again and again, the matrix tends to that vector's outer product.
    """
    m = covariance.transpose(1, 2)  # Horn's sums go from source to target
    (xx, xy, xz), (yx, yy, yz), (zx, zy, zz) = (row.unbind(1) for row in m.unbind(1))
    rows = [
        [xx + yy + zz, yz - zy, zx - xz, xy - yx],
        [yz - zy, xx - yy - zz, xy + yx, zx + xz],
        [zx - xz, xy + yx, yy - xx - zz, yz + zy],
        [xy - yx, zx + xz, yz + zy, zz - xx - yy],
    ]
    symmetric = torch.stack([torch.stack(row, 1) for row in rows], 1)
    shift = symmetric.square().sum((1, 2)).sqrt().clamp(min=1e-12)
    power = symmetric / shift[:, None, None] + torch.eye(4, dtype=symmetric.dtype, device=symmetric.device)
    for _ in range(_SQUARINGS):
        power = power @ power
        power = power / power.diagonal(dim1=1, dim2=2).sum(1)[:, None, None]
    column = power.diagonal(dim1=1, dim2=2).argmax(1)
    quaternion = power.gather(2, column[:, None, None].expand(-1, 4, 1))[..., 0]
    w, x, y, z = (quaternion / _length(quaternion)).unbind(1)
    turn = [
        [w * w + x * x - y * y - z * z, 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), w * w - x * x + y * y - z * z, 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), w * w - x * x - y * y + z * z],
    ]
    return torch.stack([torch.stack(row, 1) for row in turn], 1)
