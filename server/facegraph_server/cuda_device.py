"""Ask the NVIDIA driver which GPU is here, without importing a GPU framework."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

# CUdevice_attribute of the CUDA driver API, cuda.h.
_COMPUTE_CAPABILITY_MAJOR = 75
_COMPUTE_CAPABILITY_MINOR = 76
_NAME_BYTES = 256


@dataclass(frozen=True)
class GpuType:
    """A kind of GPU: what an engine is built for.

    Attributes:
        compute_capability: as NVIDIA writes it, ``"8.9"``.
        name: the product's name; empty where only the compute capability matters.

    """

    compute_capability: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.name or 'any GPU'} of compute capability {self.compute_capability}"


def first_gpu(library: str = "libcuda.so.1") -> GpuType | None:
    """Return the type of CUDA device 0 (``CUDA_VISIBLE_DEVICES`` counts), or None where no driver or GPU answers.

    Args:
        library: the driver's shared library.

    """
    try:
        cuda = ctypes.CDLL(library)
    except OSError:
        return None
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    name = ctypes.create_string_buffer(_NAME_BYTES)
    calls: tuple[Callable[[], int], ...] = (
        lambda: cuda.cuInit(0),
        lambda: cuda.cuDeviceGet(ctypes.byref(device), 0),
        lambda: cuda.cuDeviceGetAttribute(ctypes.byref(major), _COMPUTE_CAPABILITY_MAJOR, device),
        lambda: cuda.cuDeviceGetAttribute(ctypes.byref(minor), _COMPUTE_CAPABILITY_MINOR, device),
        lambda: cuda.cuDeviceGetName(name, _NAME_BYTES, device),
    )
    if any(call() != 0 for call in calls):
        return None
    return GpuType(f"{major.value}.{minor.value}", name.value.decode(errors="replace"))
