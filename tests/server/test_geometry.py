from __future__ import annotations

import numpy as np
import pytest
from facegraph_client import InputError, canonical_face
from facegraph_server.geometry import fit_head, project_head
from scipy.spatial.transform import Rotation

IMAGE_WH = (1200, 900)
SCALE_PX_PER_CM = 21.5
POSES = {
    "frontal": (0, 0, 0),
    "yaw": (0, 45, 0),
    "profile": (0, -85, 0),
    "looking_up": (35, 0, 0),
    "sideways_in_the_picture": (0, 0, 90),
    "all": (20, -30, 60),
}


def landmarks_at(angles_deg, vertices_cm=None, scale=SCALE_PX_PER_CM, at_px=(400.0, 250.0, 33.0)):
    vertices_cm = canonical_face().vertices_cm if vertices_cm is None else vertices_cm
    rotation = Rotation.from_euler("xyz", angles_deg, degrees=True)
    return rotation.apply(vertices_cm) * [scale, -scale, -scale] + at_px, rotation.as_matrix()


@pytest.mark.parametrize("angles_deg", POSES.values(), ids=POSES.keys())
def test_a_known_pose_is_recovered(angles_deg):
    landmarks_px, rotation = landmarks_at(angles_deg)
    head = fit_head(landmarks_px, IMAGE_WH)
    np.testing.assert_allclose(head.pose[:3, :3], rotation, atol=1e-5)
    np.testing.assert_allclose(head.vertices_cm, canonical_face().vertices_cm, atol=1e-4)
    assert head.scale_px_per_cm == pytest.approx(SCALE_PX_PER_CM, rel=1e-6)
    assert head.z_origin_px == pytest.approx(33.0, abs=1e-3)
    focal_px = 450 / np.tan(np.radians(31.5))
    translation_cm = [(400 - 599.5) / SCALE_PX_PER_CM, -(250 - 449.5) / SCALE_PX_PER_CM, -focal_px / SCALE_PX_PER_CM]
    np.testing.assert_allclose(head.pose[:3, 3], translation_cm, rtol=1e-5)
    np.testing.assert_array_equal(head.pose[3], [0, 0, 0, 1])
    assert (head.vertices_cm.dtype, head.pose.dtype) == (np.float32, np.float32)


@pytest.mark.parametrize("image_wh", [(640, 480), (6000, 4000)], ids=["small", "large"])
@pytest.mark.parametrize("angles_deg", POSES.values(), ids=POSES.keys())
def test_vertices_pose_and_scale_give_the_landmarks_back(angles_deg, image_wh):
    shape_cm = canonical_face().vertices_cm + np.random.default_rng(0).normal(0, 0.5, (468, 3))
    scale = image_wh[1] / 25
    landmarks_px, _ = landmarks_at(angles_deg, shape_cm, scale, (image_wh[0] * 0.7, image_wh[1] * 0.4, -8.0))
    head = fit_head(landmarks_px, image_wh)
    np.testing.assert_allclose(project_head(head, image_wh), landmarks_px, atol=1e-3)
    assert np.linalg.det(head.pose[:3, :3].astype(np.float64)) == pytest.approx(1, abs=1e-5)
    assert image_wh[1] / 2 / np.tan(np.radians(31.5)) / -head.pose[2, 3] == pytest.approx(
        head.scale_px_per_cm, rel=1e-5
    )


def test_the_head_frame_has_the_left_eye_at_plus_x_the_nose_at_plus_z_and_the_forehead_up():
    head = fit_head(landmarks_at((10, 20, 5))[0], IMAGE_WH)
    nose_tip, left_eye, right_eye, forehead, chin = head.vertices_cm[[1, 263, 33, 10, 152]]
    assert left_eye[0] > 4
    assert right_eye[0] < -4
    assert forehead[1] > 8
    assert chin[1] < -9
    assert nose_tip[2] == pytest.approx(7.4756, abs=1e-3)


def test_an_open_mouth_does_not_move_the_head():
    shape_cm = canonical_face().vertices_cm.copy()
    lower_lip = [0, 17, 14, 87, 317, 84, 314]
    shape_cm[lower_lip, 1] -= 2.5
    head = fit_head(landmarks_at((0, 15, 0), shape_cm)[0], IMAGE_WH)
    np.testing.assert_allclose(head.vertices_cm, shape_cm, atol=1e-4)


def test_irises_are_ignored():
    landmarks_px, _ = landmarks_at((0, 10, 0))
    with_irises = np.vstack([landmarks_px, np.full((10, 3), 777.0)])
    np.testing.assert_array_equal(fit_head(with_irises, IMAGE_WH).pose, fit_head(landmarks_px, IMAGE_WH).pose)


def test_landmarks_without_depth_are_fitted_without_a_reflection():
    head = fit_head(landmarks_at((0, 0, 0))[0] * [1, 1, 0], IMAGE_WH)
    assert np.linalg.det(head.pose[:3, :3]) == pytest.approx(1, abs=1e-5)
    assert head.pose[2, 2] > 0.97  # seen from the front, give or take the tilt that no depth leaves open


BAD = {
    "zeros": (lambda p: p * 0, "point or a line"),
    "one_point_far_away": (lambda p: p * 0 + 5000, "point or a line"),
    "a_line": (lambda p: p[:, :1] * [1, 2, 0.5], "point or a line"),
    "mirrored": (lambda p: p * [-1, 1, 1], "mirrored"),
    "depth_reversed": (lambda p: p * [1, 1, -1], "mirrored"),
    "nan": (lambda p: np.where(np.arange(468)[:, None] == 3, np.nan, p), "NaN"),
    "infinite": (lambda p: np.where(np.arange(468)[:, None] == 3, np.inf, p), "NaN or infinity"),
    "too_few": (lambda p: p[:400], r"\[400, 3\]"),
    "two_dimensional": (lambda p: p[:, :2], r"\[468, 2\]"),
    "a_batch": (lambda p: p[None], r"\[1, 468, 3\]"),
}


@pytest.mark.parametrize(("spoil", "message"), BAD.values(), ids=BAD.keys())
def test_landmarks_that_are_no_face_are_refused(spoil, message):
    with pytest.raises(InputError, match=message):
        fit_head(spoil(landmarks_at((0, 10, 0))[0]), IMAGE_WH)
