"""Train small models with the real trainer, healthy and with a planted anomaly, and keep their curves.

A llama of 131 k parameters learns the source text of Python's standard library, byte by byte, on
one CPU thread. Each anomaly is a setting of the config, or a fault that is put into the trainer's
process. The curves become tests/data/diagnosed_runs.json.gz, which tests/bench/diagnosis.py judges.

    python tests/bench/diagnosis_runs.py --folder /tmp/runs [--only NAME ...]
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import yaml

from lehr_testing.trainer import training
from lehr_trainer.contract import layout

OUT = Path(__file__).parents[1] / "data" / "diagnosed_runs.json.gz"
STEPS = 400
TUNED = (0,)
"""Seeds of the runs that thresholds may be chosen on; the others only report."""
UNUSED = ("mfu", "val/perplexity", "val/bits_per_byte", "top1_acc")

_FROZEN = """
import lehr_trainer.train as train
real = train.Training.run
def run(self):
    import torch
    from lehr_trainer.models.module_map import blocks
    for weight in list(blocks(self.model))[-1].parameters():
        weight.register_hook(torch.zeros_like)
    return real(self)
train.Training.run = run
"""
_SAME_BATCH = """
from lehr_trainer.data.loader import Loader
real = Loader.batch
Loader.batch = lambda self, step, micro_step=0: real(self, min(step, 150), micro_step)
"""
_ORDER_AFTER_RESUME = """
from lehr_trainer.data.loader import Loader
real = Loader._make
Loader._make = lambda self, place: real(self, (place[0] + 1000, place[1]))
"""
_FUTURE_SEEN = """
import torch.nn.functional as F
real = F.scaled_dot_product_attention
def seeing(*args, **options):
    options["is_causal"] = False
    return real(*args, **options)
F.scaled_dot_product_attention = seeing
"""
_BF16_SUM = """
import torch
import torch.nn.functional as F
import lehr_trainer.losses.variants as variants
def loss(hidden, weight, targets):
    rows, flat = variants._rows(hidden, targets)
    with torch.autocast(hidden.device.type, enabled=False):
        logits = F.linear(rows.bfloat16(), weight.bfloat16())
        logits = logits - logits.detach().amax(-1, keepdim=True)
        total = torch.zeros_like(logits[:, 0])
        for column in logits.exp().unbind(-1):
            total = total + column
        return (total.float().log() - logits.gather(-1, flat[:, None])[:, 0].float()).mean()
variants.bf16_softmax = loss
"""
_SLOWER = """
import time
import lehr_trainer.train as train
real = train.Training.take_step
def take_step(self):
    if self.progress.step >= 220:
        time.sleep(0.15)
    return real(self)
train.Training.take_step = take_step
"""
_LEAK = """
import lehr_trainer.train as train
real, kept = train.Training.take_step, []
def take_step(self):
    kept.append(b"x" * 1_000_000)
    return real(self)
train.Training.take_step = take_step
"""
_GROWING_PART = """
import lehr_trainer.train as train
real = train.Training.run
def run(self):
    from lehr_trainer.models.module_map import blocks
    weights = list(blocks(self.model))[-1].parameters()
    for weight in weights:
        weight.register_hook(lambda grad: grad * 1.02 ** max(0, self.progress.step - 100))
    return real(self)
train.Training.run = run
"""
_DIE = """
import os
from torch.optim.optimizer import register_optimizer_step_pre_hook
taken = []
def count(*_):
    taken.append(1)
    if len(taken) == 200:
        os._exit(1)
register_optimizer_step_pre_hook(count)
"""


@dataclass(frozen=True)
class Variant:
    changes: dict[str, Any] = field(default_factory=dict)
    label: tuple[str, ...] = ()
    """Names of alerts of which each is right; none for a healthy run."""
    code: str = ""
    """Executed in the trainer's process before it."""
    resumed: bool = False
    """Die after 200 steps, then resume from the checkpoint at step 150."""
    seeds: tuple[int, ...] = (0, 1)


def lr(rate: float, **more: Any) -> dict[str, Any]:
    return {"optimizer": {"lr": rate}, **more}


TINY = {"corpus": {"kind": "stdlib"}, "tokenizer": "byte", "max_tokens": 20_000}
DIVERGES = ("high_lr", "diverging", "exploding", "spikes", "stagnant", "nan", "exploding_part")
VARIANTS = {
    "baseline": Variant(seeds=(0, 1, 2)),
    "lr 1e-3": Variant(lr(1e-3)),
    "lr 1e-2": Variant(lr(1e-2)),
    "wsd": Variant({"schedule": {"name": "wsd", "warmup_ratio": 0.05}}),
    "small batch": Variant({"batch": {"sequences": 4, "sequence_length": 128}}),
    "short": Variant({"steps": 60, "validation": {"tokens": 16384, "share": 0.05, "every": 20}}),
    "long": Variant({"steps": 1500}),
    "sequence stages": Variant(
        {
            "batch": {
                "sequences": 64,
                "sequence_length": 32,
                "stages": [{"after": 0.5, "sequence_length": 128}],
            }
        }
    ),
    "three epochs": Variant({"data": {**TINY, "max_tokens": 300_000}}),
    "bf16": Variant({"precision": {"compute": "bf16"}}),
    # PyTorch adds up in fp32 within a softmax in bf16, so the loss is rounded, and not too low.
    "bf16 softmax": Variant({"precision": {"compute": "bf16"}, "loss": {"name": "bf16_softmax"}}),
    "resumed": Variant(resumed=True),
    "muon": Variant({"optimizer": {"name": "muon"}}),
    "lr x30": Variant(lr(9e-2), DIVERGES),
    "lr x300, no warmup, no clipping": Variant(
        lr(1.0, schedule={"name": "cosine", "warmup_ratio": 0.0}, grad_clip=0), DIVERGES
    ),
    "lr /1000": Variant(lr(3e-6), ("low_lr",)),
    "lr /300": Variant(lr(1e-5), ("low_lr",)),
    "frozen layer": Variant(label=("dead_part",), code=_FROZEN),
    "part explodes": Variant(label=("exploding_part", "exploding"), code=_GROWING_PART),
    "repeated batch": Variant(label=("repeated_batches",), code=_SAME_BATCH),
    "other order after resume": Variant(
        label=("other_data",), code=_ORDER_AFTER_RESUME, resumed=True
    ),
    "tiny corpus": Variant(
        {"data": TINY, "steps": 1500, "optimizer": {"lr": 1e-2}}, ("memorization", "overfitting")
    ),
    "future seen": Variant({"steps": 800}, ("implausible",), _FUTURE_SEEN),
    "bf16 sum": Variant(
        {"precision": {"compute": "bf16"}, "loss": {"name": "bf16_softmax"}},
        ("too_good",),
        _BF16_SUM,
    ),
    "slower": Variant(label=("slowdown",), code=_SLOWER),
    "memory leak": Variant(label=("memory_creep",), code=_LEAK),
}


def config(variant: Variant, seed: int) -> dict[str, Any]:
    values: dict[str, Any] = {
        "model": {
            "preset": "tiny",
            "vocab_size": 512,
            "hidden_size": 64,
            "intermediate_size": 192,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
        },
        "data": {"corpus": {"kind": "stdlib"}, "tokenizer": "byte", "max_tokens": 4_000_000},
        "batch": {"sequences": 16, "sequence_length": 128},
        "steps": STEPS,
        "seed": seed,
        "optimizer": {"lr": 3e-3},
        "schedule": {"name": "cosine", "warmup_ratio": 0.1, "min_lr_ratio": 0.1},
        "validation": {"tokens": 32768, "share": 0.05, "every": 50},
        "checkpoint": {"every": 150, "keep_last": 2, "asynchronous": False},
        "diagnostics": {"parts_every": 20, "quality_every": 20, "sample": {"every": 0}},
        "device": "cpu",
        "threads": 1,
    }
    return {**values, **variant.changes}


def train(folder: Path, variant: Variant, seed: int) -> dict[str, Any]:
    """Train, and return the run's curves with what is known of it."""
    folder.mkdir(parents=True)
    values = config(variant, seed)
    (folder / layout.CONFIG).write_text(yaml.safe_dump(values))
    for code in [_DIE, variant.code] if variant.resumed else [variant.code]:
        with training(folder, data=folder.parents[1] / "data", code=code) as process:
            process.wait(timeout=600)
    events = sorted(folder.glob(f"attempt-*/{layout.EVENTS}"))
    assert events, folder
    return {
        "label": variant.label,
        "tuned": seed in TUNED,
        "steps": values["steps"],
        "warmup": round(values["schedule"].get("warmup_ratio", 0.1) * values["steps"]),
        "changes": [round(s["after"] * values["steps"]) for s in values["batch"].get("stages", [])],
        "curves": curves(events),
    }


def curves(events: list[Path]) -> dict[str, Any]:
    """Return ``{metric: [steps, values, superseded steps, superseded values]}``, rounded."""
    points: dict[str, dict[int, float]] = {}
    lost: dict[str, dict[int, float]] = {}
    for path in events:
        for line in path.read_text().splitlines():
            record = json.loads(line)
            if record["kind"] == "resumed":
                for name, series in points.items():
                    gone = {s: series.pop(s) for s in list(series) if s > record["step"]}
                    lost.setdefault(name, {}).update(gone)
            if record["kind"] not in {"metrics", "evaluation"}:
                continue
            for name, value in record["values"].items():
                if name not in UNUSED:
                    points.setdefault(name, {})[record["step"]] = float(value)
    seen: dict[float, int] = {}
    return {
        name: [
            list(series),
            [_short(name, v, seen) for v in series.values()],
            list(lost.get(name, {})),
            [_short(name, v, seen) for v in lost.get(name, {}).values()],
        ]
        for name, series in points.items()
    }


def _short(name: str, value: float, seen: dict[float, int]) -> float | str:
    """Round to what a rule could tell apart. A digest becomes the number of its first use."""
    if name == "data/digest":
        return seen.setdefault(value, len(seen))
    if not math.isfinite(value):
        return str(value)
    return float(f"{value:.4g}" if name != "memory/rss_bytes" else f"{value:.5g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where the runs are trained")
    parser.add_argument("--only", nargs="*", help="these variants; the others stay as they are")
    given = parser.parse_args()
    known = json.loads(gzip.decompress(OUT.read_bytes())) if OUT.exists() and given.only else {}
    for name, variant in VARIANTS.items():
        if given.only and name not in given.only:
            continue
        for seed in variant.seeds:
            run = f"{name}, seed {seed}"
            folder = (
                given.folder / "runs" / run.replace("/", "over").replace(" ", "-").replace(",", "")
            )
            known[run] = train(folder, variant, seed)
            loss = known[run]["curves"]["train/loss"][1]
            print(f"{run}: {len(loss)} steps, loss {loss[0]} to {loss[-1]}", flush=True)
            for each, entry in known.items():
                entry["label"] = VARIANTS[each.rpartition(", seed ")[0]].label
            # mtime 0: the same curves make the same file.
            text = json.dumps(known, separators=(",", ":"), sort_keys=True).encode()
            OUT.write_bytes(gzip.compress(text, mtime=0))


if __name__ == "__main__":
    main()
