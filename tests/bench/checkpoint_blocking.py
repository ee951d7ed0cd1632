"""Time for which a save blocks training: asynchronous and blocking, in one run, on the same state.

The two take turns. Every save is the trainer's own, of a model with its AdamW moments, written,
hashed, fsynced and told; the loop's wait and the whole time are those of its ``checkpoint``
record. Between asking and the end of an asynchronous save the loop takes steps, as in training.

    python tests/bench/checkpoint_blocking.py [--million-parameters 60] [--rounds 5] [--device cpu]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from lehr_trainer.checkpointing.checkpointer import Checkpointer
from lehr_trainer.checkpointing.state import TrainProgress
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.contract import layout
from lehr_trainer.contract.orders import LaunchNote
from lehr_trainer.models import build_model
from lehr_trainer.optim import build_optimizer
from lehr_trainer.planning.counts import parameter_counts
from lehr_trainer.runtime import environment
from lehr_trainer.runtime.context import RunContext
from lehr_trainer.runtime.distributed import Ranks
from lehr_trainer.runtime.event_stream import EventStream
from lehr_trainer.runtime.launch import RunPaths
from lehr_trainer.update_step import UpdateStep

GOAL = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--million-parameters", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--folder", type=Path, help="the disk to write to; a temporary one else")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        device = torch.device(given.device)
        print(json.dumps(compare(Path(folder), device, given), indent=1))


def compare(folder: Path, device: torch.device, given: argparse.Namespace) -> dict[str, Any]:
    config = config_of(given.million_parameters * 10**6)
    model = build_model(config.model, device=device, seed=0)
    optimizer = build_optimizer(model, config.optimizer)
    take_step(model, optimizer)
    checkpointers = {
        how: checkpointer_of(folder / how, config, how == "async", model, optimizer, device)
        for how in ("sync", "async")
    }
    checkpointers["async"].poll()  # As the loop does after its first step: memory for the copy.
    checkpointers["async"].wait()
    steps_beside = 0
    for step in range(1, given.rounds + 1):
        for checkpointer in checkpointers.values():
            checkpointer.save(TrainProgress(step=step, tokens=step), "interval", None)
            while checkpointer.saving:
                take_step(model, optimizer)
                steps_beside += 1
            checkpointer.wait()
    recorded = {how: records(folder / how) for how in checkpointers}
    ratios = [
        beside["blocked_s"] / blocking["seconds"]
        for beside, blocking in zip(recorded["async"], recorded["sync"], strict=True)
    ]
    return {
        "what": "how long the loop waits for an asynchronous save, over a blocking save",
        "ratio": statistics.median(ratios),
        "ratios": [round(ratio, 4) for ratio in ratios],
        "goal": f"under {GOAL}",
        "blocked_s": round(statistics.median(one["blocked_s"] for one in recorded["async"]), 4),
        "async_total_s": round(statistics.median(one["seconds"] for one in recorded["async"]), 3),
        "sync_s": round(statistics.median(one["seconds"] for one in recorded["sync"]), 3),
        "steps_beside_the_saves": steps_beside,
        "checkpoint_bytes": recorded["async"][-1]["size_bytes"],
        "copy_bytes": checkpointers["async"].copy_bytes,
        "parameters": parameter_counts(config.model).total,
        "device": environment.device_name(device),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def config_of(parameters: int) -> TrainConfig:
    """A Llama about that large: 11.8 M parameters a layer and a small vocabulary."""
    return TrainConfig.model_validate(
        {
            "model": {
                "preset": "tiny",
                "hidden_size": 1024,
                "intermediate_size": 2816,
                "num_hidden_layers": max(1, round(parameters / 11.3e6)),
                "num_attention_heads": 16,
                "num_key_value_heads": 8,
            },
            "data": {"corpus": {"kind": "stdlib"}, "tokenizer": "byte"},
            "batch": {"sequences": 1, "sequence_length": 64},
            "steps": 10**6,
            "checkpoint": {"every": 1},
        }
    )


def checkpointer_of(
    run_dir: Path,
    config: TrainConfig,
    asynchronous: bool,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
) -> Checkpointer:
    policy = config.checkpoint.model_copy(update={"asynchronous": asynchronous})
    attempt = layout.attempt_dir(run_dir, 1)
    attempt.mkdir(parents=True)
    nothing: Any = None
    context = RunContext(
        config=config.model_copy(update={"checkpoint": policy}),
        place=RunPaths(run_dir, attempt, LaunchNote(), standalone=True),
        ranks=Ranks(rank=0, world_size=1, device=device),
        events=EventStream(attempt / layout.EVENTS),
        signals=nothing,
        timeline=nothing,
        log=lambda line: None,
    )
    data: Any = SimpleNamespace(
        digest="none",
        validation_digest="none",
        tokens=1,
        validation_tokens=1,
        vocab_size=1,
        eos_id=0,
    )
    return Checkpointer(context, data, model, optimizer, UpdateStep(device))


def take_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    device = next(model.parameters()).device
    hidden = model(torch.arange(64, device=device)[None])
    hidden.float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def records(run_dir: Path) -> list[dict[str, Any]]:
    lines = (layout.attempt_dir(run_dir, 1) / layout.EVENTS).read_text().splitlines()
    return [one for one in map(json.loads, lines) if one["kind"] == "checkpoint"]


if __name__ == "__main__":
    main()
