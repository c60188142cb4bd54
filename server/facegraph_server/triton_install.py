"""Find a real Triton on this machine: NVIDIA's container installation, or the one inside the pytriton wheel."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from facegraph_server.errors import ServerStartError

_CONTAINER_ROOT = Path("/opt/tritonserver")

# With as many arenas as threads ask for, Triton's memory grew for minutes by half before it levelled off.
_FEW_ARENAS = {"MALLOC_ARENA_MAX": "2"}

# glibc otherwise returns every picture-sized block to the kernel and faults it in again page by page for the next
# picture: 1.4 ms of system time a 512x512 photo. Blocks of 64 MB and more still go back at once.
_KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(64 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(128 << 20),
    "MALLOC_TOP_PAD_": str(16 << 20),
}


@dataclass(frozen=True)
class TritonInstallation:
    """What it takes to start one.

    Attributes:
        binary: the ``tritonserver`` program.
        backend_directories: folders of backends, one subfolder each.
        stub: the Python backend's stub for the running Python, None where the backend's own is the right one.
        library_path: folder of shared libraries to add, or None.
        caches: folder of response caches, or None for the binary's own default.

    """

    binary: Path
    backends: Path
    stub: Path | None = None
    library_path: Path | None = None
    caches: Path | None = None

    @property
    def has_tensorrt(self) -> bool:
        """Whether the TensorRT backend is there."""
        return (self.backends / "tensorrt").is_dir()

    def prepare_backends(self, folder: Path) -> Path:
        """Return a backend folder whose Python backend runs this Python, made inside ``folder`` if need be."""
        if self.stub is None:
            return self.backends
        target = folder / "backends"
        shutil.copytree(self.backends, target)
        shutil.copy2(self.stub, target / "python" / self.stub.name)
        return target

    def environment(self) -> dict[str, str]:
        """Return the environment for the server: this one, plus what the binary and its Python steps need."""
        environment = dict(os.environ)
        # The stub embeds an isolated interpreter: it ignores PYTHONPATH and finds its packages, virtual environment
        # and editable installs included, through the first python3 on PATH.
        environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        environment = _KEEP_FREED_MEMORY | _FEW_ARENAS | environment
        if self.library_path is not None:
            # LIBDIR: the stub links libpython, which may lie beside this interpreter only.
            folders = [str(self.library_path), environment.get("LD_LIBRARY_PATH"), sysconfig.get_config_var("LIBDIR")]
            environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, folders))
        return environment


def find_triton() -> TritonInstallation:
    """Return the container's Triton if there is one, otherwise the wheel's.

    Raises:
        ServerStartError: there is neither.

    """
    container_binary = _CONTAINER_ROOT / "bin" / "tritonserver"
    if container_binary.is_file():
        return TritonInstallation(container_binary, _CONTAINER_ROOT / "backends")
    spec = importlib.util.find_spec("pytriton")
    if spec is None or not spec.submodule_search_locations:
        raise ServerStartError("no Triton on this machine; install one: pip install 'facegraph[server]'")
    package = Path(next(iter(spec.submodule_search_locations)))
    root = package / "tritonserver"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = root / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.is_file():
        raise ServerStartError(
            f"the pytriton wheel has no Python-backend stub for Python {version}; use Python 3.10 to 3.12"
        )
    return TritonInstallation(
        root / "bin" / "tritonserver",
        root / "backends",
        stub,
        package.parent / "nvidia_pytriton.libs",
        root / "caches",
    )
