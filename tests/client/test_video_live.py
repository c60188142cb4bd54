from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from facegraph_client import InputError, OutputError
from facegraph_client._errors import VideoError
from facegraph_client._provenance import DIGITAL_SOURCE_TYPE, read_provenance
from facegraph_client._video_live import LiveReader, LiveResult, is_live, process_live
from numpy.typing import NDArray

from .video_clips import make_clip, number_of, read_clip

REPOSITORY = Path(__file__).resolve().parents[2]
FRAMES, RATE = 40, 50
Image = NDArray[np.uint8]


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """A clip as MPEG-TS, cut where it takes a frame's time to send."""
    path = tmp_path_factory.mktemp("live") / "clip.ts"
    # Without B-frames, as cameras send: a frame is complete when the next one begins.
    make_clip(path, frames=FRAMES, time_base=Fraction(1, 90000), audio=None, options={"tune": "zerolatency", "g": "10"})
    content = path.read_bytes()
    step = -(-len(content) // FRAMES)
    return [content[i : i + step] for i in range(0, len(content), step)]


@contextmanager
def camera(pieces: list[bytes], *, hang: bool = False) -> Iterator[str]:
    """A server on this machine that sends a piece every 20 ms, and then ends or falls silent."""
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)

        def serve() -> None:
            connection, _ = server.accept()
            with connection, suppress(ConnectionError):  # the reader may have enough
                for piece in pieces:
                    connection.sendall(piece)
                    time.sleep(1 / RATE)
                if hang:
                    done.wait(10)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
        finally:
            done.set()
            thread.join()


def inverted(image: Image, state: None) -> tuple[Image, None]:
    return 255 - image, state


def test_the_newest_frame_wins_and_the_others_are_counted(stream: list[bytes]) -> None:
    results: list[LiveResult] = []
    states: list[int | None] = []

    def slow(image: Image, state: tuple[Any] | None) -> tuple[Image, tuple[Any]]:
        states.append(None if state is None else int(state[0]))
        time.sleep(0.1)
        return 255 - image, (np.array(number_of(image)),)

    with camera(stream) as address:
        report = process_live(address, slow, on_result=results.append)
    shown = [number_of(255 - result.image_rgb) for result in results]
    missed = shown[0]  # sent while the format was found out, and too old by then
    assert shown == sorted(set(shown)) == [missed + result.number for result in results]
    assert states == [None, *shown[:-1]]
    assert 3 <= report.frames == len(results) <= 15
    assert missed + report.frames + report.dropped == FRAMES
    assert report.dropped > report.frames
    assert shown[-1] == FRAMES - 1  # the last one is never the one that is dropped
    assert report.median_latency_ms < 250  # in a queue it would grow to more than a second
    assert [result.dropped for result in results][-1] == report.dropped


def test_a_fast_transform_gets_every_frame(stream: list[bytes]) -> None:
    results: list[LiveResult] = []
    with camera(stream) as address:
        report = process_live(address, lambda image, state: (image, state), on_result=results.append)
    numbers = [number_of(result.image_rgb) for result in results]
    assert report.frames == len(numbers) >= 10
    assert numbers[-1] == FRAMES - 1
    assert report.frames + report.dropped == FRAMES - numbers[0]
    assert report.dropped < report.frames  # none, if this machine had nothing else to do


@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_a_recording_has_the_frames_and_the_times_at_which_they_came(
    tmp_path: Path, stream: list[bytes], suffix: str
) -> None:
    target = tmp_path / f"out{suffix}"
    results: list[LiveResult] = []
    with camera(stream) as address:
        report = process_live(address, inverted, target=target, on_result=results.append)
    clip = read_clip(target)
    assert len(clip.times_s) == report.frames
    shown = [number_of(255 - image) for image in clip.images_rgb]
    assert shown == [shown[0] + result.number for result in results]
    assert 0.2 < float(clip.times_s[-1] - clip.times_s[0]) < 3
    assert read_provenance(target) == DIGITAL_SOURCE_TYPE
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


def test_a_source_that_falls_silent(tmp_path: Path, stream: list[bytes]) -> None:
    with camera(stream, hang=True) as address, pytest.raises(VideoError, match=r"sent no frame for 1 s|broke off"):
        process_live(address, inverted, target=tmp_path / "out.mp4", timeout_s=1)
    assert len(read_clip(tmp_path / "out.mp4").times_s) > 5  # what came until then is kept


def test_stop_ends_the_run(tmp_path: Path, stream: list[bytes]) -> None:
    stop = threading.Event()

    def stop_soon(result: LiveResult) -> None:
        if result.number >= 5:
            stop.set()

    with camera(stream, hang=True) as address:
        report = process_live(address, inverted, target=tmp_path / "out.mp4", on_result=stop_soon, stop=stop)
    assert 2 <= report.frames <= 20
    assert len(read_clip(tmp_path / "out.mp4").times_s) == report.frames


def test_standard_input_and_ctrl_c(tmp_path: Path, stream: list[bytes]) -> None:
    code = (
        "from facegraph_client._video_live import process_live\n"
        f"report = process_live('-', lambda image, state: (255 - image, state), target={str(tmp_path / 'out.mp4')!r},"
        " on_result=lambda result: print(result.number, flush=True))\n"
        "print(report.frames)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for piece in stream:
            process.stdin.write(piece)
            process.stdin.flush()
            time.sleep(1 / RATE)
        seen = [int(process.stdout.readline())]
        os.kill(process.pid, signal.SIGINT)  # its input is still open
        *rest, frames = process.stdout.read().split()
        assert process.wait(20) == 0
    assert len(seen) + len(rest) == int(frames)
    clip = read_clip(tmp_path / "out.mp4")
    assert len(clip.times_s) == int(frames)
    shown = [number_of(255 - image) for image in clip.images_rgb]
    assert shown == [shown[0] + int(number) for number in [*seen, *rest]]


@pytest.mark.parametrize(
    ("source", "live"),
    [
        ("rtsp://camera/1", True),
        ("udp://127.0.0.1:5000", True),
        ("0", True),
        ("-", True),
        ("clip.mp4", False),
        ("./0", False),
        ("folder/rtsp:clip.mp4", False),
    ],
)
def test_is_live(source: str, live: bool) -> None:
    assert is_live(source) is live


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("97", r"there is no camera 97 \(/dev/video97 does not exist\)"),
        ("tcp://127.0.0.1:9", r"cannot be opened as a live source \(Connection refused\): check the address"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="cameras have other names elsewhere")
def test_a_source_that_is_not_there(source: str, message: str) -> None:
    with pytest.raises(VideoError, match=message):
        LiveReader(source, timeout_s=5)


def test_a_source_that_is_no_video() -> None:
    with camera([b"no video at all\n" * 500]) as address, pytest.raises(VideoError, match="cannot be opened as a live"):
        LiveReader(address, timeout_s=5)


def test_results_that_would_go_nowhere_or_over_a_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="give a target to record to, or on_result"):
        process_live("0", inverted)
    (tmp_path / "out.mp4").write_bytes(b"mine")
    with pytest.raises(OutputError, match="exists already"):
        process_live("0", inverted, target=tmp_path / "out.mp4")
    with pytest.raises(VideoError, match=r"choose one of \.mp4"):
        process_live("0", inverted, target=tmp_path / "out.avi")
    assert (tmp_path / "out.mp4").read_bytes() == b"mine"


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert not [t.name for t in threading.enumerate() if t.name.startswith("facegraph-")]
