"""One of several gloo ranks: two steps of Muon, and what this rank orthogonalised of them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F

from lehr_trainer.configs.optimizer import MuonConfig
from lehr_trainer.configs.shapes import MODEL_PRESETS
from lehr_trainer.configs.train import LlamaConfig
from lehr_trainer.models.llama import Llama
from lehr_trainer.models.module_map import initialise
from lehr_trainer.optim import muon


def train(settings: dict) -> dict:
    """Train on the same tokens at each rank, as if gradients had been averaged."""
    values = {**MODEL_PRESETS["tiny"].values, "num_hidden_layers": 3}
    model = Llama(LlamaConfig(**values))
    initialise(model, seed=0)
    optimizer = muon.build_muon(model, MuonConfig(**settings))
    orthogonalised = 0
    original = muon.orthogonalise

    def counting(matrices: torch.Tensor, steps: int) -> torch.Tensor:
        nonlocal orthogonalised
        orthogonalised += matrices.shape[0]
        return original(matrices, steps)

    muon.orthogonalise = counting
    draw = torch.Generator().manual_seed(0)
    for _ in range(2):
        tokens = torch.randint(0, 512, (2, 33), generator=draw)
        model.zero_grad()
        logits = model(tokens[:, :-1]) @ model.head_weight.T
        F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
    muon.orthogonalise = original
    digest = hashlib.blake2b()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return {"weights": digest.hexdigest(), "orthogonalised": orthogonalised}


def main(rank: int, ranks: int, store: str, out: str) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(store, ranks), rank=rank, world_size=ranks)
    found = {
        "shared": train({}),
        "small_batches": train({"batch_mb": 1}),
        "whole": train({"distributed": False}),
    }
    dist.barrier()
    dist.destroy_process_group()
    Path(out).write_text(json.dumps(found))
