"""PyAV, which only the video functions need: imported at their first use, so that the base install goes without it."""

from __future__ import annotations

from types import ModuleType

from facegraph_client._errors import SetupError


def pyav() -> ModuleType:
    """Return the module ``av``.

    Raises:
        SetupError: PyAV is not installed.

    """
    try:
        import av  # noqa: PLC0415  (optional)
        import av.video.reformatter  # noqa: PLC0415
    except ImportError as error:
        raise SetupError("video needs PyAV, which is not installed: pip install 'facegraph[video]'") from error
    return av
