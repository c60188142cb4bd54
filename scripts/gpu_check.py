"""Measure on a GPU what CUDA graphs save and cost. See --help.

Plain argparse and text: the first half must run where there are torch and NumPy and nothing else.
"""

from __future__ import annotations

import argparse
import re
import shlex
import signal
import sys
from pathlib import Path
from types import FrameType

REPOSITORY = Path(__file__).resolve().parents[1]

_PARTS = ("frame", "memory", "network", "tensorrt", "served")
_GRACE_S = 40
_EPILOG = """
examples:
  python scripts/gpu_check.py
  python scripts/gpu_check.py --budget-s 120 --parts frame memory
  python3 scripts/gpu_check.py --parts frame memory network   (a checkout with built models; needs torch and NumPy only)
  python scripts/gpu_check.py --device cpu                    (tries the check on a CPU, measures no graph)

exit status: 0 every target that was measured is reached, 1 one is missed or something failed, 2 it could not run,
3 there is no GPU
"""


def main(arguments: list[str] | None = None) -> int:
    """Measure, print and write the report; return the exit status."""
    options = _parse(arguments)
    for path in ("client", "server"):
        sys.path.append(str(REPOSITORY / path))  # where the packages are not installed
    try:
        from facegraph_server.gpu_check.bare_machine import stand_in_for_absent_packages

        absent = stand_in_for_absent_packages()
        from facegraph_client import FaceGraphError
        from facegraph_server.checks import write_reports
        from facegraph_server.gpu_check.run import GpuCheckPlan, NoGpuError, check_gpu, trial_plan
    except ModuleNotFoundError as error:
        return _refuse(f"{error}; install what measures: pip install -e '.[server,gpu]'", 2)
    for number in (signal.SIGTERM, signal.SIGALRM):  # whoever runs out of patience still gets what there is
        signal.signal(number, _interrupt)
    signal.alarm(int(options.budget_s) + _GRACE_S)
    parts = tuple(options.parts)
    plan = (
        trial_plan(options.budget_s, parts)
        if options.device == "cpu"
        else GpuCheckPlan("cuda", options.budget_s, parts)
    )
    try:
        report = check_gpu(plan, shlex.join(sys.orig_argv), _tell)
        signal.alarm(0)
        if absent:
            report.machine["not installed"] = ", ".join(absent)
        sys.stdout.write(report.to_markdown())
        out = options.out or (REPOSITORY / "perf" / "results" if options.device == "cuda" else None)
        if out is not None:
            gpu = str(report.machine["GPU"]) if options.device == "cuda" else "cpu"
            stem = f"gpu_check-{re.sub(r'[^a-z0-9]+', '-', gpu.lower()).strip('-')}"
            paths = write_reports(out, stem, as_json=report.to_json(), as_markdown=report.to_markdown())
            _tell(f"written: {', '.join(map(str, paths))}")
    except NoGpuError as error:
        return _refuse(str(error), 3)
    except (FaceGraphError, OSError) as error:
        return _refuse(str(error), 2)
    return 0 if report.passed else 1


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Measure on this GPU what CUDA graphs save against eager runs, in one run of limited time: whole "
        "frames, memory, each network, then TensorRT and Triton where they are installed. Judges the targets of "
        "docs/cuda-graphs.md.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu tries the check, all eagerly")
    parser.add_argument(
        "--budget-s", type=float, default=420.0, help="what does not fit any more is left out (default: 420)"
    )
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=_PARTS, help="default: all")
    parser.add_argument(
        "--out", type=Path, help="folder for gpu_check-GPU.json and .md (default: perf/results; on a CPU none)"
    )
    options = parser.parse_args(arguments)
    if options.budget_s <= 0:
        parser.error("--budget-s must be larger than 0")
    return options


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _refuse(text: str, status: int) -> int:
    _tell(f"could not measure: {text}")
    return status


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
