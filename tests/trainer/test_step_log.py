"""Values of the records of steps: MFU, logging interval, losses that are not finite."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from lehr_testing.specs import train as train_values
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.errors import NanLoss
from lehr_trainer.metrics_logger import MetricsLogger
from lehr_trainer.runtime.event_stream import EventStream


def metrics_logger(config: TrainConfig, path: Path) -> MetricsLogger:
    return MetricsLogger(
        config,
        EventStream(path),
        torch.device("cpu"),
        peak_flops=1e12,
        flops_per_token=lambda step: 1e6 if step < 8 else 3e6,
        log=lambda line: None,
    )


def values_of(path: Path) -> list[dict[str, float]]:
    return [json.loads(line)["values"] for line in path.read_text().splitlines()]


def test_mfu_is_flops_per_second_over_the_peak(tmp_path: Path) -> None:
    config = TrainConfig.model_validate(train_values(tmp_path))
    log = metrics_logger(config, tmp_path / "e")
    log.start_at(0, 0)
    log.note(1, torch.tensor(2.0), torch.tensor(1.0), 0.1, 0.0)
    (values,) = values_of(tmp_path / "e")
    assert values["mfu"] == pytest.approx(values["tokens_per_s"] * 1e6 / 1e12)
    assert values["tokens_per_s"] == pytest.approx(256 / values["step_time_s"])


def test_only_every_nth_step_is_logged_and_its_time_is_the_mean(tmp_path: Path) -> None:
    values = train_values(tmp_path, steps=10, diagnostics={"log_every": 4})
    log = metrics_logger(TrainConfig.model_validate(values), tmp_path / "e")
    log.start_at(0, 0)
    for step in range(1, 11):
        log.note(step, torch.tensor(2.0), torch.tensor(1.0), 0.1, 0.0)
    lines = (tmp_path / "e").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [4, 8, 10]


@pytest.mark.parametrize(("loss", "norm"), [(math.nan, 1.0), (1.0, math.inf), (math.inf, 1.0)])
def test_loss_that_is_not_finite_stops_before_a_save(
    tmp_path: Path, loss: float, norm: float
) -> None:
    # Logged rarely: the step is not due, and yet nothing may be saved after it.
    values = train_values(tmp_path, steps=10, diagnostics={"log_every": 5})
    log = metrics_logger(TrainConfig.model_validate(values), tmp_path / "e")
    log.start_at(0, 0)
    log.note(1, torch.tensor(loss), torch.tensor(norm), 0.1, 0.0)
    with pytest.raises(NanLoss, match="at step 1"), log.paused():
        pytest.fail("a checkpoint would have been written")
