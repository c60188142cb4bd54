"""The files that other programs open: GLB, and OBJ with MTL and PNG.

Both hold the head-frame mesh in metres (+x to the person's left, +y up, +z out of the face), which is glTF's own frame:
a viewer shows the face upright and from the front. OBJ has no unit of its own; metres make both files of one face
the same size in programs that take one unit for one metre.
"""

from __future__ import annotations

import io
import os
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from facegraph_client._canonical import canonical_face
from facegraph_client._errors import OutputError
from facegraph_client._files import write_files
from facegraph_client._geometry import vertex_normals

if TYPE_CHECKING:
    from facegraph_client._results import Face

_METRES_PER_CM = 0.01
_MATERIAL = "face"
_PNG_LEVEL = 4  # zlib; 6, the default, takes twice as long for 2 % fewer bytes


def save_glb(face: Face, path: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Write :func:`glb_bytes` to a file; see :meth:`Face.save_glb`."""
    write_files({_with_suffix(path, ".glb"): glb_bytes(face)}, overwrite=overwrite)


def save_obj(face: Face, path: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Write the OBJ, MTL and PNG files; see :meth:`Face.save_obj`."""
    obj = _with_suffix(path, ".obj")
    mtl, png = (obj.with_name(obj.stem + suffix) for suffix in (".mtl", ".png"))
    write_files(
        {
            png: png_bytes(face.texture_rgb),
            # A file name need not be text: its bytes go out as they came in.
            mtl: _mtl_text(png.name).encode(errors="surrogateescape"),
            obj: _obj_text(face.vertices_cm, mtl.name).encode(errors="surrogateescape"),
        },
        overwrite=overwrite,
    )


def glb_bytes(face: Face) -> bytes:
    """Return the face as binary glTF 2.0: 468 vertices in the canonical order, normals, UV, PNG texture."""
    import trimesh  # noqa: PLC0415  (half a second)
    from trimesh.exchange.gltf import export_glb  # noqa: PLC0415
    from trimesh.visual.material import PBRMaterial  # noqa: PLC0415

    canonical = canonical_face()
    material = PBRMaterial(  # type: ignore[no-untyped-call]
        name=_MATERIAL,
        baseColorTexture=Image.fromarray(np.ascontiguousarray(face.texture_rgb)),  # embedded as PNG
        baseColorFactor=[255, 255, 255, 255],
        metallicFactor=0.0,
        roughnessFactor=1.0,
    )
    # The exporter turns v over, once.
    visual = trimesh.visual.TextureVisuals(uv=canonical.uv, material=material)  # type: ignore[no-untyped-call]
    mesh = trimesh.Trimesh(
        vertices=face.vertices_cm.astype(np.float64) * _METRES_PER_CM,
        faces=canonical.triangles,
        vertex_normals=vertex_normals(face.vertices_cm, canonical.triangles),
        visual=visual,
        process=False,  # would merge and reorder vertices
    )
    scene = trimesh.Scene()
    scene.add_geometry(mesh, node_name="face", geom_name="face")
    content = export_glb(scene, include_normals=True, tree_postprocessor=_sign_asset)  # type: ignore[no-untyped-call]
    return bytes(content)


def png_bytes(image_rgb: NDArray[np.uint8]) -> bytes:
    """Encode UINT8 [H,W,3] as PNG."""
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image_rgb)).save(buffer, "PNG", compress_level=_PNG_LEVEL)
    return buffer.getvalue()


def _sign_asset(tree: dict[str, Any]) -> None:
    tree["asset"]["generator"] = f"facegraph {version('facegraph')}"
    tree["asset"]["extras"] = {
        "topology": "468-vertex canonical face of MediaPipe (Google, Apache-2.0)",
        "axes": "+x to the person's left, +y up, +z out of the face",
    }


def _mtl_text(png_name: str) -> str:
    return (
        f"newmtl {_MATERIAL}\n"
        "Ka 1 1 1\nKd 1 1 1\n"  # importers multiply the texture by Kd, so anything but white darkens it
        "Ks 0 0 0\nd 1\nillum 1\n"
        f"map_Kd {png_name}\n"
    )


def _obj_text(vertices_cm: NDArray[np.float32], mtl_name: str) -> str:
    canonical = canonical_face()
    normals = vertex_normals(vertices_cm, canonical.triangles)
    lines = [
        f"# facegraph {version('facegraph')}: units are metres; +x to the person's left, +y up, +z out of the face",
        f"mtllib {mtl_name}",
        "o face",
        *_rows("v", vertices_cm.astype(np.float64) * _METRES_PER_CM),
        *_rows("vt", canonical.uv),
        *_rows("vn", normals),
        f"usemtl {_MATERIAL}",
        "s 1",
        *("f " + " ".join(f"{i}/{i}/{i}" for i in corners) for corners in (canonical.triangles + 1).tolist()),
    ]
    return "\n".join(lines) + "\n"


def _rows(keyword: str, array: NDArray[np.floating[Any]]) -> list[str]:
    return [f"{keyword} " + " ".join(f"{x:.6f}" for x in row) for row in array.tolist()]


def _with_suffix(path: str | os.PathLike[str], suffix: str) -> Path:
    path = Path(path)
    if path.suffix.lower() != suffix:
        raise OutputError(f"{path} must end in {suffix}")
    return path
