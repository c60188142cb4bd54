from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trimesh
from facegraph_client import Face, OutputError, canonical_face
from numpy.typing import NDArray
from PIL import Image

NOSE_TIP, CHIN, FOREHEAD = 1, 152, 10
PERSONS_LEFT_EYE, PERSONS_RIGHT_EYE = 263, 33
BUILD = Path(__file__).parents[2] / "build" / "gltf-validator"


def _save(face: Face, path: Path) -> Path:
    (face.save_glb if path.suffix == ".glb" else face.save_obj)(path)
    return path


def _load(path: Path) -> trimesh.Trimesh:
    loaded = trimesh.load(path, process=False)
    if isinstance(loaded, trimesh.Scene):
        (loaded,) = loaded.geometry.values()
    return loaded


def _texel(texture_rgb: NDArray[np.uint8], uv: NDArray[np.float64]) -> NDArray[np.uint8]:
    """The texel under a UV point with the origin at the bottom left, as trimesh gives it for both formats."""
    height, width = texture_rgb.shape[:2]
    return texture_rgb[int((1 - uv[1]) * height), int(uv[0] * width)]


def _texture(mesh: trimesh.Trimesh) -> NDArray[np.uint8]:
    material = mesh.visual.material
    image = getattr(material, "baseColorTexture", None) or material.image
    return np.asarray(image.convert("RGB"))


def _gltf(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    (length,) = struct.unpack_from("<I", content, 12)
    return json.loads(content[20 : 20 + length])


@pytest.mark.parametrize(
    "name", ["face.glb", "face.obj", "my face.obj", "Zoë Łódź 顔.obj", "Zoë Łódź 顔.glb", "a.b.obj"]
)
def test_file_holds_the_mesh_with_its_texture_upright(face: Face, tmp_path: Path, name: str) -> None:
    mesh = _load(_save(face, tmp_path / name))
    canonical = canonical_face()
    np.testing.assert_allclose(mesh.vertices, canonical.vertices_cm / 100, atol=1e-6)  # same count, same order, metres
    np.testing.assert_array_equal(mesh.faces, canonical.triangles)
    np.testing.assert_allclose(mesh.visual.uv, canonical.uv, atol=1e-6)
    assert mesh.visual.uv.min() >= 0
    assert mesh.visual.uv.max() <= 1
    np.testing.assert_array_equal(_texture(mesh), face.texture_rgb)
    for vertex in (NOSE_TIP, CHIN, FOREHEAD, PERSONS_LEFT_EYE):
        expected = _texel(face.texture_rgb, canonical.uv[vertex])
        np.testing.assert_array_equal(_texel(_texture(mesh), mesh.visual.uv[vertex]), expected)
    # The forehead lies above the chin in the texture: less green, which counts the rows.
    assert _texel(_texture(mesh), mesh.visual.uv[FOREHEAD])[1] < _texel(_texture(mesh), mesh.visual.uv[CHIN])[1]


@pytest.mark.parametrize("name", ["face.glb", "face.obj"])
def test_axes(face: Face, tmp_path: Path, name: str) -> None:
    vertices = _load(_save(face, tmp_path / name)).vertices
    assert vertices[:, 2].argmax() in (NOSE_TIP, 4)  # +z out of the face
    assert vertices[FOREHEAD, 1] > vertices[CHIN, 1]  # +y up
    assert vertices[PERSONS_LEFT_EYE, 0] > 0 > vertices[PERSONS_RIGHT_EYE, 0]  # +x to the person's left
    assert 0.1 < np.ptp(vertices[:, 1]) < 0.3  # metres


@pytest.mark.parametrize("name", ["face.glb", "face.obj"])
def test_normals_are_unit_vectors_out_of_the_face(face: Face, tmp_path: Path, name: str) -> None:
    mesh = _load(_save(face, tmp_path / name))
    assert "vertex_normals" in mesh._cache.cache or name.endswith("obj")
    np.testing.assert_allclose(np.linalg.norm(mesh.vertex_normals, axis=1), 1, atol=1e-5)
    assert mesh.vertex_normals[NOSE_TIP, 2] > 0.8


def test_glb_turns_v_over_once(face: Face, tmp_path: Path) -> None:
    path = _save(face, tmp_path / "face.glb")
    tree = _gltf(path)
    accessor = tree["accessors"][tree["meshes"][0]["primitives"][0]["attributes"]["TEXCOORD_0"]]
    view = tree["bufferViews"][accessor["bufferView"]]
    content = path.read_bytes()
    binary = content.index(b"BIN\0") + 4
    uv = np.frombuffer(content, "<f4", accessor["count"] * 2, binary + view["byteOffset"]).reshape(-1, 2)
    expected = canonical_face().uv * [1, -1] + [0, 1]  # glTF has the origin at the top left
    np.testing.assert_allclose(uv, expected, atol=1e-6)


def test_glb_material_and_provenance(face: Face, tmp_path: Path) -> None:
    tree = _gltf(_save(face, tmp_path / "face.glb"))
    (material,) = tree["materials"]
    assert material["pbrMetallicRoughness"] == {
        "baseColorFactor": [1.0, 1.0, 1.0, 1.0],
        "metallicFactor": 0.0,
        "roughnessFactor": 1.0,
        "baseColorTexture": {"index": 0},
    }
    assert [image["mimeType"] for image in tree["images"]] == ["image/png"]
    assert "uri" not in tree["images"][0]
    assert set(tree["meshes"][0]["primitives"][0]["attributes"]) == {"POSITION", "NORMAL", "TEXCOORD_0"}
    assert tree["asset"]["generator"].startswith("facegraph ")
    assert "Apache-2.0" in tree["asset"]["extras"]["topology"]


def test_obj_names_its_files_and_a_white_material(face: Face, tmp_path: Path) -> None:
    face.save_obj(tmp_path / "my face.obj")
    obj = (tmp_path / "my face.obj").read_text().splitlines()
    mtl = (tmp_path / "my face.mtl").read_text().splitlines()
    assert "mtllib my face.mtl" in obj
    assert obj.index("usemtl face") < next(i for i, line in enumerate(obj) if line.startswith("f "))
    assert "metres" in obj[0]
    assert mtl[0] == "newmtl face"
    assert "Kd 1 1 1" in mtl
    assert "map_Kd my face.png" in mtl
    with Image.open(tmp_path / "my face.png") as image:
        np.testing.assert_array_equal(np.asarray(image), face.texture_rgb)


def test_two_exports_into_one_folder_share_no_file(face: Face, tmp_path: Path) -> None:
    for name in ("one.obj", "two.obj", "one.glb", "two.glb"):
        _save(face, tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"{stem}.{suffix}" for stem in ("one", "two") for suffix in ("glb", "mtl", "obj", "png")
    ]


@pytest.mark.parametrize(
    ("existing", "name"),
    [("a.glb", "a.glb"), ("a.obj", "a.obj"), ("a.mtl", "a.obj"), ("a.png", "a.obj")],
)
def test_existing_files_stay_unless_told(face: Face, tmp_path: Path, existing: str, name: str) -> None:
    (tmp_path / existing).write_text("precious")
    with pytest.raises(OutputError, match="exists already"):
        _save(face, tmp_path / name)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {existing: "precious"}
    save = face.save_glb if name.endswith("glb") else face.save_obj
    save(tmp_path / name, overwrite=True)
    assert len(_load(tmp_path / name).vertices) == 468


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing/face.glb", "folder .*missing does not exist; create it first"),
        ("face.gltf", r"must end in \.glb"),
        ("face", r"must end in \.glb"),
        ("x" * 300 + ".glb", "name too long"),
    ],
    ids=["no folder", "other suffix", "no suffix", "long name"],
)
def test_what_cannot_be_written_says_why(face: Face, tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(OutputError, match=f"(?i){message}"):
        face.save_glb(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_half_way_leaves_nothing(face: Face, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "link", fail)
    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OutputError, match="No space left"):
        face.save_obj(tmp_path / "face.obj")
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_hard_links_will_do(face: Face, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", fail)
    face.save_obj(tmp_path / "face.obj")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["face.mtl", "face.obj", "face.png"]


@pytest.mark.slow
@pytest.mark.parametrize("texture_size_px", [64, 1024])
def test_khronos_validator_finds_nothing(tmp_path: Path, texture_size_px: int) -> None:
    from .conftest import make_face  # noqa: PLC0415

    if not shutil.which("npm"):
        pytest.skip("npm is not installed")
    BUILD.mkdir(parents=True, exist_ok=True)
    if not (BUILD / "node_modules" / "gltf-validator").exists():
        install = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(BUILD), "gltf-validator@2.0.0-dev.3.10"]
        installed = subprocess.run(install, capture_output=True, text=True, check=False, timeout=120)
        if installed.returncode:
            pytest.skip(f"npm cannot install gltf-validator: {installed.stderr[-200:]}")
    path = _save(make_face(texture_size_px), tmp_path / "face.glb")
    script = (
        "require('gltf-validator').validateBytes(new Uint8Array(require('fs').readFileSync(process.argv[1])))"
        ".then(report => console.log(JSON.stringify(report)))"
    )
    result = subprocess.run(
        ["node", "-e", script, str(path)], cwd=BUILD, capture_output=True, text=True, check=True, timeout=60
    )
    report = json.loads(result.stdout)
    assert report["issues"]["numErrors"] == 0, report["issues"]["messages"]
    assert report["issues"]["numWarnings"] == 0, report["issues"]["messages"]
    assert report["issues"]["numInfos"] == 0, report["issues"]["messages"]
    assert report["info"]["totalVertexCount"] == 468
    assert report["info"]["totalTriangleCount"] == 898


def test_a_file_name_that_is_no_text_is_written_as_it_is(face: Face, tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.obj")
    face.save_obj(tmp_path / name)
    assert b"mtllib caf\xe9.mtl\n" in (tmp_path / name).read_bytes()
    assert b"map_Kd caf\xe9.png\n" in (tmp_path / os.fsdecode(b"caf\xe9.mtl")).read_bytes()
