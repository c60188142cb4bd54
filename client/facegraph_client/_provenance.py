"""The mark that says what a picture or video is: a composite with synthetic elements, in the words of IPTC.

The same statement for every format: the IPTC digital source type, in an XMP packet (JPEG, PNG, WebP, MP4, MOV) and in
the comment tag of a video, which other programs carry along when they copy it into another container.
"""

from __future__ import annotations

import io
import os
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

import numpy as np
from numpy.typing import NDArray
from PIL import Image, PngImagePlugin, UnidentifiedImageError

from facegraph_client._errors import ImageError

DIGITAL_SOURCE_TYPE = "http://cv.iptc.org/newscodes/digitalsourcetype/compositeSynthetic"
"""A term of IPTC's vocabulary "Digital Source Type"."""

_STATEMENT = f"Composite with synthetic elements. Digital source type: {DIGITAL_SOURCE_TYPE}"
_TERM = re.compile(r"http://cv\.iptc\.org/newscodes/digitalsourcetype/[A-Za-z]+")
_PNG_XMP_KEYWORD = "XML:com.adobe.xmp"
_XMP_BOX = UUID("be7acfcb-97a9-42e8-9c71-999491e3afac").bytes
"""The box of a file of the MP4 family that holds XMP (Adobe, XMP specification part 3)."""


def xmp_packet() -> bytes:
    """Return the XMP packet with the mark, UTF-8."""
    return (
        '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>'
        '<x:xmpmeta xmlns:x="adobe:ns:meta/">'
        '<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
        '<rdf:Description rdf:about="" xmlns:Iptc4xmpExt="http://iptc.org/std/Iptc4xmpExt/2008-02-29/">'
        f"<Iptc4xmpExt:DigitalSourceType>{DIGITAL_SOURCE_TYPE}</Iptc4xmpExt:DigitalSourceType>"
        "</rdf:Description></rdf:RDF></x:xmpmeta>"
        '<?xpacket end="w"?>'
    ).encode()


def marked_picture(
    image: NDArray[np.uint8], suffix: str, *, quality: int = 95, icc_profile: bytes | None = None
) -> bytes:
    """Encode a picture with the mark in it.

    Args:
        image: UINT8 [H,W,3] RGB or [H,W,4] RGBA; a JPEG has no transparency and is written over white.
        suffix: ``.jpg``, ``.jpeg``, ``.png`` or ``.webp``.
        quality: of JPEG and WebP, 1 to 100.
        icc_profile: of the photo that the picture comes from, where it has one.

    Raises:
        ImageError: the suffix is another one.

    """
    picture = Image.fromarray(np.ascontiguousarray(image))
    options: dict[str, object] = {"icc_profile": icc_profile} if icc_profile else {}
    match suffix.lower():
        case ".jpg" | ".jpeg":
            kind = "JPEG"
            options |= {"quality": quality, "subsampling": 0, "xmp": xmp_packet()}
            if picture.mode == "RGBA":
                picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")
        case ".png":
            kind = "PNG"
            info = PngImagePlugin.PngInfo()
            info.add_itxt(_PNG_XMP_KEYWORD, xmp_packet().decode())
            options |= {"pnginfo": info}
        case ".webp":
            kind = "WEBP"
            options |= {"quality": quality, "xmp": xmp_packet()}
        case _:
            raise ImageError(f"a marked picture cannot be written as {suffix}: choose .jpg, .png or .webp")
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def marked_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Return the container tags to write so that a video carries the mark; a comment that it has is kept.

    Args:
        tags: the metadata of the video's container.

    """
    comment = next((value for name, value in tags.items() if name.lower() == "comment"), "")
    if DIGITAL_SOURCE_TYPE in comment:
        return {"comment": comment}
    return {"comment": f"{comment}\n{_STATEMENT}" if comment else _STATEMENT}


def append_xmp_box(path: Path) -> None:
    """Add the XMP packet to the end of a finished MP4 or MOV file, where its readers look for it.

    Raises:
        OSError: the file cannot be written to.

    """
    packet = xmp_packet()
    with path.open("ab") as file:
        file.write(struct.pack(">I4s", 8 + len(_XMP_BOX) + len(packet), b"uuid") + _XMP_BOX + packet)


def read_provenance(path: str | os.PathLike[str]) -> str | None:
    """Return the IPTC digital source type that a picture or video carries, a URI; None where it has none.

    Raises:
        ImageError: it is a picture that cannot be read, or no file.
        VideoError: it is neither a picture nor a video.
        SetupError: it is no picture, and PyAV, to read it as a video, is not installed.

    """
    path = Path(path)
    try:
        with Image.open(path) as image:
            packet = image.info.get("xmp") or image.info.get(_PNG_XMP_KEYWORD) or b""
            return _term(packet if isinstance(packet, str) else packet.decode("utf-8", "replace"))
    except UnidentifiedImageError:
        return _read_video(path)
    except (OSError, ValueError, SyntaxError) as error:
        raise ImageError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _read_video(path: Path) -> str | None:
    from facegraph_client._video_reader import open_input  # noqa: PLC0415  (it is not needed for pictures)

    with open_input(path) as container:
        tags = [*container.metadata.values(), *(v for s in container.streams for v in s.metadata.values())]
    return _term("\n".join(tags)) or _term(_xmp_box(path))


def _xmp_box(path: Path) -> str:
    """Return the XMP packet of an MP4 or MOV file, empty where there is none."""
    with path.open("rb") as file:
        while len(header := file.read(8)) == 8:  # noqa: PLR2004
            size, kind = struct.unpack(">I4s", header)
            read = 8
            if size == 1:  # the size follows in 64 bits
                size, read = struct.unpack(">Q", file.read(8))[0], 16
            if size < read:  # 0 is "to the end"; less is no box
                return ""
            if kind == b"uuid" and file.read(16) == _XMP_BOX:
                return file.read(size - read - 16).decode("utf-8", "replace")
            file.seek(size - read - (16 if kind == b"uuid" else 0), io.SEEK_CUR)
    return ""


def _term(text: str) -> str | None:
    found = _TERM.search(text)
    return found[0] if found else None
