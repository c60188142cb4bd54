from __future__ import annotations

import random
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import permutations
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from facegraph_client import FaceGraphError, InputError, OutputError
from facegraph_client._errors import VideoError
from facegraph_client._provenance import marked_picture
from facegraph_client._pyav import pyav
from facegraph_client._video_encoder import decoding_times
from facegraph_client._video_errors import clock
from facegraph_client._video_pipeline import VideoProgress, process_video
from facegraph_client._video_pixels import PixelConverter
from numpy.typing import NDArray

from .video_clips import make_clip, number_of, picture, read_clip

Image = NDArray[np.uint8]


def identity(frame_rgb: Image, state: None) -> tuple[Image, None]:
    return frame_rgb, state


def inverted(frame_rgb: Image, state: None) -> tuple[Image, None]:
    return 255 - frame_rgb, state


def irregular_times(count: int, start: int = 0) -> list[int]:
    steps = random.Random(3).choices([1, 300, 512, 513, 900, 4000], k=count - 1)
    return [start + sum(steps[:i]) for i in range(count)]


# --- what is kept ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".mp4", ".mov", ".mkv"])
@pytest.mark.parametrize("pts", [None, irregular_times(40), irregular_times(40, start=6401)], ids=["25", "vfr", "late"])
def test_frames_times_and_sound_are_kept(tmp_path: Path, suffix: str, pts: list[int] | None) -> None:
    if suffix == ".mkv" and pts is not None:
        pts = [13 * i for i in pts]  # its times are whole milliseconds
    source, target = tmp_path / f"in{suffix}", tmp_path / f"out{suffix}"
    make_clip(source, frames=40, pts=pts)
    report = process_video(source, target, identity)
    old, new = read_clip(source), read_clip(target)
    assert (report.frames, report.remarks) == (40, [])
    assert new.times_s == old.times_s
    # An MP4 adds up times between packets, whose order may differ; Matroska rounds the last packet of sound.
    assert new.duration_s == pytest.approx(old.duration_s, abs=1e-3 if suffix != ".mkv" else 0.022)
    assert new.time_base == old.time_base
    assert new.audio == old.audio
    assert len(new.audio) > 60
    assert [number_of(image) for image in new.images_rgb] == list(range(40))
    assert new.stream == old.stream
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([source.name, target.name])


def test_from_one_container_to_another(tmp_path: Path) -> None:
    times = [40 * i + i % 3 for i in range(30)]
    make_clip(tmp_path / "in.mkv", pts=times, time_base=Fraction(1, 1000))
    process_video(tmp_path / "in.mkv", tmp_path / "out.mp4", identity)
    old, new = read_clip(tmp_path / "in.mkv"), read_clip(tmp_path / "out.mp4")
    assert new.times_s == old.times_s
    assert [data for *_, data in new.audio] == [data for *_, data in old.audio]
    assert [pts for pts, *_ in new.audio] == pytest.approx([pts for pts, *_ in old.audio], abs=1e-3)


def test_the_clock_of_a_broadcast_recording_starts_at_its_first_packet(tmp_path: Path) -> None:
    hour = 3600 * 90000
    times = [hour + 3600 * i for i in range(30)]
    make_clip(tmp_path / "in.ts", pts=times, time_base=Fraction(1, 90000), sound_start_s=3600)
    process_video(tmp_path / "in.ts", tmp_path / "out.mp4", identity)
    old, new = read_clip(tmp_path / "in.ts"), read_clip(tmp_path / "out.mp4")
    start = min(old.times_s[0], old.audio[0][0])
    assert start > 3000
    assert new.times_s == [time - start for time in old.times_s]
    assert [pts for pts, *_ in new.audio] == pytest.approx([float(pts - start) for pts, *_ in old.audio], abs=1e-4)


@pytest.mark.parametrize(
    "colours",
    [
        {},
        {"color_range": 1, "color_primaries": 1, "color_trc": 1, "colorspace": 1},
        {"color_range": 2, "color_primaries": 1, "color_trc": 1, "colorspace": 1},
        {"color_range": 2, "color_primaries": 5, "color_trc": 6, "colorspace": 5},
        {"color_range": 1, "color_primaries": 6, "color_trc": 6, "colorspace": 6},
        {"color_range": 1, "color_primaries": 9, "color_trc": 14, "colorspace": 9},
    ],
    ids=lambda c: "-".join(map(str, c.values())) or "unspecified",
)
@pytest.mark.parametrize("transform", [identity, lambda image, state: (image.copy(), state), inverted])
def test_colours_are_kept(tmp_path: Path, colours: dict[str, int], transform: Any) -> None:
    source, target = tmp_path / "in.mp4", tmp_path / "out.mp4"
    make_clip(source, frames=5, colours=colours, audio=None)
    process_video(source, target, transform, crf=8)
    old, new = read_clip(source), read_clip(target)
    assert new.stream == old.stream
    if transform is inverted:
        for before, after in zip(old.images_rgb, new.images_rgb, strict=True):
            # It is the transform's input, one level dark, that is inverted.
            assert np.abs((after.astype(int) - (255 - before.astype(int)))[12:].mean((0, 1))).max() < 3.5
        return
    for before, after in zip(old.planes, new.planes, strict=True):
        difference = after.astype(float) - before
        assert abs(difference.mean()) < 0.1
        assert 10 * np.log10(255**2 / (difference**2).mean()) > 45


@pytest.mark.parametrize(
    ("size_px", "pixel_format", "codec", "encoded"),
    [
        ((97, 65), "yuv420p", "ffv1", "yuv444p"),
        ((97, 64), "yuv444p", "libx264", "yuv444p"),
        ((96, 65), "yuv422p", "libx264", "yuv444p"),
        ((96, 64), "yuvj422p", "libx264", "yuvj420p"),
        ((96, 64), "yuv420p10le", "libx264", "yuv420p"),
        ((96, 64), "rgb24", "png", "yuv420p"),
        ((97, 65), "rgb24", "png", "yuv444p"),
        ((96, 64), "gray", "ffv1", "yuv420p"),
        ((2, 2), "yuv420p", "ffv1", "yuv420p"),
    ],
)
def test_any_size_and_pixel_format_keeps_its_size_and_its_look(
    tmp_path: Path, size_px: tuple[int, int], pixel_format: str, codec: str, encoded: str
) -> None:
    source, target = tmp_path / ("in.mov" if codec == "png" else "in.mkv"), tmp_path / "out.mkv"
    make_clip(source, frames=4, size_px=size_px, pixel_format=pixel_format, codec=codec, audio=None)
    sizes = set()
    report = process_video(
        source, target, lambda image, state: (sizes.add(image.shape[1::-1]), (image, state))[1], crf=4
    )
    old, new = read_clip(source), read_clip(target)
    assert sizes == {size_px}
    odd = f"{size_px[0]}x{size_px[1]} is an odd size; it is stored as 4:4:4, which some players do not show"
    ten = "the video has 10 bits a colour; it is stored with 8"
    assert report.remarks == [odd] * encoded.endswith("444p") + [ten] * pixel_format.endswith("10le")
    assert (new.stream["size"], new.stream["format"]) == (size_px, encoded)
    for before, after in zip(old.images_rgb, new.images_rgb, strict=True):
        assert np.abs((after.astype(int) - before).mean((0, 1))).max() < 1.5


@pytest.mark.parametrize("degrees", [0, 90, 180, -90])
@pytest.mark.parametrize(("mirror_x", "mirror_y"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("pixel_format", ["yuv420p", "yuv422p"])
def test_a_rotated_video_is_upright_for_the_transform_and_plays_alike(
    tmp_path: Path, degrees: int, mirror_x: bool, mirror_y: bool, pixel_format: str
) -> None:
    source, target = tmp_path / "in.mp4", tmp_path / "out.mp4"
    make_clip(
        source,
        frames=3,
        rotation=(degrees, mirror_x, mirror_y),
        aspect=Fraction(4, 3),
        audio=None,
        pixel_format=pixel_format,
    )
    # The library turns counter-clockwise first and mirrors then.
    upright = np.rot90(picture(1), degrees // 90)
    upright = upright[:: -1 if mirror_y else 1, :: -1 if mirror_x else 1].astype(int)
    seen = []
    process_video(source, target, lambda image, state: (seen.append(image), (image, state))[1], in_flight=1, crf=8)
    new = read_clip(target)
    turned = degrees % 180 != 0
    assert new.rotation == 0
    assert new.stream["size"] == ((64, 96) if turned else (96, 64))
    assert new.stream["aspect"] == (Fraction(3, 4) if turned else Fraction(4, 3))
    for image in (seen[1], new.images_rgb[1]):
        assert image.shape == upright.shape
        assert np.abs(image - upright).mean() < 6


def test_titles_creation_time_and_chapters_are_kept(tmp_path: Path) -> None:
    source, target = tmp_path / "in.mkv", tmp_path / "out.mp4"
    tags = {"title": "Tïtle 顔", "artist": "Someone", "creation_time": "2020-01-02T03:04:05.000000Z", "comment": "Mine"}
    make_clip(tmp_path / "plain.mkv", tags=tags)
    chapters = [
        {"id": 1, "start": 0, "end": 500, "time_base": Fraction(1, 1000), "metadata": {"title": "One"}},
        {"id": 2, "start": 500, "end": 1200, "time_base": Fraction(1, 1000), "metadata": {"title": "Two"}},
    ]
    with av.open(str(tmp_path / "plain.mkv")) as old, av.open(str(source), "w") as new:
        new.metadata.update(old.metadata)
        new.set_chapters(chapters)
        streams = {stream.index: new.add_stream_from_template(stream, opaque=True) for stream in old.streams}
        for packet in old.demux():
            if packet.size:
                packet.stream = streams[packet.stream_index]
                new.mux(packet)
    process_video(source, target, identity)
    clip = read_clip(target)
    assert {name: clip.tags[name] for name in ("title", "artist", "creation_time")} == {
        name: tags[name] for name in ("title", "artist", "creation_time")
    }
    assert clip.tags["comment"].startswith("Mine\n")
    with av.open(str(target)) as container:
        found = [
            (c["start"] * c["time_base"], c["end"] * c["time_base"], c["metadata"]["title"])
            for c in container.chapters()
        ]
    assert found == [(0, Fraction(1, 2), "One"), (Fraction(1, 2), Fraction(6, 5), "Two")]


def test_subtitles_are_kept_where_the_container_takes_them(tmp_path: Path) -> None:
    make_clip(tmp_path / "plain.mkv", frames=50)
    (tmp_path / "lines.srt").write_text(
        "1\n00:00:00,200 --> 00:00:00,900\nHello\n\n2\n00:00:01,000 --> 00:00:01,500\nBye\n"
    )
    source = tmp_path / "in.mkv"
    with (
        av.open(str(tmp_path / "plain.mkv")) as old,
        av.open(str(tmp_path / "lines.srt")) as lines,
        av.open(str(source), "w") as new,
    ):
        outputs = {
            id(container): [new.add_stream_from_template(stream, opaque=True) for stream in container.streams]
            for container in (old, lines)
        }
        for container in (old, lines):
            for packet in container.demux():
                if packet.size:
                    packet.stream = outputs[id(container)][packet.stream_index]
                    new.mux(packet)
    report = process_video(source, tmp_path / "out.mkv", identity)
    assert report.remarks == []
    with av.open(str(tmp_path / "out.mkv")) as container:
        found = [(p.pts, p.duration, bytes(p)) for p in container.demux(subtitles=0) if p.size]
    assert found == [(200, 700, b"Hello"), (1000, 500, b"Bye")]
    assert read_clip(tmp_path / "out.mkv").audio == read_clip(source).audio
    report = process_video(source, tmp_path / "out.mp4", identity)
    assert report.remarks == ["subtitles in srt are left out: .mp4 does not take them"]


def test_names_that_ffmpeg_would_take_for_addresses(tmp_path: Path) -> None:
    make_clip(tmp_path / "in.mp4", frames=3)
    source = (tmp_path / "in.mp4").rename(tmp_path / "http:顔 %d.mp4")
    process_video(source, tmp_path / "data:顔 %d.mp4", identity)
    copy = (tmp_path / "data:顔 %d.mp4").rename(tmp_path / "out.mp4")
    assert len(read_clip(copy).times_s) == 3


def test_a_playlist_does_not_reach_out_to_the_network(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.5)
        address = f"http://127.0.0.1:{server.getsockname()[1]}/0.ts"
        playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{address}\n#EXT-X-ENDLIST\n"
        (tmp_path / "in.m3u8").write_text(playlist)
        with pytest.raises(VideoError):
            process_video(tmp_path / "in.m3u8", tmp_path / "out.mp4", identity)
        with pytest.raises(TimeoutError):
            server.accept()


def test_the_index_of_an_mp4_comes_first_so_that_it_plays_while_it_loads(tmp_path: Path) -> None:
    make_clip(tmp_path / "in.mp4")
    process_video(tmp_path / "in.mp4", tmp_path / "out.mp4", identity)
    content = (tmp_path / "out.mp4").read_bytes()
    assert 0 < content.index(b"moov") < content.index(b"mdat")


# --- order, states, memory ------------------------------------------------------------------------------------------


def test_the_order_is_kept_and_each_frame_gets_the_state_of_the_same_number_before(tmp_path: Path) -> None:
    make_clip(tmp_path / "in.mp4", frames=60, audio=None)
    rng = random.Random(1)
    got: dict[int, int | None] = {}

    def slow(image: Image, state: tuple[Image] | None) -> tuple[Image, tuple[Image]]:
        number = number_of(image)
        got[number] = None if state is None else int(state[0])
        time.sleep(rng.random() / 100)
        return 255 - image, (np.array(number),)

    process_video(tmp_path / "in.mp4", tmp_path / "out.mp4", slow, in_flight=4)
    assert got == {0: None, **{k: max(k - 4, 0) for k in range(1, 60)}}
    images = read_clip(tmp_path / "out.mp4").images_rgb
    assert [255 - number_of(image) for image in images] == list(range(60))


def test_as_many_frames_are_worked_on_at_a_time_as_asked_for(tmp_path: Path) -> None:
    make_clip(tmp_path / "in.mp4", frames=30, audio=None)
    lock, now, most = threading.Lock(), 0, 0

    def counted(image: Image, state: None) -> tuple[Image, None]:
        nonlocal now, most
        with lock:
            now, most = now + 1, max(most, now + 1)
        time.sleep(0.01)
        with lock:
            now -= 1
        return image, None

    process_video(tmp_path / "in.mp4", tmp_path / "out.mp4", counted, in_flight=3)
    assert most == 3


@pytest.mark.parametrize("slow", ["transform", "encoder"])
def test_the_number_of_frames_alive_does_not_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: str) -> None:
    make_clip(tmp_path / "in.mp4", frames=255, audio=None)
    lock, alive, most = threading.Lock(), 0, 0

    def died() -> None:
        nonlocal alive
        alive -= 1  # runs wherever the last reference goes: a lock could be held there already

    rgb, with_changes = PixelConverter.rgb, PixelConverter.with_changes

    def counted(self: PixelConverter, upright: Any) -> Image:
        nonlocal alive, most
        image = rgb(self, upright)
        weakref.finalize(image, died)
        with lock:
            alive, most = alive + 1, max(most, alive + 1)
        return image

    def slowly(self: PixelConverter, *arguments: Any) -> Any:
        time.sleep(0.001 if slow == "encoder" else 0)
        return with_changes(self, *arguments)

    def transform(image: Image, state: None) -> tuple[Image, None]:
        time.sleep(0.001 if slow == "transform" else 0)
        return image, None

    monkeypatch.setattr(PixelConverter, "rgb", counted)
    monkeypatch.setattr(PixelConverter, "with_changes", slowly)
    process_video(tmp_path / "in.mp4", tmp_path / "out.mp4", transform, in_flight=3)
    # Three in flight, one being encoded, two that wait, one being handed over, one being decoded.
    assert 4 <= most <= 8


def test_progress_counts_every_frame(tmp_path: Path) -> None:
    make_clip(tmp_path / "in.mp4", frames=30, audio=None)
    steps: list[VideoProgress] = []
    process_video(tmp_path / "in.mp4", tmp_path / "out.mp4", identity, on_progress=steps.append)
    assert [step.frames_done for step in steps] == list(range(1, 31))
    assert {step.frames_estimate for step in steps} == {30}
    assert (steps[0].frames_per_s, steps[0].remaining_s) == (0, None)
    assert steps[-1].frames_per_s > 0
    assert steps[-1].remaining_s == 0


@pytest.mark.parametrize("seed", range(4))
def test_decoding_times_increase_and_come_before_the_times_of_display(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shown = np.cumsum(rng.integers(1, 5000, 40))
    coded = np.concatenate([rng.permutation(group) for group in shown.reshape(10, 4)])
    times = decoding_times(coded)
    assert (np.diff(times) > 0).all()
    assert (times <= coded).all()


def test_decoding_times_are_no_earlier_than_need_be() -> None:
    for order in permutations([0, 10, 30, 70]):
        times = decoding_times(order)
        assert (np.diff(times) > 0).all()
        assert (times <= np.array(order)).all()
        assert (times == np.array(order)).any() or list(order) != sorted(order)
    assert decoding_times([0, 10, 30]).tolist() == [0, 10, 30]
    assert decoding_times([0, 30, 10, 70]).tolist() == [-10, 0, 10, 30]


# --- what goes wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("transfer", "name"), [(16, "PQ"), (18, "HLG")])
def test_hdr_is_refused(tmp_path: Path, transfer: int, name: str) -> None:
    colours = {"color_range": 1, "color_primaries": 9, "color_trc": transfer, "colorspace": 9}
    make_clip(tmp_path / "in.mp4", frames=3, colours=colours, pixel_format="yuv420p10le", audio=None)
    with pytest.raises(VideoError, match=rf"is HDR \({name}\).*Convert it to SDR first"):
        process_video(tmp_path / "in.mp4", tmp_path / "out.mp4", identity)
    assert [path.name for path in tmp_path.iterdir()] == ["in.mp4"]


def _sound_only(folder: Path) -> Path:
    path = folder / "sound.m4a"
    make_clip(folder / "in.mp4", frames=3)
    with av.open(str(folder / "in.mp4")) as old, av.open(str(path), "w") as new:
        stream = new.add_stream_from_template(old.streams.audio[0], opaque=True)
        for packet in old.demux(audio=0):
            if packet.size:
                packet.stream = stream
                new.mux(packet)
    return path


def _no_frames(folder: Path) -> Path:
    path = folder / "none.mp4"
    make_clip(folder / "in.mp4", frames=3)
    process_video(folder / "in.mp4", path, identity)
    content = path.read_bytes()
    path.write_bytes(content[: content.index(b"mdat") + 4])
    return path


def _written(content: bytes, name: str = "file.mp4") -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return write


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (lambda folder: folder / "absent.mp4", "absent.mp4 does not exist: check the name"),
        (lambda folder: folder, "is a folder: name a video in it"),
        (_written(b"plain text, no video at all\n" * 50), "is not a video, or its beginning is damaged"),
        (_written(b"plain text\n" * 50, "file.txt"), "is not a video, or its beginning is damaged"),
        (_written(marked_picture(picture(1), ".png"), "file.png"), "is not a video, or its beginning is damaged"),
        (_written(b""), "is not a video, or its beginning is damaged"),
        (_sound_only, "has no video stream: give a video, not a sound file"),
        (_no_frames, "has no frame that can be decoded: is the file complete?"),
    ],
    ids=["absent", "folder", "text", "named text", "picture", "empty", "sound", "no frames"],
)
def test_a_source_that_is_no_video(tmp_path: Path, source: Callable[[Path], Path], message: str) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(VideoError) as caught:
        process_video(source(tmp_path / "in"), tmp_path / "out.mp4", identity)
    assert message in str(caught.value)
    assert isinstance(caught.value, FaceGraphError)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize(
    ("target", "options", "error", "message"),
    [
        ("out.avi", {}, VideoError, "choose one of .mp4, .m4v, .mov, .mkv"),
        ("absent/out.mp4", {}, OutputError, "does not exist; create it first"),
        ("there.mp4", {}, OutputError, "exists already"),
        ("in.mp4", {"overwrite": True}, OutputError, "is the video itself"),
        ("folder.mp4", {"overwrite": True}, OutputError, "exists already"),
        ("out.mp4", {"in_flight": 0}, InputError, "in_flight is 0"),
        ("out.mp4", {"preset": "fastest"}, InputError, "there is no x264 preset 'fastest'"),
        ("out.mp4", {"crf": 52}, InputError, "crf is 52"),
    ],
)
def test_a_target_or_option_that_cannot_be(
    tmp_path: Path, target: str, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    make_clip(tmp_path / "in.mp4", frames=3)
    (tmp_path / "there.mp4").write_bytes(b"mine")
    (tmp_path / "folder.mp4").mkdir()
    before = sorted(tmp_path.iterdir())
    with pytest.raises(error, match=message):
        process_video(tmp_path / "in.mp4", tmp_path / target, identity, **options)
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "there.mp4").read_bytes() == b"mine"


def test_overwrite_replaces_the_target(tmp_path: Path) -> None:
    make_clip(tmp_path / "in.mp4", frames=3)
    (tmp_path / "out.mp4").write_bytes(b"old")
    process_video(tmp_path / "in.mp4", tmp_path / "out.mp4", identity, overwrite=True)
    assert len(read_clip(tmp_path / "out.mp4").times_s) == 3


def test_sound_that_the_container_does_not_take(tmp_path: Path) -> None:
    make_clip(tmp_path / "in.mkv", frames=3, audio="pcm_u8")
    with pytest.raises(VideoError, match=r"\.mp4 does not take the sound as it is \(pcm_u8\): choose \.mov or \.mkv"):
        process_video(tmp_path / "in.mkv", tmp_path / "out.mp4", identity)
    process_video(tmp_path / "in.mkv", tmp_path / "out.mkv", identity)
    assert read_clip(tmp_path / "out.mkv").audio == read_clip(tmp_path / "in.mkv").audio


def test_a_transform_that_returns_another_size(tmp_path: Path) -> None:
    make_clip(tmp_path / "in.mp4", frames=3)
    with pytest.raises(InputError, match=r"returned UINT8 \[32, 48, 3\] for a frame UINT8 \[64, 96, 3\]"):
        process_video(tmp_path / "in.mp4", tmp_path / "out.mp4", lambda image, state: (image[::2, ::2], state))


def test_an_error_of_the_transform_ends_the_run_and_leaves_nothing_behind(tmp_path: Path) -> None:
    make_clip(tmp_path / "in.mp4", frames=30)
    threads = set(threading.enumerate())

    def fails(image: Image, state: None) -> tuple[Image, None]:
        if number_of(image) == 17:
            raise FaceGraphError("the server is gone")
        return image, None

    with pytest.raises(FaceGraphError, match="the server is gone"):
        process_video(tmp_path / "in.mp4", tmp_path / "out.mp4", fails)
    assert [path.name for path in tmp_path.iterdir()] == ["in.mp4"]
    assert set(threading.enumerate()) <= threads


@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_what_can_be_decoded_of_a_file_that_is_cut_off_is_kept_and_the_place_is_told(
    tmp_path: Path, suffix: str
) -> None:
    source = tmp_path / f"in{suffix}"
    make_clip(tmp_path / f"plain{suffix}", frames=100)
    process_video(tmp_path / f"plain{suffix}", source, identity)  # with its index in front, where it is an MP4
    content = source.read_bytes()
    source.write_bytes(content[: len(content) * 6 // 10])
    report = process_video(source, tmp_path / f"out{suffix}", identity)
    clip = read_clip(tmp_path / f"out{suffix}")
    assert 30 < report.frames == len(clip.times_s) < 80
    numbers = [number_of(image) for image in clip.images_rgb]
    assert numbers[:-4] == list(range(report.frames))[:-4]  # the last ones may lack what they refer to
    if suffix == ".mp4":
        last_s = float(clip.times_s[-1])
        assert len(report.remarks) == 1
        assert (
            f"in.mp4 is cut off, {100 - report.frames} frames short; the last good frame is at {clock(last_s)}"
            in (report.remarks[0])
        )


def test_frames_that_cannot_be_decoded_are_left_out_and_told(tmp_path: Path) -> None:
    source = tmp_path / "in.mov"
    make_clip(source, frames=20, codec="png", pixel_format="rgb24", audio=None)
    old = read_clip(source)
    content = bytearray(source.read_bytes())
    packet = old.video_packets[10][2]
    at = content.index(packet)
    content[at : at + len(packet)] = bytes(len(packet))
    source.write_bytes(content)
    report = process_video(source, tmp_path / "out.mov", identity)
    new = read_clip(tmp_path / "out.mov")
    assert report.frames == 19
    assert new.times_s == [time for i, time in enumerate(old.times_s) if i != 10]
    assert "1 packets that cannot be decoded" in report.remarks[0]


def test_without_pyav_the_message_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['av'] = None\n"
        "from facegraph_client._video_pipeline import process_video\n"
        "from facegraph_client import SetupError\n"
        "try:\n    process_video('in.mp4', 'out.mp4', None)\n"
        "except SetupError as error:\n    print(error)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert result.stdout == "video needs PyAV, which is not installed: pip install 'facegraph[video]'\n"


def test_importing_the_video_modules_leaves_pyav_alone() -> None:
    code = "import sys, facegraph_client._video_live, facegraph_client._video_pipeline; print('av' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "False\n"
    assert pyav() is av


@pytest.mark.parametrize(
    ("time_s", "shown"), [(0, "0:00.0"), (-1, "0:00.0"), (59.96, "1:00.0"), (123.45, "2:03.5"), (3725.04, "1:02:05.0")]
)
def test_clock(time_s: float, shown: str) -> None:
    assert clock(time_s) == shown


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert not [t.name for t in threading.enumerate() if t.name.startswith("facegraph-")]
