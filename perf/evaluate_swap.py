"""Judge the face swap with networks that it does not use. See --help."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import click
import numpy as np
from facegraph_client import FaceClient, FaceSwapSession, load_upright_rgb
from facegraph_client._swap import SWAP_TEXTURE_SIZE_PX
from facegraph_server.embedded import EmbeddedServer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

LEAST_GAIN = 0.15
"""Least mean gain of the distance to the source, of dlib's embeddings: 0.6 is its border between two people."""

MOST_DRIFT = 0.025
"""Largest mean distance of the landmarks found again, as a part of the face's width."""

_EPILOG = """
\b
Examples:
  pip install -e '.[server,eval]'
  python perf/evaluate_swap.py anna.jpg bob.jpg carla.jpg

Exit status: 0 both bars are met, 1 one is not, 2 it could not run.
"""


class Identity:
    """dlib's face recognition network (Davis King, CC0 weights): people who look alike are near each other."""

    def __init__(self) -> None:
        import dlib  # noqa: PLC0415  (only in the extra eval)
        import face_recognition_models as models  # noqa: PLC0415

        self._detect = dlib.get_frontal_face_detector()
        self._align = dlib.shape_predictor(models.pose_predictor_five_point_model_location())
        self._embed = dlib.face_recognition_model_v1(models.face_recognition_model_location())

    def of(self, image_rgb: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Return the embedding [128] of the largest face."""
        image = np.ascontiguousarray(image_rgb)
        faces = self._detect(image, 1)
        if not faces:
            raise click.ClickException("dlib finds no face in one of the photos: choose another")
        face = max(faces, key=lambda box: box.area())
        return np.array(self._embed.compute_face_descriptor(image, self._align(image, face), 5))


@click.command(epilog=_EPILOG)
@click.argument("photos", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
def main(photos: tuple[Path, ...]) -> None:
    """Swap every ordered pair of photos; measure how far identity moves, and that pose and expression stay.

    Identity: the distance of dlib's embeddings to the source, before and after. Pose and expression: the landmarks
    found again in the result.
    """
    try:
        identity = Identity()
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error}; install what judges: pip install -e '.[server,eval]'") from None
    images = {path: load_upright_rgb(path) for path in photos}
    embeddings = {path: identity.of(image) for path, image in images.items()}
    gains, drifts = [], []
    table = Table("source", "target", "distance before", "after", "drift, % of the face's width")
    with EmbeddedServer(profile="cpu") as server, FaceClient(server.grpc_address) as client:
        for source, target in itertools.permutations(photos, 2):
            session = FaceSwapSession(client, client.reconstruct(source, texture_size_px=SWAP_TEXTURE_SIZE_PX)[:1])
            swapped, state = session.swap(images[target])
            before = float(np.linalg.norm(embeddings[source] - embeddings[target]))
            after = float(np.linalg.norm(embeddings[source] - identity.of(swapped)))
            landmarks = state.landmarks_px[state.source_index >= 0][0]
            again = client.landmarks(swapped)[0].landmarks_px
            width_px = float(np.ptp(landmarks[:, 0]))
            drift = float(np.linalg.norm((again - landmarks)[:, :2], axis=1).mean()) / width_px
            gains.append(before - after)
            drifts.append(drift)
            table.add_row(source.name, target.name, f"{before:.3f}", f"{after:.3f}", f"{100 * drift:.2f}")
    console = Console()
    console.print(table)
    gain, drift = float(np.mean(gains)), float(np.mean(drifts))
    console.print(
        f"mean gain {gain:.3f} (at least {LEAST_GAIN}), mean drift {100 * drift:.2f} % (at most {100 * MOST_DRIFT} %)"
    )
    sys.exit(0 if gain >= LEAST_GAIN and drift <= MOST_DRIFT else 1)


if __name__ == "__main__":
    main()
