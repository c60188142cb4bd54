"""The server side's branch of the error tree whose root is :class:`facegraph_client.FaceGraphError`.

::

    SetupError
    ├── WeightsError           the networks' files cannot be had or are not the pinned ones
    ├── ModelBuildError        a network cannot be translated, checked or compiled
    └── ServerStartError       the embedded Triton did not become ready; the message ends with its log
"""

from __future__ import annotations

from facegraph_client import SetupError


class WeightsError(SetupError):
    """The networks' files cannot be had, or are not the pinned ones."""


class ModelBuildError(SetupError):
    """A network cannot be translated, checked or compiled."""


class ServerStartError(SetupError):
    """The embedded Triton did not become ready."""
