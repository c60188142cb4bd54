from __future__ import annotations

from functools import cache

import cv2
import numpy as np
import pytest
from facegraph_client import InputError, canonical_face, rasterize
from facegraph_server.geometry import fit_head, project_head
from facegraph_server.texel_map import layout_mask, layout_points, texel_map
from facegraph_server.texture import unwrap_texture
from facegraph_server.texture_fill import push_pull
from scipy.spatial.transform import Rotation

MAGENTA = (255, 0, 255)
WELL_SEEN = 128


@cache
def skin(size=1024, left_gain=1.0):
    """A face-like texture: skin, freckles, dark brows, red mouth; symmetric but for the gain on the person's left."""
    v, u = np.mgrid[0:size, 0:size] / size
    half = np.abs(u - 0.5)
    wave = 18 * np.sin(60 * half) * np.cos(47 * v) + 10 * np.sin(200 * half + 90 * v)
    rgb = np.stack([190 + wave, 140 + wave, 110 + wave], -1)
    rgb[(np.abs(v - 0.3) < 0.025) & (half > 0.06) & (half < 0.2)] = (60, 45, 40)
    rgb[(np.abs(v - 0.69) < 0.03) & (half < 0.1)] = (170, 70, 80)
    gain = 1 + (left_gain - 1) / (1 + np.exp(-(u - 0.5) * 12))
    texture = np.clip(rgb * gain[..., None], 0, 255).astype(np.uint8)
    texture.setflags(write=False)
    return texture


def photograph(texture, yaw_deg, pitch_deg=0, image_wh=(640, 640), scale=28.0, centre_xy=None, background=MAGENTA):
    """Render the canonical face; return the photo and the landmarks."""
    rotated = Rotation.from_euler("xy", (pitch_deg, yaw_deg), degrees=True).apply(canonical_face().vertices_cm)
    centre = (image_wh[0] / 2, image_wh[1] / 2) if centre_xy is None else centre_xy
    landmarks_px = (rotated * [scale, -scale, -scale] + [*centre, 0]).astype(np.float32)
    photo, on_face = render(texture, landmarks_px, image_wh)
    photo[~on_face] = background
    return photo, landmarks_px


def render(texture, landmarks_px, image_wh):
    face = canonical_face()
    raster = rasterize(landmarks_px, face.triangles, image_wh)
    points = layout_points(len(texture))[face.triangles[raster.triangle]]
    x, y = np.moveaxis((points * raster.barycentric[..., None]).sum(2), -1, 0).astype(np.float32)
    return cv2.remap(texture, x, y, cv2.INTER_LINEAR), raster.triangle >= 0


def psnr(a, b):
    return 10 * np.log10(255**2 / np.mean((a.astype(np.float64) - b) ** 2))


def magenta_texels(texture):
    red, green, blue = (texture[..., k].astype(int) for k in range(3))
    return ((red - green > 60) & (blue - green > 60)).sum()


@pytest.mark.parametrize("size_px", [256, 1000, 1024])
@pytest.mark.parametrize(("yaw", "pitch"), [(0, 0), (30, 10), (-45, 0)], ids=["front", "turned", "half_profile"])
def test_covered_texels_are_the_true_ones(size_px, yaw, pitch):
    truth = skin()
    texture, coverage = unwrap_texture(*photograph(truth, yaw, pitch), size_px)
    assert (texture.shape, texture.dtype) == ((size_px, size_px, 3), np.uint8)
    assert (coverage.shape, coverage.dtype) == ((size_px, size_px), np.uint8)
    truth = cv2.resize(truth, (size_px, size_px), interpolation=cv2.INTER_AREA)
    seen = coverage >= WELL_SEEN
    assert seen.sum() > 0.4 * (layout_mask(size_px) > 0).sum()
    assert psnr(texture[seen], truth[seen]) > 33


@pytest.mark.parametrize("yaw", [0, 25, 45, -60])
def test_the_texture_rendered_back_is_the_photo(yaw):
    photo, landmarks_px = photograph(skin(), yaw)
    texture, coverage = unwrap_texture(photo, landmarks_px, 1024)
    fitted_px = project_head(fit_head(landmarks_px, (640, 640)), (640, 640))
    again, on_face = render(texture, fitted_px, (640, 640))
    covered = on_face & (render(coverage, fitted_px, (640, 640))[0] >= WELL_SEEN)
    assert covered.sum() > 0.6 * on_face.sum()
    assert psnr(again[covered], photo[covered]) > 38


@pytest.mark.parametrize("yaw", [45, -45, 70])
def test_the_hidden_cheek_is_the_mirrored_one_and_shows_no_background(yaw):
    truth = skin()
    texture, coverage = unwrap_texture(*photograph(truth, yaw), 1024)
    layout = layout_mask(1024) > 0
    u = (np.arange(1024) + 0.5) / 1024
    hidden_half, seen_half = ((u > 0.75), (u < 0.25)) if yaw > 0 else ((u < 0.25), (u > 0.75))
    assert coverage[:, hidden_half].max() == 0
    assert np.median(coverage[layout & seen_half]) > 200
    assert magenta_texels(texture) == 0
    mirrored = layout & hidden_half & (coverage[:, ::-1] >= WELL_SEEN)
    assert mirrored.sum() > 30_000
    assert psnr(texture[mirrored], truth[mirrored]) > 28


def test_the_mirrored_side_takes_the_light_of_the_side_it_fills():
    truth = skin(left_gain=0.5)
    texture, coverage = unwrap_texture(*photograph(truth, 30), 1024)
    u = np.broadcast_to((np.arange(1024) + 0.5) / 1024, (1024, 1024))
    filled = (layout_mask(1024) > 0) & (coverage == 0) & (u > 0.65) & (u < 0.9) & (coverage[:, ::-1] >= WELL_SEEN)
    assert filled.sum() > 10_000
    copied = texture[:, ::-1][filled].mean()  # what an unmatched mirror image would put there
    assert copied / truth[filled].mean() > 1.5
    assert texture[filled].mean() / truth[filled].mean() == pytest.approx(
        1, abs=0.3
    )  # the light further round is not known


def test_no_seam_shows_where_the_fill_begins():
    rgb = np.full((1024, 1024, 3), (190, 140, 110), np.uint8)
    shade = np.linspace(1.1, 0.6, 1024)[None, :, None]
    texture, coverage = unwrap_texture(*photograph((rgb * shade).astype(np.uint8), 40), 1024)
    skin_only = cv2.erode(layout_mask(1024), np.ones((9, 9))) > 0
    across = np.abs(np.diff(cv2.blur(texture, (5, 5)).astype(int), axis=1)).max(2)
    begins = cv2.dilate((coverage > 0).astype(np.uint8), np.ones((33, 33))) & (coverage == 0)
    at_seam = (begins > 0)[:, 1:] & skin_only[:, 1:] & skin_only[:, :-1]
    assert at_seam.sum() > 5_000
    assert across[at_seam].max() <= 4


def test_a_face_half_outside_the_picture_is_filled():
    texture, coverage = unwrap_texture(*photograph(skin(), 0, image_wh=(400, 640), centre_xy=(400, 320)), 512)
    left_side = np.broadcast_to(np.arange(512) > 270, (512, 512))  # of the person: beyond the right border
    assert coverage[left_side].max() == 0
    assert np.median(coverage[(layout_mask(512) > 0) & ~left_side]) > 100
    assert magenta_texels(texture) == 0
    mirrored = left_side & (coverage[:, ::-1] >= WELL_SEEN)
    assert psnr(texture[mirrored], cv2.resize(skin(), (512, 512), interpolation=cv2.INTER_AREA)[mirrored]) > 28


@pytest.mark.parametrize("centre_xy", [(-2000, 320), (3000, 3000)], ids=["left", "below_right"])
def test_a_face_wholly_outside_the_picture_has_no_coverage(centre_xy):
    texture, coverage = unwrap_texture(*photograph(skin(), 10, centre_xy=centre_xy, background=(90, 80, 70)), 256)
    assert coverage.max() == 0
    np.testing.assert_allclose(texture, np.broadcast_to((90, 80, 70), texture.shape), atol=1)


def test_landmarks_beyond_the_silhouette_paint_no_background_on_the_face():
    photo, landmarks_px = photograph(skin(), 20)
    wider = landmarks_px.copy()
    wider[:, 0] += 0.03 * (wider[:, 0] - wider[:, 0].mean())
    texture, _ = unwrap_texture(photo, wider, 512)
    assert magenta_texels(texture) < 0.002 * 512 * 512


def test_an_open_mouth_is_painted_but_not_called_covered():
    photo, landmarks_px = photograph(skin(), 0)
    opened = landmarks_px.copy()
    inner_lower_lip = [95, 88, 178, 87, 14, 317, 402, 318, 324]
    opened[inner_lower_lip, 1] += 60
    _, closed_coverage = unwrap_texture(photo, landmarks_px, 1024)
    texture, coverage = unwrap_texture(photo, opened, 1024)
    x, y = layout_points(1024)[[13, 14]].mean(0).round().astype(int)
    assert coverage[y, x] == 0
    assert closed_coverage[y, x] >= coverage[y, x]
    assert magenta_texels(texture) == 0


def test_a_large_photo_is_averaged_not_sampled_into_a_small_texture():
    checker = np.kron(np.indices((256, 256)).sum(0) % 2, np.ones((4, 4))).astype(np.uint8)  # squares of 4 texels
    truth = np.repeat((checker * 200)[..., None], 3, 2)
    photo, landmarks_px = photograph(truth, 0, image_wh=(2000, 2000), scale=100.0)
    texture, coverage = unwrap_texture(photo, landmarks_px, 64)  # a texel holds 16 squares
    cheek = coverage > 200
    assert cheek.sum() > 500
    assert texture[cheek].std() < 25  # sampling would give 100


def test_the_texture_is_upright_and_not_mirrored():
    truth = np.zeros((1024, 1024, 3), np.uint8)
    truth[:512, :, 0] = 200  # red forehead
    truth[:, 512:, 1] = 200  # the person's left is green
    texture, coverage = unwrap_texture(*photograph(truth, 0, background=(0, 0, 0)), 256)
    face = canonical_face()
    for vertex, red, green in ((105, 200, 0), (334, 200, 200), (205, 0, 0), (425, 0, 200)):
        x, y = layout_points(256)[vertex].round().astype(int)
        assert face.uv[vertex][1] == pytest.approx(1 - (y + 0.5) / 256, abs=0.01)
        assert coverage[y, x] > WELL_SEEN
        np.testing.assert_allclose(texture[y, x], (red, green, 0), atol=12)


def test_padding_continues_the_rim():
    texture, _ = unwrap_texture(*photograph(np.full((1024, 1024, 3), (190, 140, 110), np.uint8), 20), 256)
    np.testing.assert_allclose(texture, np.broadcast_to((190, 140, 110), texture.shape), atol=2)


def test_the_result_depends_on_nothing_before():
    scene = photograph(skin(), 35)
    first = unwrap_texture(*scene, 256)
    unwrap_texture(*photograph(skin(left_gain=0.4), -50), 256)
    for before, after in zip(first, unwrap_texture(*scene, 256), strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("size_px", [64, 65, 257, 600])
def test_any_size_in_range(size_px):
    texture, coverage = unwrap_texture(*photograph(skin(), 20), size_px)
    assert texture.shape == (size_px, size_px, 3)
    assert coverage[layout_mask(size_px) == 0].max() == 0
    assert magenta_texels(texture) == 0


@pytest.mark.parametrize(
    ("change", "size_px", "message"),
    [
        (lambda p: p, 63, "64 to 4096"),
        (lambda p: p, 4097, "64 to 4096"),
        (lambda p: p * np.nan, 256, "NaN"),
        (lambda p: p * 0, 256, "less than one pixel"),
        (lambda p: p * [0, 1, 1], 256, "less than one pixel"),
        (lambda p: p[:100], 256, r"\[100, 3\]"),
    ],
    ids=["too_small", "too_large", "nan", "a_point", "edge_on", "too_few"],
)
def test_what_cannot_be_unwrapped_is_refused(change, size_px, message):
    photo, landmarks_px = photograph(skin(64), 0)
    with pytest.raises(InputError, match=message):
        unwrap_texture(photo, change(landmarks_px), size_px)


def test_the_texel_map_gives_a_vertex_its_own_attributes():
    grid = texel_map(512)
    uv = canonical_face().uv
    cells = grid.interpolate(uv)
    v, u = np.mgrid[0 : grid.cells, 0 : grid.cells] + 0.5
    inside = cv2.resize(layout_mask(512), (grid.cells, grid.cells), interpolation=cv2.INTER_NEAREST) > 0
    np.testing.assert_allclose(cells[inside][:, 0], (u / grid.cells)[inside], atol=1e-5)
    np.testing.assert_allclose(cells[inside][:, 1], 1 - (v / grid.cells)[inside], atol=1e-5)


def test_push_pull_keeps_what_is_known_and_stays_within_it():
    rng = np.random.default_rng(1)
    values = rng.uniform(10, 200, (37, 53, 3)).astype(np.float32)
    weights = (rng.uniform(size=(37, 53)) < 0.1).astype(np.float32)
    filled = push_pull(values * weights[..., None], weights)
    np.testing.assert_allclose(filled[weights == 1], values[weights == 1], rtol=1e-5)
    known = values[weights == 1]
    assert (filled >= known.min(0) - 0.1).all()
    assert (filled <= known.max(0) + 0.1).all()
