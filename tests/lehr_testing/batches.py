"""Batches of a step from a loader, and by their definition."""

import numpy as np
import torch

from lehr_trainer.configs.batch import LengthStage
from lehr_trainer.configs.train import BatchConfig
from lehr_trainer.data.loader import Loader
from lehr_trainer.data.shuffle import shuffled
from lehr_trainer.data.token_dataset import read_manifest

SHAPE = BatchConfig(sequences=12, sequence_length=16)
STAGED = BatchConfig(
    sequences=12, sequence_length=16, stages=[LengthStage(after=0.9, sequence_length=32)]
)


def load(prepared, batch=SHAPE, **options):
    return Loader(prepared, batch, **{"seed": 5, "workers": 0, **options})


def step_rows(prepared, step, world_size, batch=SHAPE, **options):
    """Collect all inputs and targets of a step, over ranks and micro-steps."""
    parts = []
    for rank in range(world_size):
        with load(prepared, batch, rank=rank, world_size=world_size, **options) as loader:
            parts += [loader.batch(step, micro) for micro in range(loader.micro_steps(step))]
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def naive_rows(prepared, step, batch=SHAPE, seed=5):
    """Compute the same by the definition: one sequence at a time, from the shards on disk."""
    length = batch.sequence_length
    blocks = []
    for shard in read_manifest(prepared.directory).train:
        tokens = np.fromfile(prepared.directory / shard.name, dtype=prepared.dtype)
        blocks += [tokens[at : at + length + 1] for at in range(0, tokens.size - length, length)]
    rows = []
    for sequence in range(step * batch.sequences, (step + 1) * batch.sequences):
        epoch, index = divmod(sequence, len(blocks))
        rows.append(blocks[shuffled(seed, epoch, len(blocks), np.array([index]))[0]])
    return torch.from_numpy(np.stack(rows).astype(np.int64))
