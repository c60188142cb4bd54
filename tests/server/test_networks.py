from __future__ import annotations

import numpy as np
import onnx
import pytest
from facegraph_server import weights
from facegraph_server.cpu_runtime import CpuNetwork
from facegraph_server.errors import ModelBuildError
from facegraph_server.model_builder import build_models, check_network
from facegraph_server.networks import build_detector, build_mesh, detector_anchors
from facegraph_server.paths import NETWORKS, WEIGHTS, onnx_path
from facegraph_server.tflite_onnx import OnnxGraph, TfliteTranslator

SOURCES = {"face_detector": weights.DETECTOR, "face_mesh": weights.MESH}


def original(name: str) -> bytes:
    return (WEIGHTS / SOURCES[name].name).read_bytes()


@pytest.mark.parametrize("name", NETWORKS)
def test_the_translation_agrees_with_the_original_runtime(name: str) -> None:
    check_network(name, original(name))  # raises when an output differs


def test_a_wrong_translation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        TfliteTranslator,
        "_relu",
        lambda self, operator: self._emit(operator, "Abs", [self._names[operator.Inputs(0)]]),
    )
    with pytest.raises(ModelBuildError, match="differs from the original"):
        check_network("face_detector", original("face_detector"))


def test_an_unknown_operator_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    translator = TfliteTranslator(original("face_mesh"), OnnxGraph(), "mesh")
    del translator._handlers["PRELU"]
    with pytest.raises(ModelBuildError, match="operator PRELU"):
        translator.translate("pixels")


@pytest.mark.parametrize(
    ("model", "shapes"),
    [
        pytest.param(
            lambda: build_detector(original("face_detector")),
            {"BOXES": [504, 4], "KEYPOINTS": [504, 6, 2], "SCORES": [504]},
            id="detector",
        ),
        pytest.param(
            lambda: build_mesh(original("face_mesh")), {"CROP_LANDMARKS": [468, 3], "PRESENCE": [1]}, id="mesh"
        ),
    ],
)
def test_only_the_batch_dimension_is_free(model: object, shapes: dict[str, list[int]]) -> None:
    graph = model().graph  # type: ignore[operator]
    (source,) = graph.input
    assert source.type.tensor_type.elem_type == onnx.TensorProto.UINT8
    for value in (source, *graph.output):
        first, *rest = value.type.tensor_type.shape.dim
        assert first.dim_param == "B"
        assert all(dim.dim_value > 0 for dim in rest)
    assert {o.name: [d.dim_value for d in o.type.tensor_type.shape.dim[1:]] for o in graph.output} == shapes


def test_anchors_lie_at_the_cell_centres() -> None:
    anchors = detector_anchors(192)
    assert anchors.shape == (12 * 12 * 2 + 6 * 6 * 6, 2)
    assert anchors[0].tolist() == [8, 8]
    assert anchors[2].tolist() == [24, 8]  # x runs fastest, two anchors a cell
    assert anchors[-1].tolist() == [176, 176]


@pytest.mark.parametrize("name", NETWORKS)
def test_a_batch_answers_like_its_images_alone(name: str) -> None:
    network = CpuNetwork(onnx_path(name))
    images = np.random.default_rng(0).integers(0, 256, (3, 192, 192, 3), np.uint8)
    together = network.run(images)
    for i, image in enumerate(images):
        for key, value in network.run(image[None]).items():
            np.testing.assert_array_equal(value[0], together[key][i])


def test_building_again_changes_nothing(tmp_path: object) -> None:
    before = {name: onnx_path(name).stat().st_mtime_ns for name in NETWORKS}
    lines: list[str] = []
    build_models(lines.append)
    assert {name: onnx_path(name).stat().st_mtime_ns for name in NETWORKS} == before
    assert sum("is up to date" in line for line in lines) == len(NETWORKS)


def test_a_missing_model_says_how_to_build_it(tmp_path: object) -> None:
    with pytest.raises(ModelBuildError, match=r"scripts/build_models\.py"):
        CpuNetwork(onnx_path("face_mesh", tmp_path))  # type: ignore[arg-type]
