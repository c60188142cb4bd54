"""What a call returns: typed, frozen, with read-only arrays."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from facegraph_client._errors import InputError
from facegraph_client._geometry import similarity_scale

VERTICES = 468
"""Vertices of the canonical face. A mesh with irises has ten more landmarks, after these."""

_LANDMARK_DECIMALS = 3  # of a pixel, in JSON: a hundredth of what the network resolves
_POSE_DECIMALS = 6


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FaceLandmarks:
    """One face's landmarks in a photo.

    Two results are equal only if they are the same object (arrays have no single truth value), so results may be kept
    in sets and dictionaries. The arrays are read-only; copy one to change it.

    Attributes:
        landmarks_px: FP32 [V,3], V = 468: x right and y down in pixels of the upright photo (EXIF orientation applied);
            z in the scale of x, smaller is nearer.
        box_xyxy: FP32 [4], the face's box in pixels: left, top, right, bottom.
        score: the detector's confidence that this is a face, 0..1.

    Raises:
        InputError: an array has the wrong shape.

    """

    landmarks_px: NDArray[np.float32]
    box_xyxy: NDArray[np.float32]
    score: float

    def __post_init__(self) -> None:
        self._freeze("landmarks_px", np.float32, (None, 3))
        self._freeze("box_xyxy", np.float32, (4,))
        object.__setattr__(self, "score", float(self.score))

    def __repr__(self) -> str:
        left, top, right, bottom = _rounded(self.box_xyxy, 1)
        return (
            f"{type(self).__name__}(score={self.score:.3f}, box_xyxy=({left}, {top}, {right}, {bottom}),"
            f" {len(self.landmarks_px)} landmarks)"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers and lists, ready for ``json.dumps``."""
        return {
            "score": round(self.score, 6),
            "box_xyxy": _rounded(self.box_xyxy, _LANDMARK_DECIMALS),
            "landmarks_px": _rounded(self.landmarks_px, _LANDMARK_DECIMALS),
        }

    def _freeze(self, name: str, dtype: DTypeLike, shape: tuple[int | None, ...]) -> None:
        """Replace a field by a read-only view with the given dtype; a size of None takes any length."""
        array = np.asarray(getattr(self, name), dtype).view()
        fits = array.ndim == len(shape) and all(
            want in (None, got) for want, got in zip(shape, array.shape, strict=True)
        )
        if not fits:
            wanted = ",".join("*" if size is None else str(size) for size in shape)
            raise InputError(f"{name} must have the shape [{wanted}], not {list(array.shape)}")
        array.setflags(write=False)
        object.__setattr__(self, name, array)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Face(FaceLandmarks):
    """One face as a textured 3D mesh. Its triangles and UV layout are those of :func:`canonical_face`.

    Attributes:
        vertices_cm: FP32 [468,3] in centimetres in the head's own frame, as if the person looked straight at you:
            +x to the person's left, +y up, +z out of the face.
        pose: FP32 [4,4], rigid transform from the head frame to the camera, in centimetres, for column vectors: an
            OpenGL camera, +x right, +y up, looking along -z. The rotation is that of a weak-perspective fit. The
            distance is a guess, as one photo does not tell it: it holds for a vertical field of view of 63 degrees,
            MediaPipe's assumption.
        texture_rgb: UINT8 [T,T,3]. Row 0 is the top, v = 1 in the OBJ convention of :func:`canonical_face`.
        coverage: UINT8 [T,T], how well the photo shows each texel: 0 not at all (filled in), 255 seen head-on.

    """

    vertices_cm: NDArray[np.float32]
    pose: NDArray[np.float32]
    texture_rgb: NDArray[np.uint8]
    coverage: NDArray[np.uint8]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._freeze("vertices_cm", np.float32, (VERTICES, 3))
        self._freeze("pose", np.float32, (4, 4))
        self._freeze("texture_rgb", np.uint8, (None, None, 3))
        self._freeze("coverage", np.uint8, self.texture_rgb.shape[:2])

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, texture {self.texture_size_px} px)"

    @property
    def texture_size_px(self) -> int:
        """Side of the square texture."""
        return self.texture_rgb.shape[0]

    @property
    def scale_px_per_cm(self) -> float:
        """How many pixels of the photo one centimetre of the head takes, at the head's distance.

        The landmarks are ``scale * R @ vertex + t`` with y and z turned over, R being the pose's rotation.
        """
        return similarity_scale(self.vertices_cm, self.landmarks_px[:VERTICES])

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers and lists, ready for ``json.dumps``; mesh and texture are left to the 3D files."""
        return {
            **super().to_dict(),
            "pose": _rounded(self.pose, _POSE_DECIMALS),
            "scale_px_per_cm": round(self.scale_px_per_cm, _POSE_DECIMALS),
        }

    def save_glb(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write one ``.glb`` file (glTF 2.0) with mesh, normals and texture, in metres, in the head frame.

        Args:
            path: where to write; must end in ``.glb``.
            overwrite: replace a file that exists.

        Raises:
            OutputError: the file exists and ``overwrite`` is false, or it cannot be written.

        """
        from facegraph_client._export import save_glb  # noqa: PLC0415  (trimesh takes half a second to import)

        save_glb(self, path, overwrite=overwrite)

    def save_obj(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write ``NAME.obj`` and, beside it, ``NAME.mtl`` and ``NAME.png``, in metres, in the head frame.

        Args:
            path: where to write; must end in ``.obj``.
            overwrite: replace files that exist.

        Raises:
            OutputError: one of the files exists and ``overwrite`` is false, or it cannot be written.

        """
        from facegraph_client._export import save_obj  # noqa: PLC0415

        save_obj(self, path, overwrite=overwrite)


def _rounded(array: NDArray[np.floating[Any]], decimals: int) -> Any:
    return array.astype(np.float64).round(decimals).tolist()
