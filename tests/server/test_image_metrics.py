from __future__ import annotations

import math

import numpy as np
import pytest
from facegraph_server.image_metrics import psnr_db, ssim
from numpy.typing import NDArray
from skimage.metrics import peak_signal_noise_ratio, structural_similarity


def noisy(image: NDArray[np.uint8], sigma: float) -> NDArray[np.uint8]:
    noise = np.random.default_rng(1).normal(0, sigma, image.shape)
    return (image + noise).clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize("sigma", [0.4, 3, 25])
@pytest.mark.parametrize("channels", [slice(None), 0], ids=["colour", "grey"])
def test_agrees_with_skimage(astronaut_rgb: NDArray[np.uint8], sigma: float, channels: slice | int) -> None:
    a = astronaut_rgb[:200, 100:260, channels]
    b = noisy(a, sigma)
    expected = structural_similarity(
        a, b, data_range=255, gaussian_weights=True, sigma=1.5, use_sample_covariance=False,
        channel_axis=2 if a.ndim == 3 else None,
    )  # fmt: skip
    assert ssim(a, b) == pytest.approx(expected, abs=1e-9)
    assert psnr_db(a, b) == pytest.approx(peak_signal_noise_ratio(a, b, data_range=255), abs=1e-9)


def test_equal_pictures(astronaut_rgb: NDArray[np.uint8]) -> None:
    assert ssim(astronaut_rgb, astronaut_rgb) == 1.0
    assert psnr_db(astronaut_rgb, astronaut_rgb) == math.inf


@pytest.mark.parametrize("measure", [ssim, psnr_db])
def test_other_shapes_are_refused(measure: object) -> None:
    with pytest.raises(ValueError, match=r"\(20, 20\) and \(20, 21\)"):
        measure(np.zeros((20, 20), np.uint8), np.zeros((20, 21), np.uint8))  # type: ignore[operator]


def test_a_picture_smaller_than_the_window_is_refused() -> None:
    with pytest.raises(ValueError, match="smaller than the window"):
        ssim(np.zeros((10, 40), np.uint8), np.zeros((10, 40), np.uint8))
