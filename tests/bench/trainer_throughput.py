"""Tokens/s of the trainer compared with a plain PyTorch loop over the same model, in one run.

The two take turns, a few steps each, so that whatever else the machine does meets both alike;
the ratio is of their median step times (and, for a busy machine, of their processor time). The bare loop has what nobody can leave out: batch,
forward, loss, backward, clipping, AdamW. The trainer's has orders, metrics and records besides.

    python tests/bench/trainer_throughput.py [--model tiny] [--rounds 12] [--compute fp32]
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parents[1]))

from lehr_testing.assembled import assembled
from lehr_trainer.data.loader import Loader
from lehr_trainer.runtime import environment
from lehr_trainer.train import Training

STEPS_A_TURN = 5
REQUIRED = 0.98
"""Of a bare loop's speed, by processor time."""
MOST_WAIT = 0.01
"""Of a step, for data; median over median."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--sequence-length", type=int, default=256)
    parser.add_argument("--compute", default="fp32", choices=["fp32", "bf16"])
    given = parser.parse_args()
    values = {
        "model": given.model,
        "data": {"corpus": {"kind": "stdlib"}, "tokenizer": "byte", "max_tokens": 2_000_000},
        "batch": {"sequences": given.sequences, "sequence_length": given.sequence_length},
        "steps": 10**6,
        "precision": {"compute": given.compute},
        "validation": {"tokens": 4096, "every": 0},
        "checkpoint": {"every": 0},
    }
    with tempfile.TemporaryDirectory() as folder:
        report = compare(assembled(Path(folder), values), given.rounds)
    print(json.dumps(report, indent=1))
    return 0 if report["holds"] else 1


def compare(training: Training, rounds: int) -> dict[str, object]:
    config, ranks = training.config, training.ranks
    bare = BareLoop(training)
    wall: dict[str, list[float]] = {"lehr": [], "bare": []}
    processor: dict[str, list[float]] = {"lehr": [], "bare": []}
    waits: list[float] = []
    with training.loader, bare.loader:
        training.wrapped.train()
        training.metrics_logger.start_at(0, 0)
        for turn in range(rounds + 1):
            for name, act in (("lehr", lehr_step), ("bare", bare.step)):
                for _ in range(STEPS_A_TURN):
                    began = time.perf_counter(), time.process_time()
                    waited_before = training.loader.waited_s
                    act(training)
                    synchronize(ranks.device)
                    if turn > 0:  # The first turn warms caches up.
                        if name == "lehr":
                            waits.append(training.loader.waited_s - waited_before)
                        wall[name].append(time.perf_counter() - began[0])
                        processor[name].append(time.process_time() - began[1])
    medians = {name: statistics.median(seconds) for name, seconds in wall.items()}
    cpu = {name: statistics.median(seconds) for name, seconds in processor.items()}
    ratio_of_processor_time = cpu["bare"] / cpu["lehr"]
    wait_share = statistics.median(waits) / medians["lehr"]
    return {
        "what": "trainer tokens/s over a bare loop's, same model",
        "ratio": medians["bare"] / medians["lehr"],
        "ratio_of_processor_time": ratio_of_processor_time,
        "required": REQUIRED,
        "data_wait_share": wait_share,
        "most_data_wait_share": MOST_WAIT,
        "holds": ratio_of_processor_time >= REQUIRED and wait_share <= MOST_WAIT,
        "lehr_tokens_per_s": config.tokens_per_step / medians["lehr"],
        "bare_tokens_per_s": config.tokens_per_step / medians["bare"],
        "steps": len(wall["lehr"]),
        "device": environment.device_name(ranks.device),
        "threads": torch.get_num_threads(),
        "compute": config.precision.compute,
        "batch": [config.batch.sequences, config.batch.sequence_length],
        "torch": torch.__version__,
    }


def lehr_step(training: Training) -> None:
    """What ``Training.run`` does on an ordinary step."""
    training.take_step()
    assert training.step_control.agree(training.ranks).stop is None


class BareLoop:
    """The same model and batches, and nothing else."""

    def __init__(self, training: Training) -> None:
        config = training.config.optimizer
        self.model = copy.deepcopy(training.model)
        self.loader = Loader(
            training.data, training.config.batch, seed=0, device=training.ranks.device
        )
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=config.lr, betas=config.betas, fused=True
        )
        self.steps = 0

    def step(self, training: Training) -> None:
        inputs, targets = self.loader.batch(self.steps)
        half = training.precision.operands == torch.bfloat16
        with torch.autocast(inputs.device.type, dtype=torch.bfloat16, enabled=half):
            logits = F.linear(self.model(inputs), self.model.head_weight)
        loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.steps += 1


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    sys.exit(main())
