"""An ordinary step of the whole loop never waits for the device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lehr_testing.assembled import assembled
from lehr_testing.specs import text_corpus
from lehr_testing.specs import train as train_values

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": {"compute": "bf16"}},
        {"precision": {"compute": "fp16"}},
        {"precision": {"compute": "bf16"}, "optimizer": {"name": "muon"}},
        {"precision": {"compute": "bf16"}, "skip_step": {"enabled": True}},
        {"precision": {"compute": "bf16"}, "average": {"last": 2, "every": 1}},
        {"precision": {"compute": "bf16"}, "average": {"ema": 0.9, "every": 2}},
    ],
    ids=["bf16", "fp16", "muon", "skip-step", "last", "ema"],
)
def test_steps_with_all_their_metrics_never_wait_for_the_device(
    changes: dict, tmp_path: Path
) -> None:
    diagnostics = {"parts_every": 1, "quality_every": 0, "sample": {"every": 0}}
    corpus = text_corpus(tmp_path / "texts")
    values = train_values(corpus, steps=100, device="cuda", diagnostics=diagnostics, **changes)
    training = assembled(tmp_path, values)
    with training.loader:
        training.wrapped.train()
        training.metrics_logger.start_at(0, 0)
        for _ in range(4):  # kernels and lazy state exist by then
            training.take_step()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(6):
                training.take_step()
                assert training.step_control.agree(training.ranks).stop is None
        finally:
            torch.cuda.set_sync_debug_mode("default")
