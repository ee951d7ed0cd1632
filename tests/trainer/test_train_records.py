"""Records and output of the loop: evaluations, samples, saves, orders, its end."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from lehr_testing.assembled import begin, recorded
from lehr_testing.specs import train as train_values
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.contract import layout
from lehr_trainer.contract.records import Finished
from lehr_trainer.errors import NanLoss
from lehr_trainer.losses.chunked import LossSum
from lehr_trainer.metrics_logger import MetricsLogger
from lehr_trainer.runtime.event_stream import EventStream
from lehr_trainer.train import Training

QUIET = {"validation": {"tokens": 512, "share": 0.1, "every": 0}, "checkpoint": {"every": 0}}


def train(training: Training) -> Finished:
    with training.loader:
        return training.run()


def give_orders(training: Training, **orders: object) -> None:
    assert training.events.path is not None
    training.events.path.with_name(layout.ORDERS).write_text(json.dumps(orders))


def saves(training: Training) -> list[tuple[int, str]]:
    return [(one["step"], one["reason"]) for one in recorded(training, "checkpoint")]


# --- the end -----------------------------------------------------------------------------------


def test_profiler_and_checkpointer_are_closed_however_the_run_ends(
    tmp_path: Path, corpus: Path
) -> None:
    for number, fails in enumerate((False, True)):
        training = begin(tmp_path / str(number), corpus, steps=1, **QUIET)
        closed: list[str] = []
        training.profiler.close = lambda calls=closed: calls.append("profiler")  # type: ignore[method-assign]
        training.checkpointer.end = lambda calls=closed: calls.append("saver")  # type: ignore[method-assign]
        if fails:
            loss = training.loss
            training.loss = lambda *args, loss=loss: LossSum(loss(*args).total * math.nan, 1)
            with pytest.raises(NanLoss, match="step 1"):
                train(training)
        else:
            train(training)
        assert closed == ["profiler", "saver"]


def test_metrics_of_the_last_step_are_written_before_the_end(tmp_path: Path, corpus: Path) -> None:
    """On a GPU they arrive one step later; here they are delayed in the same way."""
    for outcome, orders in (("completed", None), ("stopped", "pause"), ("stopped", "stop")):
        training = begin(tmp_path / f"{outcome}-{orders}", corpus, steps=3, **QUIET)
        flushed: list[int] = []
        flush = training.metrics_logger.flush

        def noted(
            flush: Any = flush, flushed: list[int] = flushed, training: Training = training
        ) -> None:
            flushed.append(len(recorded(training, "checkpoint")))
            flush()

        training.metrics_logger.flush = noted  # type: ignore[method-assign]
        if orders is not None:
            give_orders(training, desired=orders)
        assert train(training).outcome == outcome
        # Once more after the last save.
        assert flushed[-1] == len(recorded(training, "checkpoint"))
        assert recorded(training, "metrics")[-1]["step"] == (3 if orders is None else 1)


# --- orders --------------------------------------------------------------------------------------


def test_a_pause_saves_and_records_its_reason(tmp_path: Path, corpus: Path) -> None:
    printed: list[str] = []
    training = begin(tmp_path / "run", corpus, steps=9, log=printed.append, **QUIET)
    give_orders(training, desired="pause")
    finished = train(training)
    assert (finished.outcome, finished.cause, finished.step) == ("stopped", "pause", 1)
    (stopping,) = recorded(training, "stopping")
    assert (stopping["step"], stopping["reason"]) == (1, "pause")
    assert stopping["time"] > 0
    assert "stopping at step 1: pause" in printed
    assert saves(training) == [(1, "stop")]


def test_cancel_saves_nothing_and_discards_a_save_in_progress(tmp_path: Path, corpus: Path) -> None:
    training = begin(tmp_path / "run", corpus, steps=9, **QUIET)
    given_up: list[int] = []
    training.checkpointer.discard_pending_save = lambda: given_up.append(1)  # type: ignore[method-assign]
    give_orders(training, desired="stop", reason="prune")
    finished = train(training)
    assert (finished.outcome, finished.cause, finished.step) == ("stopped", "prune", 1)
    assert saves(training) == []
    assert given_up == [1]
    assert recorded(training, "stopping")[0]["reason"] == "prune"


@pytest.mark.parametrize("orders", [None, "pause"])
def test_run_waits_for_its_last_save(tmp_path: Path, corpus: Path, orders: str | None) -> None:
    training = begin(tmp_path / "run", corpus, steps=2, **QUIET)
    waited: list[int] = []
    wait = training.checkpointer.wait
    training.checkpointer.wait = lambda: (waited.append(training.progress.step), wait())[1]  # type: ignore[method-assign]
    finals: list[bool] = []
    save = training.checkpointer.save

    def noted(*args: Any, final: bool = False) -> None:
        finals.append(final)
        save(*args, final=final)

    training.checkpointer.save = noted  # type: ignore[method-assign]
    if orders is not None:
        give_orders(training, desired=orders)
    train(training)
    assert waited == [2 if orders is None else 1]
    assert finals == [True]


# --- evaluations and samples ---------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Profiler won't be using warmup")
@pytest.mark.parametrize(
    ("diagnosed", "tool"),
    [(("quality_every",), "none"), (("parts_every",), "none"), ((), "none"), ((), "torch")],
)
def test_step_time_excludes_diagnostics_evaluations_samples_saves_and_profiles(
    tmp_path: Path, corpus: Path, diagnosed: tuple[str, ...], tool: str
) -> None:
    never = {"parts_every": 0, "quality_every": 0}
    training = begin(
        tmp_path / "run",
        corpus,
        steps=1,
        diagnostics={**never, "sample": {"every": 1, "tokens": 1}, **dict.fromkeys(diagnosed, 1)},
        profile={"tool": tool, "wait": 0, "warmup": 0, "active": 1},
        **QUIET,
    )
    inside: list[str] = []
    open_now: list[str] = []
    untimed = training.metrics_logger.untimed

    class Watched:
        def __init__(self, *, when: bool = True) -> None:
            self.when = when

        def __enter__(self) -> None:
            self.pause = untimed(when=self.when)
            self.pause.__enter__()
            if self.when:
                open_now.append("untimed")

        def __exit__(self, *problem: object) -> None:
            if self.when:
                open_now.pop()
            self.pause.__exit__(*problem)  # type: ignore[arg-type]

    training.metrics_logger.untimed = Watched  # type: ignore[method-assign, assignment]

    def watch(owner: object, name: str) -> None:
        real = getattr(owner, name)

        def noted(*args: Any, **named: Any) -> Any:
            if open_now:
                inside.append(name)
            return real(*args, **named)

        setattr(owner, name, noted)

    watch(training.diagnostics_logger, "before_update")
    watch(training.diagnostics_logger, "after_update")
    watch(training.stage.scored["val"], "batches")
    watch(training.diagnostics_logger, "write_sample")
    watch(training.checkpointer, "save")
    # The end of a profile: it writes a trace.
    watch(training.profiler, "step")
    train(training)
    # A step without diagnostics needs no further moments, nor one without a profile.
    around = ["before_update", "after_update"] if diagnosed else []
    profiled = ["step"] if tool == "torch" else []
    assert inside == [*around, *profiled, "batches", "write_sample", "save"]
    assert (training.events.path.parent / layout.PROFILES).exists() == bool(profiled)  # type: ignore[union-attr]


# --- a step --------------------------------------------------------------------------------------


def test_loss_is_outside_autocast_and_the_model_inside(tmp_path: Path, corpus: Path) -> None:
    training = begin(tmp_path / "run", corpus, precision={"compute": "bf16"}, **QUIET)
    seen: dict[str, bool] = {}
    training.model.register_forward_pre_hook(
        lambda *_: seen.update(model=torch.is_autocast_enabled("cpu"))
    )
    loss = training.loss

    def noted(*args: torch.Tensor) -> LossSum:
        seen["loss"] = torch.is_autocast_enabled("cpu")
        return loss(*args)

    training.loss = noted
    with training.loader:
        inputs, targets = training.loader.batch(0)
        training.unwrapped_loss(inputs, targets)
    assert seen == {"model": True, "loss": False}


def test_model_trains_in_training_mode_and_evaluates_in_eval_mode(
    tmp_path: Path, corpus: Path
) -> None:
    training = begin(tmp_path / "run", corpus, steps=1, **QUIET)
    training.wrapped.eval()
    modes: list[bool] = []
    training.model.register_forward_pre_hook(lambda model, _: modes.append(model.training))
    train(training)
    assert modes[0] is True
    assert False in modes


def test_quality_uses_the_batch_of_the_step_and_the_updated_model(
    tmp_path: Path, corpus: Path
) -> None:
    batch = {"sequences": 4, "sequence_length": 64, "micro_batch": 2}
    looking = {"quality_every": 2, "quality_tokens": 128, "parts_every": 0}
    training = begin(tmp_path / "run", corpus, steps=2, batch=batch, diagnostics=looking, **QUIET)
    with training.loader:
        training.wrapped.train()
        training.metrics_logger.start_at(0, 0)
        training.take_step()
        training.take_step()
        inputs, targets = training.loader.batch(1, 1)
        with torch.no_grad():
            want = training.unwrapped_loss(inputs, targets)
    first, second = (one["values"] for one in recorded(training, "metrics"))
    assert "raw_ce_fp32" not in first
    assert second["raw_ce_fp32"] == pytest.approx(float(want), rel=1e-5)


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
