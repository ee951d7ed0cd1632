"""Benchmark of batch making alone: tokens a second, and the wait for a batch."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.data import Loader
from lehr_trainer.experiments.batch_makers import Make, maker, prepared_text
from lehr_trainer.experiments.case import Case

_WAITS = 40


class BatchesSubject:
    """Makes batches; ``extra.threads`` is the loader's, 0 makes each batch when requested."""

    def __init__(self, case: Case) -> None:
        config = TrainConfig.model_validate(case.config)
        self.device = torch.device("cpu")
        prepared = prepared_text(config)
        self._make: Make
        if case.batches == "loader":
            loader = Loader(
                prepared,
                config.batch,
                seed=config.seed,
                workers=case.extra["threads"],
                loading=case.extra["loading"],
            )
            self._make = loader.batch
        else:
            self._make = maker(case.batches, prepared, config.batch, config.seed)
        self._taken = 0

    def steps(self, count: int) -> None:
        for _ in range(count):
            self._make(self._taken)
            self._taken += 1

    def facts(self, _asked: dict[str, Any]) -> dict[str, Any]:
        """Measure the wait for a batch while matrix products keep one core busy between batches."""
        weights = torch.randn(512, 512)
        waits = []
        for _ in range(_WAITS):
            began = time.perf_counter()
            self.steps(1)
            waits.append(time.perf_counter() - began)
            for _ in range(6):
                weights @ weights
        return {"wait_s": statistics.median(waits)}
