"""The questions that a rented GPU answers, each a part of ``session.py`` in a process of its own.

    python tests/gpu/parts.py FOLDER NAME [--rehearse]

A part writes a line of JSON to FOLDER/NAME.jsonl after each figure, and does not measure again what is
there. ``--rehearse`` takes the same path at a toy size on a CPU, with two gloo ranks for the GPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.scale import SHAPES
from gpu.session import PARTS, SEVERAL
from lehr_testing.trainer import KILL, make_run, records, sabotage, train_to_end, training
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.contract import layout
from lehr_trainer.experiments.measure import BenchTraining, measure
from lehr_trainer.experiments.rows import BenchRow
from lehr_trainer.planning.counts import flops_per_token
from lehr_trainer.planning.hardware import peak_flops
from lehr_trainer.planning.memory import training_memory
from lehr_trainer.runtime.distributed import Ranks
from lehr_trainer.runtime.sharding import shards_of

Figures = dict[str, Any]
LLAMA = "llama-1b"
TINY = {"preset": "tiny", "num_hidden_layers": 2, "hidden_size": 64}


def config(rehearse: bool, model: Any, micro_batch: int, share: int, **changes: Any) -> Figures:
    """Return a training of ``share`` sequences on a rank, in micro-batches."""
    length = 64 if rehearse else 2048
    ranks = changes.pop("ranks", 1)
    if rehearse:
        micro_batch, share = 1, 2
    sizes = {"sequences": share * ranks, "micro_batch": micro_batch}
    values = {
        "model": TINY if rehearse else model,
        "data": {"corpus": {"kind": "stdlib"}, "tokenizer": "byte", "max_tokens": 10**6},
        "batch": {**sizes, "sequence_length": length},
        "steps": 10**6,
        "precision": {"compute": "fp32" if rehearse else "bf16"},
        "compile": {"scope": "none" if rehearse else "block"},
        "device": "cpu" if rehearse else "cuda",
        **changes,
    }
    return TrainConfig.model_validate(values).model_dump(mode="json")


def speed(values: Figures, ranks: int = 1) -> Figures:
    """Measure steps; beside tokens/s: MFU, the allocator's peak and that of the plan's formula."""
    outcome = measure(BenchRow("gpu", "part", values, ranks), turns=3, steps=1, timeout_s=400)
    if outcome.error:
        raise RuntimeError(outcome.error)
    train = TrainConfig.model_validate(values)
    tokens = train.tokens_per_step / outcome.step_s
    cuda = values["device"] == "cuda"
    peak = peak_flops(torch.cuda.get_device_name(), "bf16") if cuda else None
    flops = tokens * flops_per_token(train.model, train.batch.sequence_length)
    phases = training_memory(train, ranks).phases.items()
    return {
        "tokens_per_s": round(tokens),
        "mfu": None if peak is None else flops / (ranks * peak),
        "peak_gb": None if outcome.peak_bytes is None else outcome.peak_bytes / 1e9,
        "planned_gb": max(most.total for name, most in phases if name != "evaluation") / 1e9,
        "loss": outcome.loss,
        "torch": torch.__version__,
    }


def rows(part: str, rehearse: bool) -> Iterator[tuple[str, Callable[[], Figures]]]:
    """Yield the figures of a part, by name, each as what measures it."""
    made, every = partial(config, rehearse), 2 if rehearse else torch.cuda.device_count()
    if part == "pinned_torch":
        for size in (8, 16):  # With torch 2.11: docs/benchmarks.md.
            yield f"micro-batch {size}", partial(speed, made(LLAMA, size, 64))
    elif part == "fsdp_of_one":
        yield "llama-1b", partial(fsdp_of_one, rehearse)
    elif part == "slice_of_7b":
        for policy in ("none", "block"):
            again = {"activation_checkpointing": {"policy": policy}}
            model = {**SHAPES["7B"], "num_hidden_layers": 8}
            yield f"recomputed: {policy}", partial(speed, made(model, 2, 16, **again))
    elif part == "chunk_mb":
        for size in (1024, 2048, 4096):
            yield f"{size} MB", partial(speed, made(LLAMA, 16, 64, loss={"chunk_mb": size}))
    elif part == "pinning":
        yield "steps", partial(run, rehearse, 1)
    elif part == "scaling":
        for ranks in (1, 2) if rehearse else (1, 2, 4, 8):
            for shard in ("none", "optimizer", "all") if ranks > 1 else ("none",):
                values = made(LLAMA, 8, 32, ranks=ranks, parallel={"shard": shard})
                yield f"{ranks} GPUs, {shard}", partial(speed, values, ranks)
    elif part == "overlap":
        profile = {"tool": "torch", "wait": 2, "warmup": 1, "active": 2}
        for shard in ("none", "all"):
            yield shard, partial(run, rehearse, every, parallel={"shard": shard}, profile=profile)
    else:
        for name, act in (("killed", KILL), ("hung", "time.sleep(1000)")):
            parallel = {"shard": "all", "hang_limit_s": 5.0 if rehearse else 20.0}
            yield name, partial(run, rehearse, every, act, parallel=parallel)


def fsdp_of_one(rehearse: bool) -> Figures:
    device = torch.device("cpu" if rehearse else "cuda")
    with tempfile.TemporaryDirectory() as folder:
        store = dist.FileStore(f"{folder}/store", 1)
        dist.init_process_group("gloo" if rehearse else "nccl", store=store, rank=0, world_size=1)
        ranks = Ranks(0, 1, device, dist.new_group(backend="gloo"))
        losses, seconds = {}, {}
        for shard in ("none", "all"):
            joined = ranks if shard == "all" else Ranks(0, 1, device)
            values = config(rehearse, LLAMA, 8, 16, parallel={"shard": shard})
            with mock.patch.object(Ranks, "join", return_value=joined):
                steps = BenchTraining(values)
            losses[shard], took = [], []
            for _ in range(12):
                began = time.perf_counter()
                losses[shard].append(steps.take(1))
                took.append(time.perf_counter() - began)
            seconds[shard] = sorted(took)[len(took) // 2]
            assert (shards_of(steps.step.model) is not None) == (shard == "all")
            del steps
            torch.cuda.empty_cache()
        dist.destroy_process_group()
    assert losses["none"] == losses["all"], losses
    return {"bitwise": True, "time_over_none": seconds["all"] / seconds["none"]}


def run(rehearse: bool, ranks: int, act: str = "", **changes: Any) -> Figures:
    """Train 12 steps as a user does, with a rank that does ``act``; return what is recorded."""
    saves = {"every": 4, "asynchronous": True}
    values = config(rehearse, LLAMA, 8, 16, ranks=ranks, checkpoint=saves, **changes)
    values |= {"steps": 12, "validation": {"tokens": 4096, "share": 0.1, "every": 0}}
    with tempfile.TemporaryDirectory() as folder:
        path = make_run(Path(folder) / "run", Path(), **values)
        if act:
            harm = sabotage(at_step=6, act=act, ranks=(ranks - 1,))
            with training(path, ranks=ranks, code=harm, command_line=True) as process:
                assert process.wait(timeout=300), "the rank did not end the run"
        train_to_end(path, ranks=ranks, command_line=True)
        *_, last = attempts = layout.attempts(path)
        values = {r["step"]: r["values"] for r in records(last, "metrics")}
        figures: Figures = {"step_s": [round(v["step_time_s"], 3) for v in values.values()]}
        figures["ranks"] = {k: v for k, v in values[max(values)].items() if k.startswith("ranks/")}
        figures["resumed_at"] = [r["step"] for r in records(last, "resumed")]
        assert figures["resumed_at"] or not act, "nothing was resumed"
        figures["ended"] = [r.get("message") for a in attempts for r in records(a, "finished")]
        for summary in sorted((last / layout.PROFILES).glob("summary*.json")):
            figures[summary.stem] = json.loads(summary.read_text())
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("part", choices=[*PARTS, *SEVERAL])
    parser.add_argument("--rehearse", action="store_true")
    options = parser.parse_args()
    if options.rehearse:
        os.environ["OMP_NUM_THREADS"] = "1"
        torch.set_num_threads(1)
    path: Path = options.folder / f"{options.part}.jsonl"
    known = path.read_text().splitlines() if path.exists() else []
    print(*known, sep="\n")
    measured = {json.loads(line)["name"] for line in known}
    for name, act in rows(options.part, options.rehearse):
        if name not in measured:
            line = json.dumps({"name": name, "rehearsed": options.rehearse, **act()})
            print(line, flush=True)
            with path.open("a") as file:
                file.write(line + "\n")


if __name__ == "__main__":
    main()
