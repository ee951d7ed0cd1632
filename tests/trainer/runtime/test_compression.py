"""Values lost to fp16 compression are counted and logged."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from lehr_trainer.configs.execution import ParallelConfig
from lehr_trainer.configs.presets import MODEL_PRESETS
from lehr_trainer.configs.train import LlamaConfig, TrainConfig
from lehr_trainer.diagnostics.diagnostics_logger import DiagnosticsLogger
from lehr_trainer.models import build_model
from lehr_trainer.models.documents import make_input_fn
from lehr_trainer.runtime.distributed import compress_gradients, overflow_counts
from lehr_trainer.runtime.precision import Precision
from lehr_trainer.update_step import UpdateStep


@pytest.fixture
def alone(tmp_path: Path):
    """A group of one rank."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)  # fmt: skip
    yield
    dist.destroy_process_group()


def test_values_that_overflow_fp16_are_counted_over_steps(alone) -> None:
    model = DistributedDataParallel(torch.nn.Linear(4, 1, bias=False))
    assert overflow_counts(model) is None
    compress_gradients(model, ParallelConfig(compression="fp16", compression_scale=1024.0))
    for expected in (2, 4):
        model(torch.tensor([[1e3, 1e3, 1.0, 0.0]])).sum().backward()
        assert int(overflow_counts(model).sum()) == expected


def test_each_bucket_has_its_own_count(alone) -> None:
    """Callbacks of two buckets run on different streams of CUDA: none may write the other's."""
    layers = torch.nn.Sequential(*(torch.nn.Linear(4, 4, bias=False) for _ in range(3)))
    for weight in layers.parameters():  # Random ones may cancel, and leave a gradient in range.
        torch.nn.init.ones_(weight)
    model = DistributedDataParallel(layers, bucket_cap_mb=1e-6)
    compress_gradients(model, ParallelConfig(compression="fp16", compression_scale=1024.0))
    for _ in range(2):  # DDP builds its buckets again after the first backward.
        model(torch.full((1, 4), 1e3)).sum().mul(1e3).backward()
    counts = overflow_counts(model)
    assert counts.shape == (3,)
    assert all(counts > 0)
    assert int(counts.sum()) == 2 * 3 * 16


@pytest.mark.parametrize(("step", "logged"), [(1, False), (2, True)])
def test_overflow_count_is_logged_at_logged_steps(step: int, logged: bool) -> None:
    config = TrainConfig.model_validate(
        {
            "model": "tiny",
            "data": {"corpus": {"kind": "stdlib"}},
            "batch": {"sequences": 1, "sequence_length": 8},
            "steps": 10,
            "diagnostics": {"log_every": 2, "quality_every": 0},
        }
    )
    cpu = torch.device("cpu")
    model = build_model(LlamaConfig(**MODEL_PRESETS["tiny"].values), device=cpu, seed=0)
    count = torch.tensor([4, 0, 3])
    diagnostics_logger = DiagnosticsLogger(
        config,
        model,
        make_input=make_input_fn(None),
        precision=Precision.choose(config.precision, cpu),
        is_rank0=True,
        compression_overflows=count,
    )
    tokens = torch.zeros(1, 8, dtype=torch.int64)
    values = diagnostics_logger.after_update(
        step, UpdateStep(cpu), (tokens, tokens), lambda *_: torch.zeros(())
    )
    assert ("train/compression_overflows" in values) is logged
    count += 1  # The callbacks of the next step.
    assert not logged or int(values["train/compression_overflows"]) == 7
