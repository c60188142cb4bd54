"""What is read from ``nvidia-smi``, with a stand-in on the PATH."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from facegraph_server.nvidia_smi import GpuIdentity, GpuReading, GpuSampler, identify_gpu, parse_row, read_gpu


def put_on_path(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_readings_and_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        'case "$*" in\n'
        '  "--id=0 --query-gpu=memory.used,"*) echo "1200, 45, [N/A], 250.31" ;;\n'
        '  "--id=0 --query-gpu=name,"*) echo "NVIDIA H200, 570.1, 143771, 700.00, 1980" ;;\n'
        "  *) exit 6 ;;\n"
        "esac"
    )
    put_on_path(tmp_path, monkeypatch, script)
    assert read_gpu() == GpuReading(1200, 45, None, 250.31)
    assert identify_gpu() == GpuIdentity("NVIDIA H200", "570.1", 143771, 700, 1980)
    with GpuSampler(interval_s=0.01) as sampler:
        deadline = time.monotonic() + 5
        while len(sampler.readings) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert sampler.readings[:2] == [GpuReading(1200, 45, None, 250.31)] * 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert read_gpu() is None  # the stand-in knows GPU 0 only


@pytest.mark.parametrize(
    "script", ["exit 9", "echo", "echo 1, 2", "printf '\\n'"], ids=["fails", "nothing", "too-few-fields", "blank"]
)
def test_what_cannot_be_read_is_no_gpu(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_on_path(tmp_path, monkeypatch, script)
    assert read_gpu() is None
    assert identify_gpu() is None
    with GpuSampler() as sampler:
        pass
    assert sampler.readings == []


def test_without_the_program_there_is_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_gpu() is None


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("1200, 45, 97, 250.31\n", ["1200", "45", "97", "250.31"]),
        ("1200, 45, [N/A], 250.31\n99, 1, 2, 3\n", ["1200", "45", "[N/A]", "250.31"]),
        ("\n", None),
    ],
)
def test_rows(text: str, row: list[str] | None) -> None:
    assert parse_row(text) == row
