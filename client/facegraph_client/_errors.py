"""Every error that facegraph raises on purpose.

::

    FaceGraphError                 catch this one to catch them all
    ├── InputError                 the caller's input is wrong; the message says what to change
    │   ├── ImageError             a photo cannot be read, decoded or accepted
    │   └── OutputError            a result cannot be written where it was asked for
    ├── ServerError                the server could not answer
    │   ├── ServerUnavailableError nobody answers at the address, or the server is shutting down
    │   ├── ServerTimeoutError     no answer within the timeout
    │   ├── ServerOverloadedError  the server's queue is full
    │   └── ModelUnavailableError  the server answers, but does not serve the model
    └── SetupError                 building models or starting a server failed (raised by facegraph_server)
"""

from __future__ import annotations


class FaceGraphError(Exception):
    """Base of all errors that facegraph raises on purpose."""


class InputError(FaceGraphError):
    """The caller's input is wrong."""


class ImageError(InputError):
    """A photo cannot be read, decoded or accepted."""


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
    """Building the models or starting a server failed."""
