"""The engines' configurations: they fit the networks, and Triton's own lookup finds a CUDA graph for every batch size.

The lookup is restated from Triton's TensorRT backend, src/instance_state.cc: ``SetCudaGraphShape`` makes the keys,
``FindClosestCudaGraph`` compares them.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import onnx
import pytest
from facegraph_server.contract import MAX_BATCH
from facegraph_server.engine_store import COMPUTE_CAPABILITIES, plan_filename
from facegraph_server.paths import MODEL_REPOSITORY, NETWORKS, onnx_path
from facegraph_server.triton_install import find_triton
from google.protobuf import text_format
from onnx import TensorProto
from tritonclient.grpc import model_config_pb2

BATCHES = range(1, MAX_BATCH + 1)
TYPES = {TensorProto.UINT8: "TYPE_UINT8", TensorProto.FLOAT: "TYPE_FP32"}


def config_path(name: str, profile: str) -> Path:
    folder = MODEL_REPOSITORY / name
    return folder / "config.pbtxt" if profile == "tensorrt" else folder / "configs" / f"{profile}.pbtxt"


def parse(text: str) -> Any:
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def load(name: str, profile: str = "tensorrt") -> Any:
    return parse(config_path(name, profile).read_text())


def graph_of(name: str) -> onnx.GraphProto:
    path = onnx_path(name)
    if not path.is_file():
        pytest.fail(f"{path} is missing: run `make models` before the tests")
    return onnx.load(path).graph


class CapturedGraphs:
    """The CUDA graphs that Triton captures for a configuration, and how it finds one."""

    def __init__(self, config: Any) -> None:
        cuda = config.optimization.cuda
        self._inputs = [(i.name, list(i.dims)) for i in config.input]
        self._graphs: dict[tuple[int, ...], tuple[int, ...]] = {}
        # One bound anywhere switches inexact matching on for the whole instance.
        self._inexact = any(spec.HasField("graph_lower_bound") for spec in cuda.graph_spec)
        for spec in cuda.graph_spec if cuda.graphs else ():
            self._capture(spec)

    def _capture(self, spec: Any) -> None:
        has_bound = spec.HasField("graph_lower_bound")
        bound = spec.graph_lower_bound.batch_size if has_bound else spec.batch_size
        key, bound_key = [spec.batch_size], [bound]
        for name, dims in self._inputs:
            if not spec.input:  # the profile's dimensions: the bound repeats the graph's own batch, so it never pads
                key += [spec.batch_size, *dims]
                bound_key += [spec.batch_size, *dims]
            elif name not in spec.input:
                return  # "unknown input": logged, not captured
            else:
                key += [spec.batch_size, *spec.input[name].dim]
                below = spec.graph_lower_bound.input[name].dim if has_bound else spec.input[name].dim
                bound_key += [bound, *below]
        self._graphs[tuple(key)] = tuple(bound_key)

    def batch_replayed_for(self, batch: int) -> int | None:
        """Batch size of the graph that a batch of this size replays; None where it is enqueued without one."""
        wanted = [batch]
        for _, dims in self._inputs:
            wanted += [batch, *dims]
        if tuple(wanted) in self._graphs:
            return batch
        if not self._inexact:
            return None
        for key, bound in sorted(self._graphs.items()):
            fits = all(k >= w for k, w in zip(key, wanted, strict=True))
            covered = all(b <= w for b, w in zip(bound, wanted, strict=True))
            if fits and covered:
                return key[0]
        return None

    def __len__(self) -> int:
        return len(self._graphs)


@pytest.mark.parametrize("profile", ["tensorrt", "nograph"])
@pytest.mark.parametrize("name", NETWORKS)
def test_tensors_are_those_of_the_onnx_file(name: str, profile: str) -> None:
    config = load(name, profile)
    graph = graph_of(name)
    for values, declared in ((graph.input, config.input), (graph.output, config.output)):
        expected = []
        for value in values:
            batch, *sample = value.type.tensor_type.shape.dim
            assert batch.dim_param  # free: Triton adds it
            expected.append((value.name, TYPES[value.type.tensor_type.elem_type], [d.dim_value for d in sample]))
        found = [(t.name, model_config_pb2.DataType.Name(t.data_type), list(t.dims)) for t in declared]
        assert found == expected


@pytest.mark.parametrize("name", NETWORKS)
def test_every_batch_replays_a_graph(name: str) -> None:
    graphs = CapturedGraphs(load(name))
    assert len(graphs) == 5
    replayed = {batch: graphs.batch_replayed_for(batch) for batch in BATCHES}
    assert replayed == {b: 1 if b == 1 else 2 if b == 2 else 4 if b <= 4 else 8 if b <= 8 else 16 for b in BATCHES}
    assert all(graph is not None and graph < 2 * batch for batch, graph in replayed.items())


@pytest.mark.parametrize("name", NETWORKS)
def test_nograph_replays_none(name: str) -> None:
    graphs = CapturedGraphs(load(name, "nograph"))
    assert [graphs.batch_replayed_for(batch) for batch in BATCHES] == [None] * MAX_BATCH


def mutate(config: Any, how: str) -> Any:
    for spec in config.optimization.cuda.graph_spec:
        if how == "no input maps":
            spec.ClearField("input")
            spec.graph_lower_bound.ClearField("input")
        elif how == "no bounds":
            spec.ClearField("graph_lower_bound")
        elif how == "misspelt input":
            spec.input["NOT_AN_INPUT"].dim.extend([192, 192, 3])
            del spec.input[config.input[0].name]
        elif how == "one bound too high" and spec.batch_size == 8:
            spec.graph_lower_bound.batch_size = 6
    if how == "graphs off":
        config.optimization.cuda.graphs = False
    return config


@pytest.mark.parametrize(
    ("how", "without"),
    [
        ("no input maps", [3, 5, 6, 7, *range(9, 16)]),
        ("no bounds", [3, 5, 6, 7, *range(9, 16)]),
        ("misspelt input", list(BATCHES)),
        ("one bound too high", [5]),
        ("graphs off", list(BATCHES)),
    ],
)
def test_the_lookup_sees_the_known_traps(how: str, without: list[int]) -> None:
    """Each of these loads without an error in Triton and silently runs some batches without a graph."""
    graphs = CapturedGraphs(mutate(load("face_mesh"), how))
    assert [b for b in BATCHES if graphs.batch_replayed_for(b) is None] == without


@pytest.mark.parametrize("name", NETWORKS)
def test_nograph_differs_in_nothing_but_the_graphs(name: str) -> None:
    graphs, nograph = load(name), load(name, "nograph")
    assert (graphs.optimization.cuda.graphs, nograph.optimization.cuda.graphs) == (True, False)
    for config in (graphs, nograph):
        config.optimization.cuda.ClearField("graphs")
        config.optimization.cuda.ClearField("graph_spec")
    assert graphs == nograph


@pytest.mark.parametrize("name", NETWORKS)
def test_how_it_runs(name: str) -> None:
    config = load(name)
    assert (config.name, config.backend, config.max_batch_size) == (name, "tensorrt", MAX_BATCH)
    assert not config.optimization.cuda.output_copy_stream  # stale results with graphs
    assert [(g.count, g.kind, list(g.profile)) for g in config.instance_group] == [
        (1, model_config_pb2.ModelInstanceGroup.KIND_GPU, [])
    ]
    batcher = config.dynamic_batching
    assert config.HasField("dynamic_batching")
    assert not batcher.preferred_batch_size
    policy = batcher.default_queue_policy
    assert policy.timeout_action == model_config_pb2.ModelQueuePolicy.REJECT
    assert policy.default_timeout_microseconds > 0
    assert policy.max_queue_size >= MAX_BATCH
    assert [w.batch_size for w in config.model_warmup] == [1, MAX_BATCH]
    for warmup in config.model_warmup:
        assert {n: (i.data_type, list(i.dims)) for n, i in warmup.inputs.items()} == {
            i.name: (i.data_type, list(i.dims)) for i in config.input
        }


@pytest.mark.parametrize("name", NETWORKS)
def test_each_gpu_type_has_the_file_that_the_builder_writes(name: str) -> None:
    config = load(name)
    assert dict(config.cc_model_filenames) == {c: plan_filename(c) for c in COMPUTE_CAPABILITIES}
    assert config.default_model_filename == plan_filename("99.0")


def triton_says(repository: Path, profile: str | None) -> str:
    triton = find_triton()
    command = [
        str(triton.binary), f"--model-repository={repository}", f"--backend-directory={triton.backends}",
        "--disable-auto-complete-config", "--allow-http=false", "--allow-grpc=false", "--allow-metrics=false",
    ]  # fmt: skip
    if profile is not None:
        command.append(f"--model-config-name={profile}")
    result = subprocess.run(command, env=triton.environment(), capture_output=True, text=True, timeout=60, check=False)
    return result.stdout + result.stderr


@pytest.mark.skipif(
    find_triton().has_tensorrt, reason="this Triton would load the engines: the integration tests do that"
)
@pytest.mark.parametrize("profile", [None, "nograph"])
def test_triton_itself_knows_every_field(profile: str | None, tmp_path: Path) -> None:
    """The embedded Triton has no TensorRT backend: that, not a field of the configuration, is what stops it."""
    for name in NETWORKS:
        (tmp_path / name / "1").mkdir(parents=True)
        shutil.copy(config_path(name, "tensorrt"), tmp_path / name)
        shutil.copytree(MODEL_REPOSITORY / name / "configs", tmp_path / name / "configs")
    said = triton_says(tmp_path, profile)
    assert "text-format" not in said
    for name in NETWORKS:
        assert f"failed to load '{name}' version 1: Invalid argument: unable to find backend library" in said
    if profile is None:
        with (tmp_path / NETWORKS[0] / "config.pbtxt").open("a") as file:
            file.write("\nnot_a_field: 1\n")
        assert 'has no field named "not_a_field"' in triton_says(tmp_path, None)
