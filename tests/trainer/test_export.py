"""An exported model loads in transformers and gives the same logits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml

from lehr_trainer.checkpointing import checkpoint
from lehr_trainer.configs.gpt2 import GPT2_TINY, GPT2Config
from lehr_trainer.configs.presets import MODEL_PRESETS
from lehr_trainer.configs.train import LlamaConfig, TrainConfig
from lehr_trainer.contract import layout
from lehr_trainer.errors import BadConfig
from lehr_trainer.export import main, write_model
from lehr_trainer.models.gpt2 import GPT2
from lehr_trainer.models.init import initialise
from lehr_trainer.models.llama import Llama
from lehr_trainer.models.stable_embedding import use_stable_embedding

TINY = MODEL_PRESETS["tiny"].values


def same_logits(model, folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(folder)
    tokens = torch.randint(0, 512, (2, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        want = model(tokens) @ model.head_weight.T
        got = theirs(tokens).logits
    assert (got - want).norm() < 1e-5 * want.norm()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_transformers_loads_the_export_and_gives_the_same_logits(
    tmp_path: Path, kind: str, tied: bool
) -> None:
    if kind == "llama":
        model = Llama(LlamaConfig(**{**TINY, "tie_embeddings": tied}))
    else:
        model = GPT2(GPT2Config(**{**GPT2_TINY, "tie_embeddings": tied}))
    initialise(model, seed=1)
    write_model(model.config, model.state_dict(), tmp_path)
    same_logits(model, tmp_path)


def run_with(tmp_path: Path, steps: list[tuple[int, int]]) -> tuple[Path, dict[int, Llama]]:
    """Make a run directory with a checkpoint for each (attempt, step); returns weights by step."""
    run = tmp_path / "run"
    config = TrainConfig.model_validate(
        {"model": "tiny", "data": {"corpus": {"kind": "stdlib"}, "tokenizer": "byte"},
         "batch": {"sequences": 2, "sequence_length": 16}, "steps": 10}
    )  # fmt: skip
    run.mkdir()
    (run / layout.CONFIG).write_text(yaml.safe_dump(config.model_dump(mode="json")))
    models = {}
    for attempt, step in steps:
        models[step] = Llama(config.model)
        initialise(models[step], seed=100 * attempt + step)
        checkpoint.write_checkpoint(
            layout.checkpoint_dir(layout.attempt_dir(run, attempt), step),
            tensors={"model": models[step].state_dict()},
            documents={},
            manifest=checkpoint.Manifest(step=step, tokens=0, reason="interval"),
        )
    return run, models


def test_export_uses_the_newest_valid_checkpoint(tmp_path: Path, capsys) -> None:
    run, models = run_with(tmp_path, [(1, 2), (2, 4), (2, 6)])
    damaged = layout.checkpoint_dir(layout.attempt_dir(run, 2), 6) / "model.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    assert main([str(run), str(tmp_path / "out")]) == 0
    assert "step-00000004" in capsys.readouterr().out
    same_logits(models[4], tmp_path / "out")


def test_export_of_a_named_step_uses_the_last_attempt(tmp_path: Path) -> None:
    run, models = run_with(tmp_path, [(1, 2), (1, 4), (2, 4)])
    assert main([str(run), str(tmp_path / "two"), "--step", "2"]) == 0
    same_logits(models[2], tmp_path / "two")
    assert main([str(run), str(tmp_path / "four"), "--step", "4"]) == 0
    same_logits(models[4], tmp_path / "four")


def test_export_error_is_one_line(tmp_path: Path, capsys) -> None:
    run, _ = run_with(tmp_path, [(1, 2)])
    for arguments, message in (
        ([str(run), str(tmp_path / "a"), "--step", "3"], "no checkpoint of step 3; there are: 2"),
        ([str(tmp_path), str(tmp_path / "b")], "is not a run directory"),
        ([str(run), str(run)], "is not empty"),
    ):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    model = Llama(LlamaConfig(**TINY))
    use_stable_embedding(model, seed=0)
    with pytest.raises(BadConfig, match="stable_embedding"):
        write_model(model.config, model.state_dict(), tmp_path / "c")
