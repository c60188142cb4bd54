from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import facegraph_client._video_pipeline as pipeline
import pytest
from facegraph_client import OutputError
from facegraph_client._video_pipeline import VideoProgress, VideoReport, process_video

from .video_clips import Trace, make_clip, read_clip, traced

REPOSITORY = Path(__file__).resolve().parents[2]
SEGMENT_FRAMES = 10
# x264's presets from veryfast on use mbtree, whose choices differ slightly from run to run.
OPTIONS: dict[str, Any] = {"make_state": Trace._make, "preset": "superfast"}
PREAMBLE = f"""
import os, resource, signal, sys
import facegraph_client._video_pipeline as pipeline
from facegraph_client._video_pipeline import process_video
from tests.client.video_clips import Trace, traced
pipeline.SEGMENT_FRAMES = {SEGMENT_FRAMES}
def stop(progress):
    if progress.frames_done == {{frame}}:
        os.kill(os.getpid(), signal.{{signal}})
def die(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)
"""
RUN = "process_video('in.mp4', 'out.mp4', traced, make_state=Trace._make, preset='superfast', on_progress=stop)"


@pytest.fixture(autouse=True)
def _short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "SEGMENT_FRAMES", SEGMENT_FRAMES)


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    make_clip(tmp_path / "in.mp4", frames=45)
    return tmp_path / "in.mp4"


def run(clip: Path, **options: Any) -> VideoReport:
    return process_video(clip, clip.with_name("out.mp4"), traced, **OPTIONS, **options)


def run_elsewhere(
    folder: Path, code: str, *, frame: int = -1, number: str = "SIGKILL"
) -> subprocess.CompletedProcess[str]:
    preamble = PREAMBLE.replace("{frame}", str(frame)).replace("{signal}", number)
    script = f"{preamble}\nos.chdir({str(folder)!r})\n{code}"
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=REPOSITORY, timeout=60)


def assert_equal_to_an_uninterrupted_run(clip: Path) -> None:
    whole = clip.with_name("whole.mp4")
    process_video(clip, whole, traced, **OPTIONS)
    expected, resumed = read_clip(whole), read_clip(clip.with_name("out.mp4"))
    assert len(resumed.times_s) == 45
    squares = [image[26:46, 26:46].mean() for image in resumed.images_rgb]
    assert squares == pytest.approx([0, *(20 + 4 * max(k - 3, 0) for k in range(1, 45))], abs=2.5)
    assert resumed.times_s == expected.times_s == read_clip(clip).times_s
    assert resumed.audio == expected.audio == read_clip(clip).audio
    assert resumed.video_packets == expected.video_packets  # byte by byte: the states went on, too
    assert clip.with_name("out.mp4").read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in clip.parent.iterdir()) == ["in.mp4", "out.mp4", "whole.mp4"]


@pytest.mark.parametrize(
    ("frame", "kept"),
    [(5, 0), (10, 10), (23, 20), (45, 40)],
    ids=["at once", "at a seam", "between seams", "at the end"],
)
def test_a_killed_run_goes_on_where_it_was(clip: Path, frame: int, kept: int) -> None:
    killed = run_elsewhere(clip.parent, RUN, frame=frame)
    assert killed.returncode == -signal.SIGKILL
    assert not clip.with_name("out.mp4").exists()
    report = run(clip, resume=True)
    assert (report.frames, report.resumed_frames) == (45, kept)
    assert_equal_to_an_uninterrupted_run(clip)


def test_a_run_that_is_killed_while_it_puts_the_file_together(clip: Path) -> None:
    assert run_elsewhere(clip.parent, f"pipeline.append_xmp_box = die\n{RUN}").returncode == -signal.SIGKILL
    assert run(clip, resume=True).resumed_frames == 45
    assert_equal_to_an_uninterrupted_run(clip)


def test_a_run_that_is_killed_twice(clip: Path) -> None:
    run_elsewhere(clip.parent, RUN, frame=12)
    again = RUN.replace("on_progress", "resume=True, on_progress")
    assert run_elsewhere(clip.parent, again, frame=37).returncode == -signal.SIGKILL
    assert run(clip, resume=True).resumed_frames == 30
    assert_equal_to_an_uninterrupted_run(clip)


def test_ctrl_c_leaves_no_target_and_what_resume_needs(clip: Path) -> None:
    stopped = run_elsewhere(clip.parent, RUN, frame=23, number="SIGINT")
    assert stopped.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in stopped.stderr
    assert sorted(path.name for path in clip.parent.iterdir()) == ["in.mp4", "out.mp4.facegraph-part"]
    assert run(clip, resume=True).resumed_frames == 20
    assert_equal_to_an_uninterrupted_run(clip)


def test_ctrl_c_before_anything_is_done_leaves_nothing(clip: Path) -> None:
    run_elsewhere(clip.parent, RUN, frame=5, number="SIGINT")
    assert [path.name for path in clip.parent.iterdir()] == ["in.mp4"]


def test_resume_without_an_interrupted_run_is_an_ordinary_run(clip: Path) -> None:
    assert run(clip, resume=True).resumed_frames == 0
    assert_equal_to_an_uninterrupted_run(clip)


def interrupt(progress: VideoProgress) -> None:
    if progress.frames_done == 25:
        raise KeyboardInterrupt


@pytest.fixture
def interrupted(clip: Path) -> Path:
    with pytest.raises(KeyboardInterrupt):
        run(clip, on_progress=interrupt, job="source 1")
    assert clip.with_name("out.mp4.facegraph-part").is_dir()
    return clip


def test_what_is_left_is_not_thrown_away_silently(interrupted: Path) -> None:
    with pytest.raises(OutputError, match=r"an earlier run left .*out.mp4.facegraph-part.*--resume.*--overwrite"):
        run(interrupted, job="source 1")
    assert run(interrupted, job="source 1", resume=True).resumed_frames == 20


def test_overwrite_starts_again(interrupted: Path) -> None:
    assert run(interrupted, job="source 1", overwrite=True).resumed_frames == 0
    assert_equal_to_an_uninterrupted_run(interrupted)


@pytest.mark.parametrize(
    ("options", "difference"),
    [({"job": "source 2"}, "transform"), ({"crf": 21}, "encoder"), ({"in_flight": 2}, "in_flight")],
)
def test_resume_refuses_another_job(interrupted: Path, options: dict[str, Any], difference: str) -> None:
    with pytest.raises(OutputError, match=f"is from another job, its {difference} differ"):
        run(interrupted, resume=True, **{"job": "source 1"} | options)
    assert run(interrupted, job="source 1", resume=True).resumed_frames == 20


def test_resume_refuses_another_video_of_that_name(interrupted: Path) -> None:
    make_clip(interrupted, frames=44)
    with pytest.raises(OutputError, match="is from another job, its source differ"):
        run(interrupted, job="source 1", resume=True)


def test_a_part_that_was_damaged_is_told(interrupted: Path) -> None:
    part = interrupted.with_name("out.mp4.facegraph-part") / "00000.npz"
    part.write_bytes(part.read_bytes()[:200])
    with pytest.raises(OutputError, match=r"00000\.npz is damaged .*: delete the folder"):
        run(interrupted, job="source 1", resume=True)


def test_a_target_has_one_run_at_a_time(clip: Path) -> None:
    def start_another(progress: VideoProgress) -> None:
        with pytest.raises(OutputError, match="another run is at work in"):
            run(clip, resume=True)

    run(clip, on_progress=start_another)
    assert_equal_to_an_uninterrupted_run(clip)


@pytest.mark.parametrize(
    ("limit", "finished"), [(3_000, lambda n: n == 0), (40_000, lambda n: n == 5)], ids=["part", "file"]
)
def test_a_full_disk(clip: Path, limit: int, finished: Callable[[int], bool]) -> None:
    code = (
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
        f"try:\n    {RUN}\nexcept pipeline.OutputError as error:\n    print(error)"
    )
    full = run_elsewhere(clip.parent, code)
    assert full.stderr == ""
    assert full.stdout.startswith("cannot write ")
    assert "File too large" in full.stdout
    assert not clip.with_name("out.mp4").exists()
    assert finished(len(list(clip.parent.glob("out.mp4.facegraph-part/*.npz"))))
    run(clip, resume=True)
    assert_equal_to_an_uninterrupted_run(clip)


def test_a_target_that_appears_meanwhile_is_not_overwritten(clip: Path) -> None:
    target = clip.with_name("out.mp4")
    with pytest.raises(OutputError, match="exists already"):
        run(clip, on_progress=lambda progress: target.write_bytes(b"mine"))
    assert target.read_bytes() == b"mine"
    target.unlink()
    assert run(clip, resume=True).resumed_frames == 45
