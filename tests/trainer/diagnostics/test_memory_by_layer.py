"""Activation memory by module against known sizes, and detection of the math kernel."""

from __future__ import annotations

from pathlib import Path

import torch
import yaml
from torch import nn

from lehr_testing.specs import train as train_values
from lehr_trainer.configs.attention import AttentionConfig
from lehr_trainer.configs.execution import ActivationCheckpointingConfig
from lehr_trainer.configs.presets import MODEL_PRESETS
from lehr_trainer.configs.train import LlamaConfig
from lehr_trainer.diagnostics import memory_command
from lehr_trainer.diagnostics.memory_by_layer import memory_by_layer
from lehr_trainer.models.activation_checkpointing import recompute_activations
from lehr_trainer.models.attention import attention_backend
from lehr_trainer.models.init import initialise
from lehr_trainer.models.llama import Llama

CPU = torch.device("cpu")


def llama() -> Llama:
    model = Llama(LlamaConfig(**{**MODEL_PRESETS["tiny"].values, "num_hidden_layers": 2}))
    initialise(model, seed=0)
    return model


def table_of(model, backend: str = "auto"):
    tokens = torch.zeros(3, 64, dtype=torch.int64)
    with attention_backend(AttentionConfig(backend=backend), CPU):
        return memory_by_layer(model, lambda: model(tokens))


def test_a_linear_keeps_its_input_and_a_relu_its_output() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    x = torch.randn(32, 8)
    table = memory_by_layer(model, lambda: model(x))
    kept = {row.path: row.kept_bytes for row in table.rows}
    # The ReLU keeps its output, which is the second linear's input: counted once.
    assert kept == {"0": 32 * 8 * 4, "1": 32 * 16 * 4}
    assert table.kept_bytes == 32 * 24 * 4


def test_flash_and_math_are_distinguished_and_math_shows_its_scores() -> None:
    scores = 3 * 4 * 64 * 64 * 4
    flash, math = table_of(llama(), "flash"), table_of(llama(), "math")
    name = "layers.0.self_attn"
    rows = [{row.path: row for row in table.rows}[name] for table in (flash, math)]
    assert [row.attention_kernel for row in rows] == ["flash", "math"]
    assert rows[1].kept_bytes - rows[0].kept_bytes > scores / 2
    assert rows[1].kept_bytes >= scores
    assert flash.warnings == ()
    assert len(math.warnings) == 1
    assert "math kernel" in math.warnings[0]


def test_recomputed_activations_are_not_kept() -> None:
    plain, less = llama(), llama()
    recompute_activations(less, ActivationCheckpointingConfig(policy="swiglu"))
    kept = {row.path: row.kept_bytes for row in table_of(plain).rows}
    assert any(path.startswith("layers.0.mlp.") for path in kept)
    after = {row.path: row.kept_bytes for row in table_of(less).rows}
    assert not any(path.startswith("layers.0.mlp.") for path in after)
    assert sum(after.values()) < sum(kept.values())


def test_command_line_prints_the_table_of_a_config(tmp_path: Path, capsys) -> None:
    batch = {"sequences": 4, "sequence_length": 64, "micro_batch": 1}
    values = train_values(tmp_path / "no corpus", attention={"backend": "math"}, batch=batch)
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(yaml.safe_dump(values))
    assert memory_command.main([str(run), "--ranks", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("a micro-batch of [1, 64]")
    assert any(line.startswith("layers.1.self_attn ") and line.endswith("math") for line in lines)
    assert lines[-1].startswith("warning: attention runs on the math kernel")
    assert [path.name for path in run.iterdir()] == ["config.yaml"], "the run is left as it is"

    assert memory_command.main([str(run), "--ranks", "3"]) == 2
    assert "cannot be shared by 3 ranks" in capsys.readouterr().err
    assert memory_command.main([str(tmp_path)]) == 2
    assert "config.yaml cannot be read" in capsys.readouterr().err
