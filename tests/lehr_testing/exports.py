"""Exported models: comparison with transformers, and run directories to export."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import yaml

from lehr_trainer.checkpointing import checkpoint
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.contract import layout
from lehr_trainer.models import build_model
from lehr_trainer.models.module_map import Decoder

CONFIG: dict[str, Any] = {
    "model": {"preset": "tiny", "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64},
    "data": {"corpus": {"kind": "stdlib"}, "tokenizer": "byte"},
    "batch": {"sequences": 2, "sequence_length": 16},
    "steps": 10,
    "seed": 3,
}


def same_logits(model: Any, folder: Path, *, share: float = 1e-5) -> None:
    """Compare with transformers; ``share``: allowed difference over the largest logit."""
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(folder)
    tokens = torch.randint(0, 257, (2, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        want = model(tokens) @ model.head_weight.T
        got = theirs(tokens).logits
    # fp32 rounding, relative to the largest logit.
    torch.testing.assert_close(got, want, rtol=share, atol=share * float(want.abs().max()))


@contextmanager
def transformers_warnings(caplog: Any) -> Iterator[list[str]]:
    """Collect what ``transformers`` warns of."""
    from transformers.utils import logging

    found: list[str] = []
    logging.enable_propagation()
    try:
        yield found
    finally:
        logging.disable_propagation()
    found += [one.getMessage() for one in caplog.records if one.name.startswith("transformers")]


def state_of(config: TrainConfig, **changes: Any) -> dict[str, Any]:
    """The fields of ``state.json`` that an export reads."""
    data = {
        "digest": "d" * 64,
        "validation_digest": "e" * 64,
        "tokens": 1_000_000,
        "validation_tokens": 5_000,
        "tokenizer": {"vocab_size": 257, "eos_id": 256},
    }
    return {
        "config": config.model_dump(mode="json"),
        "versions": {"lehr": "0.1.0", "torch": "2.13.0"},
        "best_val_loss": 2.25,
        "data": {**data, **changes},
    }


def save(folder: Path, config: TrainConfig, step: int, seed: int, **fields: Any) -> Decoder:
    """Write a checkpoint of a model with new weights; returns the model."""
    model = build_model(config.model, device="cpu", seed=seed)
    checkpoint.write_checkpoint(
        folder,
        tensors={"model": model.state_dict(), "optimizer": {"x": torch.zeros(3)}},
        documents={"state": state_of(config)},
        manifest=checkpoint.Manifest(step=step, tokens=32 * step, reason="interval", **fields),
    )
    return model


def run_with(
    tmp_path: Path, steps: list[tuple[int, int]], losses: dict[int, float] | None = None, **changes
) -> tuple[Path, dict[int, Decoder]]:
    """Make a run directory with a checkpoint for each (attempt, step); returns models by step."""
    run = tmp_path / "run"
    config = TrainConfig.model_validate({**CONFIG, **changes})
    run.mkdir()
    (run / layout.CONFIG).write_text(yaml.safe_dump(config.model_dump(mode="json")))
    models = {}
    for attempt, step in steps:
        folder = layout.checkpoint_dir(layout.attempt_dir(run, attempt), step)
        loss = (losses or {}).get(step)
        models[step] = save(folder, config, step, 100 * attempt + step, val_loss=loss)
    return run, models
