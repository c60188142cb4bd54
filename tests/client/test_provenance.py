from __future__ import annotations

import subprocess
import sys
from io import BytesIO
from pathlib import Path
from xml.etree import ElementTree

import av
import numpy as np
import pytest
from facegraph_client import ImageError
from facegraph_client._errors import VideoError
from facegraph_client._provenance import (
    DIGITAL_SOURCE_TYPE,
    append_xmp_box,
    marked_picture,
    marked_tags,
    read_provenance,
    xmp_packet,
)
from facegraph_client._video_pipeline import process_video
from PIL import Image, ImageCms

from .video_clips import make_clip, picture


def test_the_packet_is_xmp_that_states_the_source_type() -> None:
    text = xmp_packet().decode()
    assert text.startswith('<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>')
    assert text.endswith('<?xpacket end="w"?>')
    found = ElementTree.fromstring(text[text.index("<x:xmpmeta") : text.index("<?xpacket end")]).find(
        "*/*/{http://iptc.org/std/Iptc4xmpExt/2008-02-29/}DigitalSourceType"
    )
    assert found is not None
    assert found.text == DIGITAL_SOURCE_TYPE


@pytest.mark.parametrize("suffix", [".jpg", ".JPEG", ".png", ".webp"])
def test_a_picture_carries_the_mark_its_pixels_and_its_profile(tmp_path: Path, suffix: str) -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    path = tmp_path / f"face{suffix}"
    path.write_bytes(marked_picture(picture(3), suffix, icc_profile=profile))
    assert read_provenance(path) == DIGITAL_SOURCE_TYPE
    with Image.open(path) as image:
        assert image.info["icc_profile"] == profile
        difference = np.asarray(image.convert("RGB")).astype(int) - picture(3)
    assert np.abs(difference).mean() < (0.01 if suffix == ".png" else 3)
    assert xmp_packet() in path.read_bytes()


@pytest.mark.parametrize("suffix", [".png", ".webp"])
def test_a_picture_keeps_its_transparency(suffix: str) -> None:
    alpha = np.tile(np.arange(96, dtype=np.uint8)[None, :, None], (64, 1, 1))
    encoded = marked_picture(np.dstack([picture(3), alpha]), suffix)
    assert np.array_equal(np.asarray(Image.open(BytesIO(encoded)))[..., 3:], alpha)


def test_a_jpeg_of_a_transparent_picture_is_over_white() -> None:
    clear = np.zeros((16, 16, 4), np.uint8)
    assert np.asarray(Image.open(BytesIO(marked_picture(clear, ".jpg")))).min() > 250


def test_a_suffix_that_cannot_be_marked() -> None:
    with pytest.raises(ImageError, match=r"cannot be written as \.bmp: choose \.jpg, \.png or \.webp"):
        marked_picture(picture(0), ".bmp")


def _remux(source: Path, target: Path) -> None:
    with av.open(str(source)) as old, av.open(str(target), "w") as new:
        new.metadata.update(old.metadata)
        streams = {stream.index: new.add_stream_from_template(stream, opaque=True) for stream in old.streams}
        for packet in old.demux():
            if packet.size:
                packet.stream = streams[packet.stream_index]
                new.mux(packet)


@pytest.mark.parametrize("suffix", [".mp4", ".mov", ".mkv"])
def test_a_video_carries_the_mark_and_a_copy_into_another_container_too(tmp_path: Path, suffix: str) -> None:
    make_clip(tmp_path / "in.mp4", frames=3)
    assert read_provenance(tmp_path / "in.mp4") is None
    video = tmp_path / f"out{suffix}"
    process_video(tmp_path / "in.mp4", video, lambda image, state: (image, state))
    assert read_provenance(video) == DIGITAL_SOURCE_TYPE
    for other in (".mp4", ".mov", ".mkv"):
        _remux(video, tmp_path / f"copy{other}")
        assert read_provenance(tmp_path / f"copy{other}") == DIGITAL_SOURCE_TYPE


@pytest.mark.parametrize("suffix", [".mp4", ".mov"])
def test_the_packet_of_a_video_is_read_where_its_comment_was_lost(tmp_path: Path, suffix: str) -> None:
    video = tmp_path / f"in{suffix}"
    make_clip(video, frames=3)
    append_xmp_box(video)
    with av.open(str(video)) as container:
        assert len(list(container.decode(video=0))) == 3
    assert read_provenance(video) == DIGITAL_SOURCE_TYPE


def test_a_comment_is_kept_and_the_mark_is_not_repeated() -> None:
    once = marked_tags({"title": "A", "COMMENT": "Mine"})
    assert once["comment"].startswith("Mine\n")
    assert DIGITAL_SOURCE_TYPE in once["comment"]
    assert marked_tags(once) == once


def test_what_carries_no_mark(tmp_path: Path) -> None:
    Image.fromarray(picture(0)).save(tmp_path / "plain.jpg")
    assert read_provenance(tmp_path / "plain.jpg") is None
    with pytest.raises(ImageError, match=r"absent\.jpg cannot be read: No such file"):
        read_provenance(tmp_path / "absent.jpg")
    (tmp_path / "text.jpg").write_text("no picture\n" * 100)
    with pytest.raises(VideoError, match=r"text\.jpg is not a video"):
        read_provenance(tmp_path / "text.jpg")


def test_pictures_need_no_pyav(tmp_path: Path) -> None:
    (tmp_path / "face.jpg").write_bytes(marked_picture(picture(3), ".jpg"))
    code = (
        "import sys; sys.modules['av'] = None\n"
        "from facegraph_client._provenance import read_provenance\n"
        f"print(read_provenance({str(tmp_path / 'face.jpg')!r}))"
    )
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert result.stdout.strip() == DIGITAL_SOURCE_TYPE
