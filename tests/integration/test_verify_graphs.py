"""The verification itself, on the profiles that a machine without a GPU has."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from facegraph_server.triton_install import find_triton
from facegraph_server.verification.run import VerificationPlan, verify

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "verify_graphs.py"


def run(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=290)


def checks(tmp_path: Path) -> dict[str, dict[str, object]]:
    data = json.loads((tmp_path / "verify_graphs.json").read_text())
    assert data["verified"]
    assert (tmp_path / "verify_graphs.md").read_text().startswith("# CUDA-graph verification: verified")
    return {check["name"]: check for check in data["checks"]}


@pytest.mark.slow
def test_cpu_against_itself(tmp_path: Path) -> None:
    done = run(tmp_path, "--profiles", "cpu", "cpu", "--levels", "networks", "--levels", "soak", "--soak-s", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    found = checks(tmp_path)
    assert found["face_mesh, served: batches 1 to 16, first profile against second"]["found"] == 0
    assert found["face_mesh, batch 16: torch against OpenVINO (no GPU, no graph)"]["passed"]
    assert found["cpu: requests answered"]["found"] >= 6  # type: ignore[operator]
    assert found["cpu: answers that were not those of the start, bit by bit"]["found"] == 0
    for part in ("tritonserver", "Python steps"):  # recorded; two seconds are too short to judge
        assert str(found[f"cpu: growth of memory, {part}"]["found"]).endswith("MiB")
    assert found["cpu: growth of memory, GPU"]["bar"] == "no GPU"


@pytest.mark.slow
def test_fused_against_cpu() -> None:
    plan = VerificationPlan(("fused", "cpu"), levels=("pipeline",))
    report = verify(plan, photos=("plain", "mirrored"))
    assert report.verified, report.to_markdown()
    found = {check.name: check.found for check in report.checks}
    assert found["fused against cpu: faces found"] == "[1, 1]"
    assert found["fused without a GPU: runs without a graph"] >= 26
    assert found["fused without a GPU: runs counted as fallbacks"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(
            (),
            "needs Triton's TensorRT backend",
            marks=pytest.mark.skipif(find_triton().has_tensorrt, reason="this Triton has TensorRT"),
            id="no-tensorrt",
        ),
        pytest.param(("--profiles", "cpu", "fast"), "'fast' is not one of", id="no-such-profile"),
    ],
)
def test_what_cannot_run_ends_with_2(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    done = run(tmp_path, "--levels", "soak", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
