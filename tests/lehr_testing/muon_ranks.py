"""One of several gloo ranks: two steps of Muon, and what this rank orthogonalised of them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F

from lehr_trainer.configs.optimizer import MuonConfig
from lehr_trainer.configs.presets import MODEL_PRESETS
from lehr_trainer.configs.train import LlamaConfig
from lehr_trainer.models.llama import Llama
from lehr_trainer.models.module_map import initialise
from lehr_trainer.optim import muon, orthogonal
from lehr_trainer.runtime.sharding import rows_of

OF_TODAY = {"coefficients": "polar_express", "normuon_beta": 0.9, "cautious_weight_decay": True}


def train(settings: dict) -> dict:
    """Train on the same tokens at each rank, as if gradients had been averaged."""
    values = {**MODEL_PRESETS["tiny"].values, "num_hidden_layers": 3}
    model = Llama(LlamaConfig(**values))
    initialise(model, seed=0)
    optimizer = muon.build_muon(model, MuonConfig(**OF_TODAY, **settings))
    orthogonalised = 0
    original = orthogonal.orthogonalise

    def counting(matrices: torch.Tensor, iteration: orthogonal.Iteration) -> torch.Tensor:
        nonlocal orthogonalised
        orthogonalised += matrices.shape[0]
        return original(matrices, iteration)

    orthogonal.orthogonalise = counting
    draw = torch.Generator().manual_seed(0)
    for _ in range(2):
        tokens = torch.randint(0, 512, (2, 33), generator=draw)
        model.zero_grad()
        logits = model(tokens[:, :-1]) @ model.head_weight.T
        F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
    orthogonal.orthogonalise = original
    digest = hashlib.blake2b()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return {"weights": digest.hexdigest(), "orthogonalised": orthogonalised}


def rows_against_whole(rank: int, ranks: int) -> float:
    """Update rows of sharded weights, and the whole ones; return the largest difference."""
    draw = torch.Generator().manual_seed(0)
    # Heads of two rows, of which ranks hold one and a half; the last rank has no row of the last.
    whole = [torch.randn(shape, generator=draw) for shape in ((12, 8), (10, 6), (5, 8))]
    rows = [rows_of(len(weight), rank, ranks) for weight in whole]
    parts = [w[r.first : r.last].clone() for w, r in zip(whole, rows, strict=True)]
    model = torch.nn.Linear(1, 1, bias=False)
    config = MuonConfig(**OF_TODAY, distributed=False)
    group = {**muon.build_muon(model, config).param_groups[0], "qkv_heads": 1}
    alone = muon.Muon([{**group, "params": whole}], {whole[0]: [3, 6]})
    sharded = muon.Muon(
        [{**group, "params": parts}],
        {parts[0]: [3, 6]},
        dict(zip(parts, rows, strict=True)),
        dist.group.WORLD,
    )
    for _ in range(3):
        for weight, part, own in zip(whole, parts, rows, strict=True):
            weight.grad = torch.randn(weight.shape, generator=draw)
            part.grad = weight.grad[own.first : own.last]
        alone.step()
        sharded.step()
    pairs = zip(whole, parts, rows, strict=True)
    return max(float((w[r.first : r.last] - p).abs().sum()) for w, p, r in pairs)


def main(rank: int, ranks: int, store: str, out: str) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(store, ranks), rank=rank, world_size=ranks)
    found = {
        "shared": train({}),
        "small_batches": train({"batch_mb": 1}),
        "whole": train({"distributed": False}),
        "rows": rows_against_whole(rank, ranks),
    }
    dist.barrier()
    dist.destroy_process_group()
    Path(out).write_text(json.dumps(found))
