"""``python -m lehr_trainer trace``: formula and trace of a run directory, and its errors."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from lehr_trainer.diagnostics import trace_command
from lehr_trainer.diagnostics.phase_memory import compiled_on_fake_tensors

CONFIG = """
model: {preset: gpt2-tiny, num_hidden_layers: 1}
data: {corpus: {kind: stdlib}}
batch: {sequences: 4, sequence_length: 128}
steps: 3
device: cpu
"""


def test_a_run_directory_is_traced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    assert trace_command.trace([str(tmp_path), "--ranks=2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["device"], found["ranks"]) == ("cpu", 2)
    (stage,) = found["stages"]
    assert stage["shape"] == [2, 128]
    assert stage["traced"].keys() == stage["planned"].keys()
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def test_what_is_wrong_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    monkeypatch.setattr("sys.stdin", io.StringIO("{}"))
    for arguments, message in (
        ([str(tmp_path), "--ranks=0"], "--ranks is 0; it must be at least 1"),
        ([str(tmp_path), "--ranks=3"], "cannot be shared by 3 ranks"),
        ([str(tmp_path / "none")], "config.yaml cannot be read"),
        (["-"], "standard input is not a config"),
    ):
        assert trace_command.trace(arguments) == 2
        written = capsys.readouterr()
        assert message in written.err
        assert (written.out, written.err.count("\n")) == ("", 1)


# One small kernel: a header compiled in advance and the vector units would take longer than they save.
QUICK = {"cpp_cache_precompile_headers": False, "cpp.simdlen": 1, "compile_threads": 1}


def double(x: Tensor) -> Tensor:
    return (x.sin() * 2).relu()


@pytest.mark.nightly  # It compiles; compiled steps are traced at night, too.
def test_compiled_code_runs_on_fake_tensors_and_afterwards_on_real_ones() -> None:
    from torch._inductor import config  # Its import takes longer than that of all other tests.

    x = torch.linspace(0, 1, 64)
    with config.patch(QUICK), compiled_on_fake_tensors(), FakeTensorMode():
        traced = torch.compile(double, dynamic=False)(torch.empty(64))
        assert isinstance(traced, FakeTensor)
        assert traced.shape == x.shape
    # A program without kernels would give whatever its buffer held.
    with config.patch(QUICK):
        assert torch.allclose(torch.compile(double, dynamic=False)(x), double(x))
