"""Let the first half of the GPU check run where there are torch and NumPy and nothing else.

A rented GPU often has just that, and no way to install more. On the path to the fused frame function lie imports that
it does not use (OpenCV, Pillow) and one that it does: ``onnx``, to read the two networks.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

_UNUSED = ("PIL", "cv2")
_FLOAT, _INT64 = 1, 7  # onnx.TensorProto.DataType
_DTYPES: dict[int, np.dtype[Any]] = {_FLOAT: np.dtype("<f4"), _INT64: np.dtype("<i8")}


def stand_in_for_absent_packages() -> list[str]:
    """Put stand-ins for what is not installed into ``sys.modules``; return the names of what is absent."""
    absent = [name for name in _UNUSED if name not in sys.modules and find_spec(name) is None]
    for name in absent:
        sys.modules[name] = _Unused(name)
    if "onnx" not in sys.modules and find_spec("onnx") is None:
        absent.append("onnx")
        _install_onnx()
    return absent


def is_stand_in(name: str) -> bool:
    """Tell whether a package was absent and only its stand-in is there."""
    return isinstance(sys.modules.get(name), _Unused)


class _Unused(ModuleType):
    """A package that is imported and not used; whatever is taken from it fails when it is called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def absent(*_: object, **__: object) -> Any:
            raise ModuleNotFoundError(f"{self.__name__}.{name} is needed, and {self.__name__} is not installed")

        return absent


def _install_onnx() -> None:
    """Stand in for as much of ``onnx`` and of protobuf as ``torch_networks`` uses."""
    onnx = ModuleType("onnx")
    numpy_helper = SimpleNamespace(to_array=_to_array)
    contents = {
        "load": lambda path: SimpleNamespace(graph=read_onnx_graph(Path(path).read_bytes())),
        "helper": SimpleNamespace(get_attribute_value=lambda attribute: attribute.value),
        "numpy_helper": numpy_helper,
        "TensorProto": SimpleNamespace(FLOAT=_FLOAT),
    }
    vars(onnx).update(contents)
    message = ModuleType("google.protobuf.message")
    vars(message)["DecodeError"] = ValueError
    sys.modules["onnx"] = onnx
    if find_spec("google") is None or find_spec("google.protobuf") is None:
        sys.modules |= {"google": ModuleType("google"), "google.protobuf": ModuleType("google.protobuf")}
        sys.modules["google.protobuf.message"] = message


def read_onnx_graph(data: bytes) -> SimpleNamespace:
    """Return the graph of an ONNX file: ``node``, ``initializer``, ``input`` and ``output``, as ``onnx`` names them.

    Field numbers are those of onnx.proto. Only what our two networks hold is read.

    Raises:
        ValueError: this is no ONNX model.

    """
    (graph,) = _submessages(data, 7)
    return SimpleNamespace(
        node=[_node(field) for field in _submessages(graph, 1)],
        initializer=[_tensor(field) for field in _submessages(graph, 5)],
        input=[SimpleNamespace(name=_text(field, 1)) for field in _submessages(graph, 11)],
        output=[SimpleNamespace(name=_text(field, 1)) for field in _submessages(graph, 12)],
    )


def _node(data: bytes) -> SimpleNamespace:
    return SimpleNamespace(
        input=[name.decode() for name in _submessages(data, 1)],
        output=[name.decode() for name in _submessages(data, 2)],
        name=_text(data, 3),
        op_type=_text(data, 4),
        attribute=[_attribute(field) for field in _submessages(data, 5)],
    )


def _attribute(data: bytes) -> SimpleNamespace:
    kind = _integers(data, 20)[0]
    if kind == 1:  # FLOAT
        value: Any = struct.unpack("<f", _submessages(data, 2)[0])[0]
    elif kind == 2:  # noqa: PLR2004  INT
        value = _integers(data, 3)[0]
    elif kind == 3:  # noqa: PLR2004  STRING
        (value,) = _submessages(data, 4)
    elif kind == 7:  # noqa: PLR2004  INTS
        value = _integers(data, 8)
    else:
        raise ValueError(f"attribute {_text(data, 1)} has the type {kind}, which is not read without onnx")
    return SimpleNamespace(name=_text(data, 1), value=value)


def _tensor(data: bytes) -> SimpleNamespace:
    (raw,) = _submessages(data, 9)
    array = np.frombuffer(raw, _DTYPES[_integers(data, 2)[0]]).reshape(_integers(data, 1))
    return SimpleNamespace(name=_text(data, 8), array=array)


def _to_array(tensor: SimpleNamespace) -> NDArray[Any]:
    array: NDArray[Any] = tensor.array
    return array


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field of a protobuf message."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if kind == 2:  # noqa: PLR2004  length-delimited
            length, at = _varint(data, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError("this is no ONNX model")
        yield number, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:  # noqa: PLR2004
            return (value - (1 << 64) if value >> 63 else value), at


def _submessages(data: bytes, number: int) -> list[bytes]:
    """Return every occurrence of a field that is not an integer: a message, a string, bytes, a float."""
    return [value for found, value in _fields(data) if found == number and isinstance(value, bytes)]


def _text(data: bytes, number: int) -> str:
    return next((value.decode() for value in _submessages(data, number)), "")


def _integers(data: bytes, number: int) -> list[int]:
    """Return a repeated integer field, written packed or one by one."""
    values: list[int] = []
    for found, value in _fields(data):
        if found != number:
            continue
        if isinstance(value, int):
            values.append(value)
            continue
        at = 0
        while at < len(value):
            one, at = _varint(value, at)
            values.append(one)
    return values
