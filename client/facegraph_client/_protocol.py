"""What facegraph says to Triton and how it reads the answer: pure functions that both clients share.

The tensors are those of the repository's public models. Options travel as input tensors and only where they differ
from the server's default, so that a plain request has one input.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from facegraph_client._errors import (
    FaceGraphError,
    ImageError,
    InputError,
    ModelUnavailableError,
    ServerError,
    ServerOverloadedError,
    ServerTimeoutError,
    ServerUnavailableError,
)
from facegraph_client._results import VERTICES, Face, FaceLandmarks

LANDMARKS_MODEL = "face_landmarks"
RECONSTRUCTION_MODEL = "face_reconstruction"
TRACKING_MODEL = "face_tracking"
SWAP_MODEL = "face_swap"
PHOTO_SWAP_MODEL = "face_swap_image"

DEFAULT_TIMEOUT_S = 30.0
DEFAULT_READY_TIMEOUT_S = 60.0
READY_CHECK_TIMEOUT_S = 2.0
READY_POLL_S = 0.1
DEFAULT_TEXTURE_SIZE_PX = 1024
TEXTURE_SIZE_RANGE_PX = (64, 4096)

SELECTOR_MODES = ("one", "many", "reference")
SELECTOR_ORDERS = ("large-small", "small-large", "left-right", "right-left", "top-bottom", "bottom-top")

_LANDMARK_OUTPUTS = ("LANDMARKS", "BOX", "SCORE")
_SWAP_OUTPUTS = ("SWAPPED", "LANDMARKS", "SOURCE_INDEX")
_FACE_OUTPUTS = (*_LANDMARK_OUTPUTS, "VERTICES", "POSE", "TEXTURE", "COVERAGE")
COMPUTE_PARTS = ("compute_input", "compute_infer", "compute_output")
"""What Triton's statistics call the parts of a model's own time."""

_PHOTO_MODELS = (LANDMARKS_MODEL, RECONSTRUCTION_MODEL, PHOTO_SWAP_MODEL)
_NANOSECONDS_PER_MS = 1e6
_LONGEST_TIMEOUT_S = 86_400
_MAX_PORT = 65535


class Tensor(NamedTuple):
    """One input: its name, Triton's name for its type, and the array."""

    name: str
    datatype: str
    array: NDArray[np.generic]


class Call(NamedTuple):
    """One inference request."""

    model: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[str, ...]


class SwappedPhoto(NamedTuple):
    """A photo with swapped faces.

    Attributes:
        encoded: the photo in the format in which it was sent, or as PNG, marked as a composite; the very bytes that
            were sent where no face was swapped.
        faces: how many faces it shows.
        swapped: how many of them were swapped.

    """

    encoded: bytes
    faces: int
    swapped: int


class Address(NamedTuple):
    """Where a server is: ``protocol`` is ``grpc`` or ``http``, ``target`` what the transport connects to."""

    protocol: str
    target: str

    def __str__(self) -> str:
        return f"http://{self.target}" if self.protocol == "http" else self.target


def parse_address(url: str) -> Address:
    """Read ``HOST:PORT`` or ``grpc://HOST:PORT`` (gRPC), ``http://HOST:PORT`` or a gRPC name such as ``dns:///HOST:PORT``.

    Raises:
        InputError: the address has no port or an unknown scheme.

    """
    if re.match(r"(dns|ipv4|ipv6|unix):", url):  # the name resolvers of gRPC, for several replicas
        return Address("grpc", url)
    scheme, separator, rest = url.partition("://")
    protocol, target = (scheme, rest.rstrip("/")) if separator else ("grpc", url)
    if protocol not in ("grpc", "http"):
        raise InputError(f"server address {url!r}: unknown scheme {scheme!r}; use HOST:PORT, grpc:// or http://")
    host_port = re.fullmatch(r"(?:\[[0-9a-fA-F:.]+\]|[^:/\s]+):(\d{1,5})", target)
    if not host_port or not 0 < int(host_port[1]) <= _MAX_PORT:
        raise InputError(
            f"server address {url!r}: write HOST:PORT, for example 127.0.0.1:8001 (gRPC) or http://127.0.0.1:8000"
        )
    return Address(protocol, target)


def checked_timeout(timeout_s: float) -> float:
    """Return the timeout, or raise :class:`InputError` unless it is a positive number of seconds, up to a day."""
    if not 0 < timeout_s <= _LONGEST_TIMEOUT_S:
        raise InputError(f"the timeout must be more than 0 and at most {_LONGEST_TIMEOUT_S} seconds, not {timeout_s}")
    return float(timeout_s)


def not_ready_message(address: Address, timeout_s: float) -> str:
    """Say that waiting for the server was in vain."""
    return f"the server at {address} was not ready within {timeout_s:g} s: its log says what it waits for"


def landmarks_call(encoded: bytes, *, search_tiles: bool) -> Call:
    """Ask for the landmarks of every face in an encoded photo."""
    return Call(LANDMARKS_MODEL, _photo_inputs(encoded, search_tiles), _LANDMARK_OUTPUTS)


def reconstruction_call(encoded: bytes, *, search_tiles: bool, texture_size_px: int) -> Call:
    """Ask for a textured mesh of every face in an encoded photo.

    Raises:
        InputError: the texture size is out of range.

    """
    smallest, largest = TEXTURE_SIZE_RANGE_PX
    if not smallest <= texture_size_px <= largest:
        raise InputError(f"the texture size must be from {smallest} to {largest} px, not {texture_size_px}")
    inputs = _photo_inputs(encoded, search_tiles)
    if texture_size_px != DEFAULT_TEXTURE_SIZE_PX:
        inputs = (*inputs, Tensor("TEXTURE_SIZE", "INT32", np.array([texture_size_px], np.int32)))
    return Call(RECONSTRUCTION_MODEL, inputs, _FACE_OUTPUTS)


def tracking_call(frame_rgb: NDArray[np.uint8], prior: Sequence[FaceLandmarks]) -> Call:
    """Ask for the faces in a video frame, given those of the frame before.

    Raises:
        InputError: the frame is not UINT8 [H,W,3], or the prior faces have unequal numbers of landmarks.

    """
    if len({len(face.landmarks_px) for face in prior}) > 1:
        raise InputError("the prior faces have different numbers of landmarks: pass the result of one call")
    # Triton takes no empty batch: one face of zeros says that there is none.
    faces = np.stack([face.landmarks_px for face in prior]) if prior else np.zeros((1, VERTICES, 3), np.float32)
    inputs = (
        Tensor("FRAME", "UINT8", checked_frame(frame_rgb)),
        Tensor("PRIOR", "FP32", np.ascontiguousarray(faces, np.float32)),
    )
    return Call(TRACKING_MODEL, inputs, _LANDMARK_OUTPUTS)


def checked_frame(frame_rgb: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the frame, contiguous.

    Raises:
        InputError: it is not UINT8 [H,W,3].

    """
    frame = np.asarray(frame_rgb)
    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3 or frame.size == 0:  # noqa: PLR2004
        raise InputError(f"a frame must be UINT8 [H,W,3] RGB, not {frame.dtype.name.upper()} {list(frame.shape)}")
    return np.ascontiguousarray(frame)


def checked_selector(mode: str, order: str) -> tuple[str, str]:
    """Return the face selector's mode and order.

    Raises:
        InputError: one of them is unknown.

    """
    for name, value, known in (("mode", mode, SELECTOR_MODES), ("order", order, SELECTOR_ORDERS)):
        if value not in known:
            raise InputError(f"there is no face selector {name} {value!r}; choose one of {', '.join(known)}")
    return mode, order


def swap_call(
    frame: NDArray[np.uint8],
    prior_px: NDArray[np.float32],
    prior_source: NDArray[np.int32],
    sources: tuple[NDArray[np.uint8], NDArray[np.uint8]],
    selector: tuple[str, str],
) -> Call:
    """Ask for a frame with its faces swapped.

    Args:
        frame: UINT8 [H,W,3], contiguous.
        prior_px: FP32 [n,468,3] the faces of the frame before; n may be 0.
        prior_source: INT32 [n] what each of them got.
        sources: textures UINT8 [S,T,T,3] and coverages UINT8 [S,T,T].
        selector: mode and order.

    """
    if not len(prior_px):
        prior_px, prior_source = np.zeros((1, VERTICES, 3), np.float32), np.full(1, -1, np.int32)
    mode, order = (np.array([word.encode()], np.object_) for word in selector)
    inputs = (
        Tensor("FRAME", "UINT8", frame),
        Tensor("PRIOR", "FP32", prior_px),
        Tensor("PRIOR_SOURCE", "INT32", prior_source),
        Tensor("TEXTURE", "UINT8", sources[0]),
        Tensor("COVERAGE", "UINT8", sources[1]),
        Tensor("FACE_SELECTOR_MODE", "BYTES", mode),
        Tensor("FACE_SELECTOR_ORDER", "BYTES", order),
    )
    return Call(SWAP_MODEL, inputs, _SWAP_OUTPUTS)


def photo_swap_call(source: bytes, target: bytes, selector: tuple[str, str], *, search_tiles: bool) -> Call:
    """Ask for a photo with the faces of another one."""
    mode, order = (np.array([word.encode()], np.object_) for word in selector)
    inputs = (
        *_photo_inputs(target, search_tiles),
        Tensor("SOURCE", "BYTES", np.array([source], np.object_)),
        Tensor("FACE_SELECTOR_MODE", "BYTES", mode),
        Tensor("FACE_SELECTOR_ORDER", "BYTES", order),
    )
    return Call(PHOTO_SWAP_MODEL, inputs, ("SWAPPED_IMAGE", "SOURCE_INDEX"))


def parse_photo_swap(outputs: Mapping[str, NDArray[np.generic]]) -> SwappedPhoto:
    """Return the encoded photo and how many faces were swapped.

    Raises:
        ServerError: the outputs are not the contract's.

    """
    try:
        encoded, chosen = outputs["SWAPPED_IMAGE"], np.asarray(outputs["SOURCE_INDEX"], np.int32)
        return SwappedPhoto(bytes(encoded[0]), len(chosen), int((chosen >= 0).sum()))
    except (KeyError, IndexError, TypeError) as error:
        raise _foreign_answer(outputs) from error


def parse_swap(
    outputs: Mapping[str, NDArray[np.generic]], frame: NDArray[np.uint8]
) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.int32]]:
    """Return the swapped frame, its landmarks and the source of each face.

    Raises:
        ServerError: the outputs are not the contract's.

    """
    try:
        swapped, landmarks, source = (outputs[name] for name in _SWAP_OUTPUTS)
    except KeyError as error:
        raise _foreign_answer(outputs) from error
    if swapped.shape != frame.shape or landmarks.shape != (len(source), VERTICES, 3):
        raise _foreign_answer(outputs)
    return np.asarray(swapped, np.uint8), np.asarray(landmarks, np.float32), np.asarray(source, np.int32)


def parse_landmarks(outputs: Mapping[str, NDArray[np.generic]]) -> list[FaceLandmarks]:
    """Split the batched outputs into one result per face.

    Raises:
        ServerError: the outputs are not the contract's.

    """
    return [
        FaceLandmarks(landmarks_px=landmarks, box_xyxy=box, score=score)
        for landmarks, box, score in _per_face(outputs, _LANDMARK_OUTPUTS)
    ]


def parse_faces(outputs: Mapping[str, NDArray[np.generic]]) -> list[Face]:
    """Split the batched outputs into one result per face.

    Raises:
        ServerError: the outputs are not the contract's.

    """
    return [
        Face(
            landmarks_px=landmarks,
            box_xyxy=box,
            score=score,
            vertices_cm=vertices,
            pose=pose,
            texture_rgb=texture,
            coverage=coverage,
        )
        for landmarks, box, score, vertices, pose, texture, coverage in _per_face(outputs, _FACE_OUTPUTS)
    ]


def output_arrays(
    as_numpy: Callable[[str], NDArray[np.generic] | None], names: Sequence[str]
) -> dict[str, NDArray[np.generic]]:
    """Collect the outputs that an answer has."""
    arrays = {name: as_numpy(name) for name in names}
    return {name: array for name, array in arrays.items() if array is not None}


def compute_times_ms(stages: Mapping[str, Mapping[str, int]]) -> dict[str, float]:
    """Turn Triton's statistics into milliseconds.

    Args:
        stages: for each model the nanoseconds of each of :data:`COMPUTE_PARTS`.

    """
    return {model: sum(nanoseconds.values()) / _NANOSECONDS_PER_MS for model, nanoseconds in stages.items()}


def server_error(status: str | None, message: str, *, model: str, address: Address, timeout_s: float) -> FaceGraphError:
    """Turn a failed request into one of our errors, with a message that says what to do.

    Args:
        status: gRPC's ``StatusCode.NAME``, HTTP's number as text, or None where there was no answer.
        message: what the server or the transport said.
        model: the model asked.
        address: the server asked.
        timeout_s: the timeout that the request ran under.

    """
    code = (status or "").removeprefix("StatusCode.")
    message = _ENSEMBLE_PREFIX.sub("", message).strip()
    kind = next(
        (kind for codes, pattern, kind in _ERROR_RULES if code in codes or (pattern and pattern.search(message))),
        ServerError,
    )
    if kind is InputError and model in _PHOTO_MODELS and not _CONTRACT_COMPLAINT.search(message):
        kind = ImageError  # the photo is all that such a request carries
    return kind(_advice(kind, message, model, address, timeout_s))


_ENSEMBLE_PREFIX = re.compile(r"^(?:in ensemble '[^']*', )+")
_CONTRACT_COMPLAINT = re.compile(
    r"unexpected (?:datatype|shape|inference)|expected \d+ inputs|TEXTURE_SIZE|SEARCH_TILES"
)
_ERROR_RULES: tuple[tuple[tuple[str, ...], re.Pattern[str] | None, type[FaceGraphError]], ...] = (
    # The message first where Triton gives several meanings the same code: a full queue and a missing version are
    # UNAVAILABLE like a server that shuts down, and over HTTP almost everything is 400.
    (("429",), re.compile(r"exceeds? maximum queue size", re.IGNORECASE), ServerOverloadedError),
    ((), re.compile(r"message larger than max|RESOURCE_EXHAUSTED: .*message size"), ServerError),
    (("RESOURCE_EXHAUSTED",), None, ServerOverloadedError),
    # A model that the server knows but does not run at the moment: it is loading or unloading.
    ((), re.compile(r"has no available version", re.IGNORECASE), ServerUnavailableError),
    (("NOT_FOUND", "404"), re.compile(r"request for unknown model", re.IGNORECASE), ModelUnavailableError),
    (("DEADLINE_EXCEEDED", "499", "504"), re.compile(r"request timeout expired", re.IGNORECASE), ServerTimeoutError),
    (("UNAVAILABLE", "CANCELLED", "502", "503"), None, ServerUnavailableError),
    (("INVALID_ARGUMENT", "400"), None, InputError),
)


def _advice(kind: type[FaceGraphError], message: str, model: str, address: Address, timeout_s: float) -> str:
    if kind is ServerOverloadedError:
        return f"the server at {address} is busy, its queue is full: try again later or send less at a time ({message})"
    if kind is ModelUnavailableError:
        return f"the server at {address} does not serve {model!r}: start it on facegraph's model_repository ({message})"
    if kind is ServerTimeoutError:
        return f"no answer from {address} within {timeout_s:g} s: allow more time, or send a smaller photo"
    if kind is ServerUnavailableError:
        return (
            f"no server is ready at {address}: start one with scripts/serve.py, wait until it says ready, or check the"
            f" address ({message or 'no reason given'})"
        )
    if kind is ServerError:
        return f"the server at {address} failed: {message or 'no reason given'}; its log says more"
    return message or "the server refused the request and did not say why"


def _photo_inputs(encoded: bytes, search_tiles: bool) -> tuple[Tensor, ...]:
    image = Tensor("IMAGE", "BYTES", np.array([encoded], np.object_))  # np.bytes_ would drop trailing zeros
    return (image, Tensor("SEARCH_TILES", "BOOL", np.array([True]))) if search_tiles else (image,)


def _per_face(outputs: Mapping[str, NDArray[np.generic]], names: tuple[str, ...]) -> list[tuple[Any, ...]]:
    try:
        return list(zip(*(outputs[name] for name in names), strict=True))
    except (KeyError, ValueError) as error:
        raise _foreign_answer(outputs) from error


def _foreign_answer(outputs: Mapping[str, NDArray[np.generic]]) -> ServerError:
    shapes = {name: list(array.shape) for name, array in outputs.items()}
    return ServerError(f"the server's answer is not facegraph's ({shapes}): its version differs from the client's")
