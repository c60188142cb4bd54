"""Measure the memory of a process that serves frames, with CUDA graphs and without: one fresh process for each.

``python -m facegraph_server.gpu_check.memory BUCKET DEVICE on|off`` prints the bytes. Within one process the two would
share torch's memory pool, and CUDA's own memory for graphs shows in no counter of torch.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import numpy as np

_RUNS = 10
_TIMEOUT_S = 90.0


def process_memory_bytes(bucket: str, device: str, *, graphs: bool) -> int:
    """Start a process and return what it holds: memory of the GPU, CUDA's context included, or on a CPU its peak RSS.

    Raises:
        RuntimeError: the process failed; the message is the end of what it said.
        subprocess.TimeoutExpired: it took more than 90 s.

    """
    command = [sys.executable, "-m", "facegraph_server.gpu_check.memory", bucket, device, "on" if graphs else "off"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    before = used_bytes(device)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the process that measures memory failed: {done.stderr.strip()[-300:]}")
    return int(done.stdout.split()[-1]) - before


def used_bytes(device: str) -> int:
    """Return the GPU memory in use by everybody; 0 on a CPU."""
    if device == "cpu":
        return 0
    import torch  # noqa: PLC0415

    free, total = torch.cuda.mem_get_info(device)
    return total - free


def main(arguments: list[str]) -> int:
    """Serve some frames and return how much memory is then in use."""
    from facegraph_server.gpu_check.bare_machine import stand_in_for_absent_packages  # noqa: PLC0415

    stand_in_for_absent_packages()
    from facegraph_server.contract import VERTICES  # noqa: PLC0415
    from facegraph_server.fused_service import FusedFrames, FusedSettings  # noqa: PLC0415
    from facegraph_server.gpu_check.cases import sample_frame  # noqa: PLC0415

    bucket, device, graphs = arguments
    parameters = {"BUCKETS": bucket, "FACES": "4", "DEVICE": device, "GRAPHS": graphs}
    settings = FusedSettings.from_parameters(parameters)
    width_px, height_px, _ = settings.buckets[0]
    frame = sample_frame(width_px, height_px)
    with FusedFrames(settings, tracking=True) as frames:
        faces = frames.find(frame, prior_px=np.zeros((0, VERTICES, 3), np.float32))
        for _ in range(_RUNS if device != "cpu" else 1):
            faces = frames.find(frame, prior_px=faces.landmarks_px)
        return used_bytes(device) or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    sys.stdout.write(f"{main(sys.argv[1:])}\n")
