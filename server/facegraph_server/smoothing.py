"""Steady landmarks over time from nothing but the frame before: the server keeps no state.

A One Euro filter (Casiez, Roussel, Vogel: "1 Euro Filter", CHI 2012) without lag on head motion: the motion from
the frame before is split into its similarity part (the head moves, turns, comes nearer), which 468 points determine
far more exactly than one point's noise, and each point's own rest. Both parts have their own cutoff, which rises with
speed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

FRAME_RATE_HZ = 30.0  # the filter sees no clock; other rates shift its cutoffs in proportion
HEAD_MIN_CUTOFF_HZ, HEAD_BETA = 3.0, 60.0
POINT_MIN_CUTOFF_HZ, POINT_BETA = 1.5, 15.0


def smooth_landmarks(raw_px: NDArray[np.float32], prior_px: NDArray[np.float32]) -> NDArray[np.float32]:
    """Smooth one face's landmarks.

    Args:
        raw_px: FP32 [V,3], this frame's landmarks.
        prior_px: FP32 [V,3], the landmarks returned for the frame before.

    Returns:
        FP32 [V,3].

    """
    width_px = max(float(np.ptp(raw_px[:, 0])), 1.0)
    carried = _similarity_fit(prior_px, raw_px)
    head_motion = carried - prior_px
    own_motion = raw_px - carried
    head_speed = np.linalg.norm(head_motion[:, :2], axis=1).mean() / width_px * FRAME_RATE_HZ
    own_speed = np.linalg.norm(own_motion[:, :2], axis=1, keepdims=True) / width_px * FRAME_RATE_HZ
    head_gain = _one_euro_gain(head_speed, HEAD_MIN_CUTOFF_HZ, HEAD_BETA)
    own_gain = _one_euro_gain(own_speed, POINT_MIN_CUTOFF_HZ, POINT_BETA)
    return (prior_px + head_gain * head_motion + own_gain * own_motion).astype(np.float32)


def _one_euro_gain(speed: NDArray[np.floating[Any]], min_cutoff_hz: float, beta: float) -> NDArray[np.floating[Any]]:
    """Return the low-pass gain in 0..1 for a speed in face widths per second."""
    rate = 2 * np.pi * (min_cutoff_hz + beta * speed) / FRAME_RATE_HZ
    return np.asarray(rate / (1 + rate))


def _similarity_fit(source: NDArray[np.float32], target: NDArray[np.float32]) -> NDArray[np.float32]:
    """Move ``source`` [V,3] by the similarity that brings it nearest to ``target`` (Umeyama, PAMI 1991)."""
    source_mean, target_mean = source.mean(0), target.mean(0)
    a, b = source - source_mean, target - target_mean
    u, s, vt = np.linalg.svd(b.T @ a)
    sign = np.array([1, 1, np.sign(np.linalg.det(u @ vt))])
    scale = (s * sign).sum() / max(float((a * a).sum()), 1e-9)
    return np.asarray(scale * a @ ((u * sign) @ vt).T + target_mean, np.float32)
