"""Determinism is set and read back; memory is what the device or the system says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch

from lehr_testing.forking import fork
from lehr_trainer.runtime import environment, installed

pytestmark = pytest.mark.xdist_group("forks")

_READ_BACK = """
import json, sys
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.errors import BadConfig
from lehr_trainer.runtime import environment
values = json.loads({values!r})
try:
    environment.prepare_process(TrainConfig.model_validate(values))
except BadConfig as error:
    print("refused:", error)
else:
    print(json.dumps(environment.determinism()))
"""


def read_back(tmp_path: Path, *, deterministic: bool, **variables: str) -> str:
    """The output of a process that was prepared with these settings: they hold for all of it."""
    values = {
        "model": "tiny",
        "data": {"corpus": {"kind": "stdlib"}, "tokenizer": "byte"},
        "batch": {"sequences": 1, "sequence_length": 8},
        "steps": 1,
        "deterministic": deterministic,
    }
    kept = {
        k: v for k, v in os.environ.items() if k not in {"CUBLAS_WORKSPACE_CONFIG", "NCCL_ALGO"}
    }
    code = _READ_BACK.format(values=json.dumps(values))
    process = fork(None, environment={**kept, "OMP_NUM_THREADS": "1", **variables}, code=code)
    try:
        output, _ = process.communicate(60)
    finally:
        process.end_session()
        process.close()
    return output.strip().splitlines()[-1]


def test_deterministic_settings_are_read_back(tmp_path: Path) -> None:
    found = json.loads(read_back(tmp_path, deterministic=True))
    assert found == {
        "algorithms": True,
        "cudnn_benchmark": False,
        "cublas_workspace": ":4096:8",
        "nccl_algorithm": "Ring",
        "float32_products": "highest",
    }
    found = json.loads(read_back(tmp_path, deterministic=False))
    assert (found["algorithms"], found["cublas_workspace"]) == (False, None)


def test_user_may_choose_the_smaller_workspace_but_none_that_is_not_deterministic(
    tmp_path: Path,
) -> None:
    small = read_back(tmp_path, deterministic=True, CUBLAS_WORKSPACE_CONFIG=":16:8")
    assert json.loads(small)["cublas_workspace"] == ":16:8"
    refused = read_back(tmp_path, deterministic=True, CUBLAS_WORKSPACE_CONFIG=":0:0")
    assert refused == (
        "refused: deterministic is true, but the environment sets CUBLAS_WORKSPACE_CONFIG to "
        "':0:0'; unset it, or set it to one of :4096:8, :16:8"
    )


def test_memory_on_cuda_is_the_allocators_and_its_peak_begins_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    figures = {"memory_allocated": 3, "max_memory_allocated": 9, "memory_reserved": 12}
    for name, value in figures.items():
        monkeypatch.setattr(torch.cuda, name, lambda _device, value=value: value)
    reset: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", reset.append)
    device = torch.device("cuda", 1)
    assert environment.memory_values(device) == {
        "memory/allocated_bytes": 3.0,
        "memory/peak_bytes": 9.0,
        "memory/reserved_bytes": 12.0,
    }
    assert reset == [device]
    replayed = environment.memory_values(device, cuda_graphs=True)
    assert replayed["memory/peak_bytes"] == 12.0, "the allocator does not see a replay's memory"


def test_changes_name_only_versions_that_decide_results() -> None:
    before = {"python": "3.11.7", "torch": "2.12.0", "lehr": "0.1.0", "cuda": "none"}
    now = {"python": "3.11.7", "torch": "2.13.0", "lehr": "0.2.0", "cuda": "12.8", "driver": "570"}
    assert environment.changes(before, now) == ["torch 2.12.0 -> 2.13.0", "cuda none -> 12.8"]
    assert environment.changes(now, now) == []
    assert environment.changes({}, now) == []


def test_changes_name_distributions_that_compute() -> None:
    before = {"torch": "2.13.0", "triton": "3.5.0", "torchao": "0.17.0", "flash-attn": "2.8"}
    now = {"torch": "2.13.0", "triton": "3.6.0", "torchao": "0.17.0", "liger-kernel": "0.6.2"}
    assert environment.changes(before, now) == ["triton 3.5.0 -> 3.6.0", "flash-attn 2.8 -> none"]
    # A checkpoint of an older Lehr has none of them.
    assert environment.changes({"torch": "2.13.0"}, now) == []


def test_every_distribution_has_its_version() -> None:
    found = installed.distributions()
    assert found["torch"] == metadata.version("torch")
    assert list(found) == sorted(found)


def test_copies_inside_setuptools_are_no_installed_distributions(tmp_path) -> None:
    """setuptools adds them to ``sys.path`` when it is imported, so they would come and go."""
    copy = tmp_path / "setuptools" / "_vendor" / "vendored_copy-1.0.dist-info"
    copy.mkdir(parents=True)
    (copy / "METADATA").write_text("Name: vendored-copy\nVersion: 1.0\n")
    done = subprocess.run(
        [sys.executable, "-P", str(Path(installed.__file__))],
        env={**os.environ, "PYTHONPATH": str(copy.parent)},
        capture_output=True,
        check=True,
        text=True,
    )
    found = json.loads(done.stdout)
    assert found["torch"] == metadata.version("torch")
    assert "vendored-copy" not in found


@pytest.mark.parametrize(
    ("text", "cuda"),
    [
        ("cuda: Optional[str] = '12.8'\nhip = None\n", "12.8"),
        ('__version__ = "2.13"\ncuda = "13.0"\n', "13.0"),
        ("cuda: Optional[str] = None\n", "none"),
        ("", "none"),
        (None, "none"),
    ],
)
def test_version_of_cuda_is_read_without_importing_torch(tmp_path, text, cuda) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise SystemExit('imported')")
    if text is not None:
        (tmp_path / "torch/version.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-P", str(Path(installed.__file__))],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["cuda"] == cuda


KINDS = {
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build": "570.86.15",
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC": "535.104.05",
    "something else": "unknown",
}


@pytest.mark.parametrize("line", KINDS)
def test_version_is_that_of_the_kernel_module(
    line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "version").write_text(f"{line}\nGCC version: 12.3.0\n")
    monkeypatch.setattr(installed, "_FILE", tmp_path / "version")
    assert installed.driver_version() == KINDS[line]


def test_machine_without_a_driver_has_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(installed, "_FILE", tmp_path / "gone")
    assert installed.driver_version() == "none"
