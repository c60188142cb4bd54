"""How alike two pictures are: PSNR and SSIM."""

from __future__ import annotations

import math
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

# Window and constants of Wang, Bovik, Sheikh and Simoncelli, "Image Quality Assessment: From Error Visibility to
# Structural Similarity", IEEE Transactions on Image Processing 13(4), 2004.
_WINDOW_PX = 11
_WINDOW_SIGMA_PX = 1.5
_K1, _K2 = 0.01, 0.03
_PEAK = 255.0


def psnr_db(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> float:
    """Return the peak signal-to-noise ratio of two UINT8 arrays of one shape, in dB; infinite where they are equal.

    Raises:
        ValueError: the shapes differ.

    """
    _check_shapes(a, b)
    error = float(np.mean((a.astype(np.float64) - b) ** 2)) if a.size else 0.0
    return 10 * math.log10(_PEAK**2 / error) if error else math.inf


def ssim(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> float:
    """Return the mean structural similarity of two UINT8 pictures [H,W] or [H,W,C], 1 where they are equal.

    After Wang et al. 2004 (see above): Gaussian window of 11 px and sigma 1.5 px, K1 = 0.01, K2 = 0.03, population
    covariance, the mean over all places where the whole window lies in the picture, then over the channels.

    Raises:
        ValueError: the shapes differ, or the pictures are smaller than the window.

    """
    _check_shapes(a, b)
    if min(a.shape[:2]) < _WINDOW_PX:
        raise ValueError(f"the pictures have the shape {a.shape}, smaller than the window of {_WINDOW_PX} px")
    if np.array_equal(a, b):
        return 1.0
    x, y = a.astype(np.float64), b.astype(np.float64)
    mean_x, mean_y = _blur(x), _blur(y)
    variance_x, variance_y = _blur(x * x) - mean_x**2, _blur(y * y) - mean_y**2
    covariance = _blur(x * y) - mean_x * mean_y
    c1, c2 = (_K1 * _PEAK) ** 2, (_K2 * _PEAK) ** 2
    similarity = ((2 * mean_x * mean_y + c1) * (2 * covariance + c2)) / (
        (mean_x**2 + mean_y**2 + c1) * (variance_x + variance_y + c2)
    )
    return float(similarity.mean())


def _check_shapes(a: NDArray[Any], b: NDArray[Any]) -> None:
    if a.shape != b.shape:
        raise ValueError(f"the pictures have different shapes: {a.shape} and {b.shape}")


def _blur(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weigh [H,W] or [H,W,C] with the window; return only the places where all of it lies inside, [H-10,W-10,...]."""
    reach = _WINDOW_PX // 2
    weights = np.exp(-0.5 * ((np.arange(_WINDOW_PX) - reach) / _WINDOW_SIGMA_PX) ** 2)
    weights /= weights.sum()
    blurred: NDArray[np.float64] = cv2.sepFilter2D(values, -1, weights, weights)
    return blurred[reach:-reach, reach:-reach]
