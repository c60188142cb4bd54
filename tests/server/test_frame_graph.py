"""FrameGraph: buffers, counters and refusals on the CPU; capture and replay where there is a GPU."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from facegraph_client import InputError
from facegraph_server.errors import ModelBuildError
from facegraph_server.frame_graph import FrameGraph, GraphCounters
from numpy.typing import NDArray
from torch import Tensor

GPU = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")])
SPECS = {"GAIN": ((1,), torch.float32), "FRAME": ((4, 6, 3), torch.uint8)}


def brighten(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    frame = inputs["FRAME"].float() * inputs["GAIN"]
    return {"BRIGHT": frame, "SUM": frame.sum((0, 1)), "COUNT": inputs["GAIN"].int()}


@pytest.fixture(params=["cpu", GPU])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def graph(device: str) -> Iterator[FrameGraph]:
    with FrameGraph(brighten, SPECS, device=device, partial=("FRAME",)) as ready:
        yield ready


def frame(seed: int, shape: tuple[int, ...] = (4, 6, 3)) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def gain(value: float) -> NDArray[np.float32]:
    return np.array([value], np.float32)


def test_values_follow_the_inputs_in_alternating_order(graph: FrameGraph) -> None:
    for i in (0, 0, 1, 1, 0, 1, 2, 0):
        found = graph.run({"GAIN": gain(i + 1), "FRAME": frame(i)})
        np.testing.assert_array_equal(found["BRIGHT"], frame(i).astype(np.float32) * (i + 1))
        np.testing.assert_allclose(found["SUM"], found["BRIGHT"].sum((0, 1)), rtol=1e-6)
        assert found["COUNT"].dtype == np.int32


def test_results_are_copies_that_later_runs_leave_alone(graph: FrameGraph) -> None:
    first = graph.run({"GAIN": gain(1), "FRAME": frame(0)})
    kept = {name: value.copy() for name, value in first.items()}
    graph.run({"GAIN": gain(9), "FRAME": frame(1)})
    for name, value in kept.items():
        np.testing.assert_array_equal(first[name], value)
        assert first[name].flags.owndata


def test_a_smaller_frame_fills_the_corner_of_its_buffer(graph: FrameGraph) -> None:
    graph.run({"GAIN": gain(1), "FRAME": frame(0)})
    found = graph.run({"GAIN": gain(1), "FRAME": frame(1, (2, 5, 3))})
    expected = frame(0)
    expected[:2, :5] = frame(1, (2, 5, 3))
    np.testing.assert_array_equal(found["BRIGHT"], expected)


def test_buffers_stay_where_they_are(device: str) -> None:
    places: set[int] = set()

    def note(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        places.update(value.data_ptr() for value in inputs.values())
        return brighten(inputs)

    with FrameGraph(note, SPECS, device=device) as graph:
        for i in range(3):
            graph.run({"GAIN": gain(i), "FRAME": frame(i)})
    assert len(places) == len(SPECS)
    assert all(place % 64 == 0 for place in places)


@pytest.mark.parametrize("count", [0, 2, 4])
def test_only_the_rows_that_count_come_back(device: str, count: int) -> None:
    with FrameGraph(brighten, SPECS, device=device, count_output="COUNT", row_outputs=("BRIGHT",)) as graph:
        found = graph.run({"GAIN": gain(count), "FRAME": frame(0)})
    np.testing.assert_array_equal(found["BRIGHT"], frame(0)[:count].astype(np.float32) * count)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        pytest.param({"FRAME": frame(0)}, r"\['FRAME'\], but the graph has \['FRAME', 'GAIN'\]", id="missing"),
        pytest.param({"GAIN": gain(1), "FRAME": frame(0), "X": gain(1)}, "but the graph has", id="unknown"),
        pytest.param({"GAIN": gain(1), "FRAME": frame(0, (5, 6, 3))}, r"at most \[4, 6, 3\]", id="too-large"),
        pytest.param({"GAIN": gain(1), "FRAME": frame(0, (0, 6, 3))}, r"shape \[0, 6, 3\]", id="empty"),
        pytest.param({"GAIN": gain(1), "FRAME": frame(0, (4, 6))}, r"shape \[4, 6\]", id="rank"),
        pytest.param({"GAIN": np.ones(2, np.float32), "FRAME": frame(0)}, r"takes \[1\]", id="not-partial"),
        pytest.param({"GAIN": np.ones(1), "FRAME": frame(0)}, "GAIN is float64", id="type"),
    ],
)
def test_wrong_inputs_are_refused_and_change_nothing(
    graph: FrameGraph, inputs: dict[str, NDArray[Any]], message: str
) -> None:
    right = {"GAIN": gain(2), "FRAME": frame(3)}
    before = graph.run(right)
    with pytest.raises(InputError, match=message):
        graph.run(inputs)
    np.testing.assert_array_equal(graph.run(right)["BRIGHT"], before["BRIGHT"])


def test_an_example_array_is_a_specification() -> None:
    with FrameGraph(brighten, {"GAIN": gain(1), "FRAME": frame(0)}, device="cpu") as graph:
        np.testing.assert_array_equal(graph.run({"GAIN": gain(1), "FRAME": frame(0)})["BRIGHT"], frame(0))


def test_runs_on_a_cpu_are_eager_and_counted() -> None:
    counters = GraphCounters()
    with FrameGraph(brighten, SPECS, device="cpu", counters=counters) as graph:
        for _ in range(3):
            graph.run({"GAIN": gain(1), "FRAME": frame(0)})
        assert not graph.captured
    assert counters == GraphCounters(captures=0, replays=0, eager_runs=3, fallbacks=0)


def test_threads_take_turns() -> None:
    running = 0

    def slow(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        nonlocal running
        running += 1
        assert running == 1
        time.sleep(0.005)
        running -= 1
        return brighten(inputs)

    with FrameGraph(slow, SPECS, device="cpu") as graph:
        found: dict[int, NDArray[Any]] = {}

        def ask(i: int) -> None:
            found[i] = graph.run({"GAIN": gain(1), "FRAME": frame(i)})["BRIGHT"]

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 8
    for i, value in found.items():
        np.testing.assert_array_equal(value, frame(i))


def test_graphs_that_share_memory_do_not_mix_their_results(device: str) -> None:
    with (
        FrameGraph(brighten, SPECS, device=device) as first,
        FrameGraph(brighten, SPECS, device=device, counters=first.counters, share_with=first) as second,
    ):
        for i in range(6):
            for graph, factor in ((first, 1), (second, 3)):
                found = graph.run({"GAIN": gain(factor), "FRAME": frame(i)})
                np.testing.assert_array_equal(found["BRIGHT"], frame(i).astype(np.float32) * factor)
    assert first.counters.replays + first.counters.eager_runs == 12


def test_a_closed_graph_says_so(device: str) -> None:
    graph = FrameGraph(brighten, SPECS, device=device)
    graph.close()
    graph.close()
    for use in (graph.setup, lambda: graph.run({"GAIN": gain(1), "FRAME": frame(0)})):
        with pytest.raises(RuntimeError, match="closed"):
            use()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_graph_is_captured_once_and_replayed() -> None:
    counters = GraphCounters()
    calls = 0

    def counted(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        nonlocal calls
        calls += 1
        return brighten(inputs)

    with FrameGraph(counted, SPECS, device="cuda", warmup_runs=2, counters=counters) as graph:
        graph.setup()
        assert (graph.captured, calls) == (True, 3)
        for i in range(4):
            graph.run({"GAIN": gain(1), "FRAME": frame(i)})
    assert calls == 3  # replays do not go through Python
    assert counters == GraphCounters(captures=1, replays=4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_graphs_can_be_switched_off() -> None:
    with FrameGraph(brighten, SPECS, device="cuda", graphs=False) as graph:
        found = graph.run({"GAIN": gain(2), "FRAME": frame(0)})
        assert graph.counters == GraphCounters(eager_runs=1)
    np.testing.assert_array_equal(found["BRIGHT"], frame(0).astype(np.float32) * 2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_what_cannot_be_captured_is_an_error() -> None:
    def looks(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {"OUT": inputs["FRAME"] * float(inputs["GAIN"].item())}

    with pytest.raises(ModelBuildError, match="cannot be captured"), FrameGraph(looks, SPECS, device="cuda"):
        pass
