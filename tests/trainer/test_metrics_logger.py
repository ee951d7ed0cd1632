"""Times of steps, at any interval of logging, with pauses in between."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from lehr_testing.specs import train as train_values
from lehr_trainer import metrics_logger
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.metrics_logger import MetricsLogger
from lehr_trainer.runtime import event_stream
from lehr_trainer.runtime.event_stream import FRESH_S, VARIABLE, EventStream, SystemSamples
from lehr_trainer.runtime.waits import Clock, Waits

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


class Logged:
    """A logger of 60 steps on a device of ``kind``, and what it writes."""

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        kind: str,
        log_every: int,
        **changes: Any,
    ) -> None:
        monkeypatch.setattr(metrics_logger, "_copied_to_host", lambda values: values)
        monkeypatch.setattr(metrics_logger, "memory_values", lambda _, **__: {})
        diagnostics = {"log_every": log_every}
        values = train_values(Path("unused"), steps=60, diagnostics=diagnostics, **changes)
        self.config = TrainConfig.model_validate(values)
        self.device = Device()
        self._path = folder / "events.jsonl"
        self._kind = kind
        self.logger = self.logger_of(None)

    def logger_of(self, ranks: Any) -> MetricsLogger:
        return MetricsLogger(
            self.config,
            EventStream(self._path),
            torch.device(self._kind),
            peak_flops=self.config.tokens_per_step / STEP_S,
            flops_per_token=lambda _: 1.0,
            log=lambda _: None,
            ranks=ranks,
            clock=self.device,
        )

    def note(
        self, step: int, waited_s: float = 0.0, extra: dict[str, torch.Tensor] | None = None
    ) -> None:
        self.logger.note(step, torch.tensor(1.0), torch.tensor(1.0), 1e-3, waited_s, extra)

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._path.read_text().splitlines()]


KINDS = pytest.mark.parametrize("kind", ["cuda", "cpu"])


@pytest.mark.parametrize("log_every", [1, 2, 10, 7])
@KINDS
def test_step_times_are_those_of_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, log_every: int
) -> None:
    logged = Logged(tmp_path, monkeypatch, kind, log_every)
    config, device, logger = logged.config, logged.device, logged.logger
    device.host += 5.0  # Resuming and compiling are no step.
    logger.start_at(0, 0)
    for step in range(1, 61):
        device.launch(STEP_S)
        logged.note(step)
        if step in (25, 50, 55):
            with logger.paused():
                device.launch(0.5)
                device.wait(device.mark())
                device.host += 0.2
    logger.flush()
    records = logged.records()
    assert [record["step"] for record in records] == [
        step for step in range(1, 61) if step % log_every == 0 or step == 60
    ]
    for record in records:
        found = record["values"]
        # The first launch after a pause finds an idle device: up to 1 ms for each of the three.
        assert STEP_S <= found["step_time_s"] + 1e-9 <= STEP_S + 0.002 + 1e-6
        assert found["mfu"] <= 1.0 + 1e-6
        assert found["tokens_per_s"] == pytest.approx(config.tokens_per_step / found["step_time_s"])


@pytest.mark.parametrize("log_every", [1, 2, 10, 7])
@KINDS
def test_waits_for_data_are_averaged_over_the_same_steps_as_the_step_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, log_every: int
) -> None:
    logged = Logged(tmp_path, monkeypatch, kind, log_every)
    logged.logger.start_at(0, 0)
    waits = {step: 0.004 if step % 5 == 1 else 0.0005 for step in range(1, 61)}
    for step, wait in waits.items():
        logged.device.launch(STEP_S)
        # A step with further values is logged at once, and ends a window early.
        extra = {"train/skipped_steps": torch.tensor(0.0)} if step == 13 else None
        logged.note(step, wait, extra)
    logged.logger.flush()
    before = 0
    for record in logged.records():
        window = [waits[step] for step in range(before + 1, record["step"] + 1)]
        assert record["values"]["data_wait_s"] == pytest.approx(sum(window) / len(window))
        before = record["step"]
    assert before == 60


@KINDS
def test_record_has_the_peak_memory_of_its_own_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """On a GPU a record is written a step late, or two at once before an evaluation."""
    logged = Logged(tmp_path, monkeypatch, kind, 1)
    peak = 0

    def since_the_last_call(_device: torch.device, **_: bool) -> dict[str, float]:
        nonlocal peak
        found, peak = peak, 0
        return {"memory/peak_bytes": float(found)}

    monkeypatch.setattr(metrics_logger, "memory_values", since_the_last_call)
    for step in range(1, 9):
        peak = max(peak, 100 + step)
        logged.device.launch(STEP_S)
        logged.note(step)
        if step == 4:
            with logged.logger.paused():
                peak = max(peak, 500)
    logged.logger.flush()
    found = {r["step"]: r["values"]["memory/peak_bytes"] for r in logged.records()}
    assert found == {step: 500 if step == 5 else 100 + step for step in range(1, 9)}


@KINDS
def test_diagnostics_are_left_out_of_step_times_without_a_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    logged = Logged(tmp_path, monkeypatch, kind, 10)
    device, logger = logged.device, logged.logger
    logger.start_at(0, 0)
    for step in range(1, 61):
        device.launch(STEP_S)
        if step % 20 == 0:
            host = device.host
            with logger.untimed():
                device.launch(0.5)
            assert device.host == pytest.approx(host + 0.001)
        logged.note(step)
    logger.flush()
    times = [record["values"]["step_time_s"] for record in logged.records()]
    assert times == [pytest.approx(STEP_S, abs=2e-4)] * 6


def test_own_part_of_a_step_is_without_waits_for_others_and_without_what_is_not_timed(
    tmp_path, monkeypatch
):
    logged = Logged(tmp_path, monkeypatch, "cuda", 2)
    sent: list[list[float]] = []

    class Several:
        waits = Waits(logged.device)

        def gather_on_rank0(self, values):
            sent.append(values)
            return [values, [math.nan, 0.005, 0.0, 1e9, 1500.0]]

    logged.logger = logged.logger_of(Several())
    for step in range(1, 7):
        logged.device.launch(0.006)
        with Several.waits.timed(), Several.waits.timed():
            logged.device.launch(STEP_S - 0.006)
        if step % 2:
            with logged.logger.untimed(), Several.waits.timed():
                logged.device.launch(1.0)
        logged.note(step, waited_s=0.001)
    logged.logger.flush()
    step_time, own, data_wait = sent[-1][:3]
    assert step_time == pytest.approx(STEP_S, abs=2e-3)
    assert own == pytest.approx(0.006, abs=2e-3)
    assert data_wait == pytest.approx(0.001)
    values = logged.records()[-1]["values"]
    assert values["ranks/slowest"] == 0.0
    assert values["ranks/max_own_time_s"] == own
    assert values["ranks/median_own_time_s"] == values["ranks/min_own_time_s"] == 0.005
    # Only what all ranks know.
    names = {name for name in values if name.startswith("ranks/max")}
    assert names == {"ranks/max_own_time_s", "ranks/max_data_wait_s"}


SAMPLE = {
    "host": {"cpu_utilization": 0.25, "odd": "text", "ram_used_bytes": 16},
    "gpus": {
        "2": {"utilization": 0.5, "power_watts": None},
        "3": {"utilization": 1.0, "clock_mhz": 1980},
    },
}


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / "system.json"
    path.write_text(json.dumps(SAMPLE))
    monkeypatch.setenv(VARIABLE, str(path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    return path


def test_record_gets_the_host_and_the_runs_own_gpus_from_time_to_time(file, monkeypatch):
    samples = SystemSamples()
    assert samples.due() == {
        "system/cpu_utilization": 0.25,
        "system/ram_used_bytes": 16.0,
        "system/gpu0_utilization": 1.0,
        "system/gpu0_clock_mhz": 1980.0,
    }
    assert samples.clock_mhz == 1980.0
    assert samples.due() == {}
    monkeypatch.setattr(event_stream, "EVERY_S", 0.0)
    assert SystemSamples().due() == (again := SystemSamples()).due() == again.due() != {}


@pytest.mark.parametrize("text", ["", "[]", '{"host": 1, "gpus": {}}', "null", None])
def test_file_that_is_missing_or_damaged_costs_no_record(file, text):
    if text is None:
        file.unlink()
    else:
        file.write_text(text)
    assert SystemSamples().due() == {}


def test_outdated_sample_is_left_out_and_so_are_all_outside_of_a_node(file, monkeypatch):
    old = time.time() - FRESH_S - 1
    os.utime(file, (old, old))
    assert SystemSamples().due() == {}
    monkeypatch.delenv(VARIABLE)
    assert SystemSamples().due() == {}
