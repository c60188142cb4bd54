from __future__ import annotations

import numpy as np
import pytest
from facegraph_client import canonical_face
from facegraph_server.smoothing import smooth_landmarks
from numpy.typing import NDArray

PX_PER_CM = 12.0


def face() -> NDArray[np.float32]:
    return (canonical_face().vertices_cm * (PX_PER_CM, -PX_PER_CM, -PX_PER_CM) + (300, 200, 0)).astype(np.float32)


def run(truth: list[NDArray[np.float32]], noise_px: float, seed: int = 0) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    shown = [truth[0]]
    for position in truth[1:]:
        raw = position + rng.normal(0, noise_px, position.shape).astype(np.float32)
        shown.append(smooth_landmarks(raw, shown[-1]))
    return np.stack(shown)


def test_a_still_face_jitters_less_than_0_4_of_its_noise() -> None:
    shown = run([face()] * 60, noise_px=0.5)
    jitter = np.diff(shown[20:], axis=0).std()
    assert jitter < 0.4 * 0.5 * np.sqrt(2)
    np.testing.assert_allclose(shown[20:].mean(0), face(), atol=0.35)


def test_a_moving_head_is_followed_without_lag() -> None:
    step = np.array([6.0, 2.0, 0.0], np.float32)  # about one face width a second
    truth = [face() + i * step for i in range(30)]
    lag = np.abs(run(truth, noise_px=0.0) - np.stack(truth))[10:].max()
    assert lag < 0.25 * np.linalg.norm(step)


def test_a_quick_blink_gets_through() -> None:
    closed = face()
    closed[159, 1] += 8  # upper lid of the right eye
    shown = run([face(), closed, closed], noise_px=0.0)
    assert shown[1, 159, 1] - face()[159, 1] > 0.7 * 8


@pytest.mark.parametrize("prior", ["same", "collapsed"])
def test_the_result_is_finite(prior: str) -> None:
    before = face() if prior == "same" else np.zeros_like(face())
    assert np.isfinite(smooth_landmarks(face(), before)).all()
