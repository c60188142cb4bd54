"""Every error that facegraph raises on purpose.

::

    FaceGraphError                 catch this one to catch them all
    ├── InputError                 the caller's input is wrong; the message says what to change
    │   ├── ImageError             a photo cannot be read, decoded or accepted
    │   ├── VideoError             a video cannot be read, decoded or accepted
    │   └── OutputError            a result cannot be written where it was asked for
    ├── ServerError                the server could not answer
    │   ├── ServerUnavailableError nobody answers at the address, or the server is shutting down
    │   ├── ServerTimeoutError     no answer within the timeout
    │   ├── ServerOverloadedError  the server's queue is full
    │   └── ModelUnavailableError  the server answers, but does not serve the model
    └── SetupError                 a package is missing, or building models or starting a server failed
"""

from __future__ import annotations


class FaceGraphError(Exception):
    """Base of all errors that facegraph raises on purpose."""


class InputError(FaceGraphError):
    """The caller's input is wrong."""


class ImageError(InputError):
    """A photo cannot be read, decoded or accepted."""


class VideoError(InputError):
    """A video cannot be read, decoded or accepted, or its streams do not fit the container that was asked for."""


class OutputError(InputError):
    """A result cannot be written where it was asked for."""


class ServerError(FaceGraphError):
    """The server could not answer."""


class ServerUnavailableError(ServerError):
    """Nobody answers at the address, or the server is shutting down."""


class ServerTimeoutError(ServerError):
    """The server did not answer within the timeout."""


class ServerOverloadedError(ServerError):
    """The server's queue is full."""


class ModelUnavailableError(ServerError):
    """The server answers but does not serve the model."""


class SetupError(FaceGraphError):
    """A package is missing, or building the models or starting a server failed."""
