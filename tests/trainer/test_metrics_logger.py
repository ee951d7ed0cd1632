"""Times of steps, at any interval of logging, with pauses in between."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lehr_testing.specs import train as train_values
from lehr_trainer import metrics_logger
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.metrics_logger import Clock, MetricsLogger
from lehr_trainer.runtime.event_stream import EventStream

STEP_S = 0.010


class Device(Clock):
    """A device that runs behind the host: it takes 10 ms a step, launching a step takes 1 ms."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.host, self.busy_until = 100.0, 100.0

    def launch(self, seconds: float) -> None:
        self.host += 0.001
        self.busy_until = max(self.busy_until, self.host) + seconds

    def mark(self) -> float:
        return max(self.busy_until, self.host)

    def wait(self, moment: Any) -> None:
        self.host = max(self.host, moment)


@pytest.mark.parametrize("log_every", [1, 2, 10, 7])
@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_step_times_are_those_of_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, log_every: int
) -> None:
    monkeypatch.setattr(metrics_logger, "_copied_to_host", lambda values: values)
    monkeypatch.setattr(metrics_logger, "memory_values", lambda _: {})
    values = train_values(Path("unused"), steps=60, diagnostics={"log_every": log_every})
    config = TrainConfig.model_validate(values)
    device, events = Device(), EventStream(tmp_path / "events.jsonl")
    logger = MetricsLogger(
        config,
        events,
        torch.device(kind),
        peak_flops=config.tokens_per_step / STEP_S,
        flops_per_token=lambda _: 1.0,
        log=lambda _: None,
        clock=device,
    )
    device.host += 5.0  # Resuming and compiling are no step.
    logger.start_at(0)
    for step in range(1, 61):
        device.launch(STEP_S)
        logger.note(step, torch.tensor(1.0), torch.tensor(1.0), 1e-3, 0.0)
        if step in (25, 50, 55):
            with logger.paused():
                device.launch(0.5)
                device.wait(device.mark())
                device.host += 0.2
    logger.settle()
    records = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [
        step for step in range(1, 61) if step % log_every == 0 or step == 60
    ]
    for record in records:
        found = record["values"]
        # The first launch after a pause finds an idle device: up to 1 ms for each of the three.
        assert STEP_S <= found["step_time_s"] + 1e-9 <= STEP_S + 0.002 + 1e-6
        assert found["mfu"] <= 1.0 + 1e-6
        assert found["tokens_per_s"] == pytest.approx(config.tokens_per_step / found["step_time_s"])
