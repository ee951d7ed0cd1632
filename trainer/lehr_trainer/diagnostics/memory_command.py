"""``lehr_trainer memory RUN_DIR``: the bytes that a config keeps for backward, by module.

Nothing is trained, no data is needed, and the run is not changed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.contract import layout
from lehr_trainer.errors import BadConfig, TrainerError
from lehr_trainer.runtime import launch

if TYPE_CHECKING:
    from lehr_trainer.diagnostics.memory_by_layer import MemoryTable


def main(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m lehr_trainer memory",
        description="What each module keeps for backward, and which attention kernel runs there: "
        "one forward pass of a micro-batch, eager.",
    )
    parser.add_argument("run_dir", type=Path, help="a folder with a config.yaml")
    parser.add_argument("--ranks", type=int, default=1, help="that share each step's batch")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    try:
        config = launch.read_config(given.run_dir / layout.CONFIG)
        if problem := config.batch.sharing_problem(max(1, given.ranks)):
            raise BadConfig(problem)
        shape = config.batch.shapes_ahead(config.steps, max(1, given.ranks))[0]
        table = table_of(config, shape)
    except TrainerError as error:
        print(f"memory: {error}", file=sys.stderr)
        return 2
    if given.json:
        print(json.dumps({"shape": shape, **asdict(table)}))
    else:
        print(f"a micro-batch of [{shape[0]}, {shape[1]}], before any block is compiled")
        print("\n".join(table.lines()))
    return 0


def table_of(config: TrainConfig, shape: tuple[int, int]) -> MemoryTable:
    """Measure one forward pass and loss of a [B, T] micro-batch, as in the config, not compiled.

    Raises:
        BadConfig: this machine cannot run it.
    """
    # Import torch only when the config is known to be good.
    import torch

    from lehr_trainer.data.tokenizers import load_tokenizer
    from lehr_trainer.diagnostics.memory_by_layer import memory_by_layer
    from lehr_trainer.losses.variants import build_loss
    from lehr_trainer.models import build_model_of
    from lehr_trainer.models.activation_checkpointing import recompute_activations
    from lehr_trainer.models.attention import attention_backend
    from lehr_trainer.models.documents import make_input_fn
    from lehr_trainer.runtime.distributed import Ranks
    from lehr_trainer.runtime.precision import Precision

    device = Ranks.join(config.device).device
    precision = Precision.choose(config.precision, device)
    masked = config.attention.document_masking
    make_input = make_input_fn(load_tokenizer(config.data.tokenizer).eos_id if masked else None)
    loss = build_loss(config.loss.on(device.type, compiles=False), precision.operands, device)
    model = build_model_of(config, device=device).train()
    recompute_activations(model, config.activation_checkpointing)
    tokens = torch.arange(shape[0] * shape[1], device=device).view(shape)
    tokens %= config.model.vocab_size

    def forward() -> None:
        with precision.autocast():
            hidden = model(*make_input(tokens))
        loss(hidden, model.head_weight, tokens)

    with attention_backend(config.attention, device):
        return memory_by_layer(model, forward)
