"""One of two gloo ranks: what compressed gradients are, and when buckets leave. Writes JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from lehr_trainer.configs.parallel import ParallelConfig
from lehr_trainer.configs.presets import MODEL_PRESETS
from lehr_trainer.configs.train import LlamaConfig
from lehr_trainer.losses.chunked import cross_entropy
from lehr_trainer.models.init import initialise
from lehr_trainer.models.llama import Llama
from lehr_trainer.runtime.compression import compress_gradients, overflow_counts
from lehr_trainer.runtime.distributed import Ranks


class Fixed(torch.nn.Module):
    """A loss with a given gradient on each rank."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(count))

    def forward(self, wanted: torch.Tensor) -> torch.Tensor:
        return (self.weight * wanted).sum()


def gap(config: ParallelConfig, size: float, rank: int, *, peak: float | None = None) -> dict:
    """Relative error of the mean of gradients whose root mean square is ``size``."""
    both = torch.randn(2, 4096, generator=torch.Generator().manual_seed(0)) * size
    if peak is not None:
        both[:, 0] = peak
    model = DistributedDataParallel(Fixed(4096), gradient_as_bucket_view=True)
    compress_gradients(model, config)
    model(both[rank]).backward()
    got, want = model.module.weight.grad, both.mean(0)
    error = float((got - want)[1:].norm() / want[1:].norm())
    return {"error": error, "overflows": int(_known(overflow_counts(model)).sum())}


def _known(counts: torch.Tensor | None) -> torch.Tensor:
    return torch.zeros(1) if counts is None else counts


def torchs_own(size: float, rank: int) -> float:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    both = torch.randn(2, 4096, generator=torch.Generator().manual_seed(0)) * size
    model = DistributedDataParallel(Fixed(4096))
    model.register_comm_hook(None, fp16_compress_hook)
    model(both[rank]).backward()
    want = both.mean(0)
    return float((model.module.weight.grad - want).norm() / want.norm())


def overlap(config: ParallelConfig, rank: int) -> dict:
    """From a profile: when each bucket was sent, and when backward ended."""
    model = Llama(LlamaConfig(**MODEL_PRESETS["tiny"].values))
    initialise(model, seed=0)
    wrapped = Ranks(rank, 2, torch.device("cpu"), dist.group.WORLD).wrap_ddp(model, config)
    tokens = torch.randint(0, 512, (2, 65), generator=torch.Generator().manual_seed(rank))
    events = []
    for step in range(2):  # DDP orders its buckets by the first backward
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            hidden = wrapped(tokens[:, :-1])
            cross_entropy(hidden, model.head_weight, tokens[:, 1:]).backward()
        if step:
            events = list(profile.events())
    sent = sorted(e.time_range.start for e in events if e.name == "c10d::allreduce_")
    ends = [e.time_range.end for e in events if "EmbeddingBackward" in e.name]
    return {"sent": len(sent), "before_the_end": sum(time < max(ends) for time in sent)}


def main(rank: int, store: str, out: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
    fp16, bf16 = ParallelConfig(compression="fp16"), ParallelConfig(compression="bf16")
    small = ParallelConfig(bucket_mb=0.5)
    found = {
        "fp16": gap(fp16, 3e-6, rank),
        "bf16": gap(bf16, 3e-6, rank),
        "torchs_fp16": torchs_own(3e-6, rank),
        "fp16_overflow": gap(fp16, 1e-3, rank, peak=100.0),
        "bf16_overflow": gap(bf16, 1e-3, rank, peak=100.0),
        "overlap": {
            "none": overlap(small, rank),
            "bf16": overlap(small.model_copy(update={"compression": "bf16"}), rank),
            "one_bucket": overlap(ParallelConfig(bucket_mb=1000), rank),
        },
    }
    out.write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
