"""GPUs are opened in processes of their own, so that the session holds no memory of any."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from first_hour import __main__, checks, devices, smi
from first_hour.parts import Failed, Machine, Session, Settings

NAME = "NVIDIA H100 80GB HBM3"


def session(folder: Path, *gpus: str) -> Session:
    machine = Machine("cuda" if gpus else "cpu", gpus, "2.13.0", None)
    return Session(folder, machine, Settings("tiny", 60.0), lambda _line: None)


def test_rehearsed_product_is_computed_in_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "randn", lambda *_, **__: pytest.fail("it was computed here"))
    result = checks.product(session(tmp_path))
    assert result.figures["TFLOP/s, slowest"] > 0
    assert "in a bf16 product of 128" in result.text


def replace_process(
    monkeypatch: pytest.MonkeyPatch,
    answer: Callable[[list[str]], subprocess.CompletedProcess[str]],
) -> None:
    """Answer in place of the process that opens the GPUs."""
    stand_in = SimpleNamespace(
        run=lambda command, **_: answer(command), TimeoutExpired=subprocess.TimeoutExpired
    )
    monkeypatch.setattr(devices, "subprocess", stand_in)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two GPUs that only another process may open; the calls of that process."""
    calls: list[str] = []
    answers: dict[str, list[dict[str, Any]]] = {
        "gpus": [{"name": NAME, "memory_bytes": 85_000_000_000}] * 2,
        "products": [
            {"device": f"cuda:{index}", "name": NAME, "size": 8192, "flops": flops}
            for index, flops in enumerate((700e12, 690e12))
        ],
    }

    def answer(command: list[str]) -> subprocess.CompletedProcess[str]:
        calls.append(command[-1])
        return subprocess.CompletedProcess(command, 0, json.dumps(answers[command[-1]]) + "\n", "")

    replace_process(monkeypatch, answer)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: pytest.fail("CUDA was started here"))
    return calls


def test_session_opens_no_gpu_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, two_gpus: list[str]
) -> None:
    monkeypatch.setattr(smi, "query", lambda: [{"name": NAME}] * 2)
    monkeypatch.setattr(smi, "judge", lambda _: [])
    monkeypatch.setattr(smi, "figures", lambda _: {})
    monkeypatch.setattr(smi, "topology", str)
    machine = __main__._machine(rehearse=False)
    assert machine.gpus == (NAME, NAME)
    assert checks.gpus(session(tmp_path, *machine.gpus)).text.count(f"{NAME}: 85.0 GB") == 2
    found = checks.product(session(tmp_path, *machine.gpus))
    assert found.figures == {"TFLOP/s, slowest": 690.0, "TFLOP/s, fastest": 700.0}
    assert two_gpus == ["gpus", "gpus", "products"]


def test_gpus_that_cannot_be_opened_end_the_session_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def answer(command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "Traceback\nRuntimeError: unknown error")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    replace_process(monkeypatch, answer)
    assert __main__.main([f"--out={tmp_path}", "--only=checks: disk"]) == 2
    assert "torch cannot open the GPUs" in (told := capfd.readouterr().err)
    assert "ended with 1: RuntimeError: unknown error" in told


def test_process_that_never_ends_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(command: list[str]) -> subprocess.CompletedProcess[str]:
        raise subprocess.TimeoutExpired(command, 600.0)

    replace_process(monkeypatch, answer)
    with pytest.raises(Failed, match="products-on-cpu` did not end within 600 s"):
        devices.products(on_cuda=False)
