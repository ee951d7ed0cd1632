"""The training loop: its batches, gradients, metrics, saves and stops, seen from outside."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile

from lehr_testing.assembled import begin, recorded
from lehr_trainer.checkpointing.state import model_tensors
from lehr_trainer.contract import layout
from lehr_trainer.data.shuffle import shuffled
from lehr_trainer.data.token_dataset import read_manifest
from lehr_trainer.losses.chunked import IGNORED, LossSum
from lehr_trainer.models.module_map import blocks
from lehr_trainer.runtime.distributed import Ranks
from lehr_trainer.train import Training

CPU = torch.device("cpu")
QUIET = {"validation": {"tokens": 512, "share": 0.1, "every": 0}, "checkpoint": {"every": 0}}
"""Settings for nothing but steps, and what follows the last of them."""


def train(training: Training) -> Training:
    with training.loader:
        assert training.run().outcome in {"completed", "stopped"}
    return training


def take_steps(training: Training, count: int) -> None:
    training.wrapped.train()
    training.metrics_logger.start_at(training.progress.step, training.progress.tokens)
    for _ in range(count):
        training.take_step()


def metrics(training: Training) -> dict[int, dict[str, float]]:
    return {record["step"]: record["values"] for record in recorded(training, "metrics")}


# --- which tokens ----------------------------------------------------------------------------


def watch_batches(training: Training) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Record the model's inputs and the loss's targets from now on."""
    inputs: list[torch.Tensor] = []
    both: list[tuple[torch.Tensor, torch.Tensor]] = []

    def note(model: nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
        if model.training:
            inputs.append(arguments[0].clone())

    training.model.register_forward_pre_hook(note)
    loss = training.loss

    def noted(hidden: torch.Tensor, head: torch.Tensor, targets: torch.Tensor) -> LossSum:
        # A diagnostic calls it too, on inputs that the model reads in another mode.
        if torch.is_grad_enabled():
            both.append((inputs.pop(), targets.clone()))
        return loss(hidden, head, targets)

    training.loss = noted
    return both


def sequences_in_order(training: Training, count: int) -> np.ndarray:
    """Read the first ``count`` sequences and the token after each from the shards themselves."""
    config, folder = training.config, training.stage.data.directory
    length = config.batch.sequence_length
    every = []
    for entry in read_manifest(folder).train:
        tokens = np.fromfile(folder / entry.name, dtype=training.stage.data.dtype).astype(np.int64)
        starts = range(0, len(tokens) - length, length)
        every.append(np.stack([tokens[start : start + length + 1] for start in starts]))
    blocks_of_corpus = np.concatenate(every)
    order = shuffled(config.seed, 0, len(blocks_of_corpus), np.arange(count))
    return blocks_of_corpus[order]


def test_each_step_trains_on_its_sequences_of_the_data_order(tmp_path: Path, corpus: Path) -> None:
    batch = {"sequences": 4, "sequence_length": 64, "micro_batch": 2}
    changes = {**QUIET, "seed": 7, "batch": batch, "diagnostics": {"quality_every": 0}}
    first = begin(tmp_path / "run", corpus, steps=3, **changes)
    seen = watch_batches(first)
    train(first)
    second = begin(tmp_path / "run", corpus, steps=5, **changes)
    assert second.progress.step == 3
    seen_later = watch_batches(second)
    train(second)

    want = sequences_in_order(first, 5 * 4)
    got = [*seen, *seen_later]
    assert [inputs.shape for inputs, _ in got] == [(2, 64)] * 10
    assert np.array_equal(torch.cat([inputs for inputs, _ in got]).numpy(), want[:, :-1])
    assert np.array_equal(torch.cat([targets for _, targets in got]).numpy(), want[:, 1:])
    assert len({row.tobytes() for row in want}) == 20, "no two of these sequences are the same"


# --- gradients -------------------------------------------------------------------------------


@pytest.fixture
def among_ranks(tmp_path: Path) -> Iterator[Ranks]:
    """One rank that synchronizes gradients as several ranks do."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield Ranks(0, 1, CPU, dist.new_group(backend="gloo"))
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("micro_batch", [4, 1])
def test_gradients_are_sent_once_a_step_with_any_accumulation(
    tmp_path: Path, corpus: Path, among_ranks: Ranks, micro_batch: int
) -> None:
    batch = {"sequences": 4, "sequence_length": 64, "micro_batch": micro_batch}
    training = begin(tmp_path / "run", corpus, ranks=among_ranks, batch=batch, **QUIET)
    sent: list[int] = []

    # Without annotations, which DDP compares as objects.
    def hook(_, bucket):
        sent.append(bucket.buffer().numel())
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    training.wrapped.register_comm_hook(None, hook)
    every = sum(p.numel() for p in training.model.parameters())
    with training.loader:
        for _ in range(2):
            sent.clear()
            take_steps(training, 1)
            assert sum(sent) == every


def test_norms_of_parts_are_measured_before_clipping(tmp_path: Path, corpus: Path) -> None:
    looking = {"parts_every": 1, "quality_every": 0}
    training = begin(tmp_path / "run", corpus, grad_clip=1e-3, diagnostics=looking, **QUIET)
    parts: dict[str, float] = {}
    clip = training.update_step.clip

    def clip_after_a_look(*args: Any) -> torch.Tensor:
        for name, part in (
            ("first", blocks(training.model)[0]),
            ("last", blocks(training.model)[-1]),
        ):
            norms = [p.grad.norm() for p in part.parameters() if p.grad is not None]
            parts[name] = float(torch.stack(norms).norm())
        return clip(*args)

    training.update_step.clip = clip_after_a_look  # type: ignore[method-assign]
    with training.loader:
        take_steps(training, 1)
    values = metrics(training)[1]
    assert values["params/first_layer/grad_norm"] == pytest.approx(parts["first"])
    assert values["params/last_layer/grad_norm"] == pytest.approx(parts["last"])
    assert values["train/grad_norm"] > 100 * 1e-3, "nothing was clipped"
    after = [p.grad for p in training.model.parameters() if p.grad is not None]
    assert after == [], "gradients are gone when the next step begins"


def test_each_step_uses_and_logs_the_rate_of_its_schedule(tmp_path: Path, corpus: Path) -> None:
    schedule = {"name": "constant", "warmup_steps": 4}
    muon = {"name": "muon", "lr": 1e-3, "embedding_lr": 1e-3, "weight_decay_schedule": "cosine"}
    training = begin(tmp_path / "run", corpus, steps=5, schedule=schedule, optimizer=muon, **QUIET)
    decays: list[float] = []
    training.optimizer.register_step_pre_hook(
        lambda optimizer, *_: decays.append(optimizer.param_groups[0]["weight_decay"])
    )
    used: list[list[float]] = []
    training.optimizer.register_step_pre_hook(
        lambda optimizer, *_: used.append([float(group["lr"]) for group in optimizer.param_groups])
    )
    train(training)
    want = [0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3]
    assert [min(rates) for rates in used] == pytest.approx(want)
    assert [max(rates) for rates in used] == pytest.approx(want)
    assert [values["train/lr"] for values in metrics(training).values()] == pytest.approx(want)
    assert decays == pytest.approx([0.1, 0.0904508, 0.0654508, 0.0345492, 0.0095492], abs=1e-6)


def test_the_loss_is_the_mean_over_micro_batches(tmp_path: Path, corpus: Path) -> None:
    batch = {"sequences": 4, "sequence_length": 64, "micro_batch": 1}
    training = begin(tmp_path / "run", corpus, batch=batch, **QUIET)
    parts: list[float] = []
    loss = training.loss

    def noted(*args: torch.Tensor) -> LossSum:
        part = loss(*args)
        parts.append(part.mean.item())
        return part

    training.loss = noted
    with training.loader:
        take_steps(training, 1)
    assert len(parts) == 4
    assert metrics(training)[1]["train/loss"] == pytest.approx(sum(parts) / 4)


LINES: dict[str, Any] = {"kind": "text", "document": "line"}
"""Documents that are shorter than a sequence."""


def masking(corpus: Path) -> dict[str, Any]:
    where = {**LINES, "paths": [str(corpus)]}
    return {"corpus": where, "tokenizer": "byte", "loss_mask": "document_starts"}


class Masked:
    """Batches of a step, masked further: one whole, one up to three tokens, one after its half."""

    def __init__(self, training: Training, kept: tuple[int, ...]) -> None:
        self._batches = []
        for micro_step, count in enumerate(kept):
            inputs, targets = training.loader.batch(0, micro_step)
            targets = targets.clone()
            targets[:, count:] = IGNORED
            self._batches.append((inputs, targets))
        self.targets = torch.cat([targets for _, targets in self._batches])
        self.inputs = torch.cat([inputs for inputs, _ in self._batches])
        self.counted: int | None = int((self.targets != IGNORED).sum())

    def micro_steps(self, _step: int) -> int:
        return len(self._batches)

    def batch(self, _step: int, micro_step: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._batches[micro_step]


@pytest.mark.parametrize("loss", [{"z_loss": 1e-3}, {"name": "standard"}])
def test_each_token_that_counts_has_the_same_share_of_the_gradient(
    tmp_path: Path, corpus: Path, loss: dict[str, Any]
) -> None:
    """Against float64 of all micro-batches at once; one of them has no token that counts."""
    batch = {"sequences": 4, "sequence_length": 64, "micro_batch": 1}
    training = begin(
        tmp_path / "run", corpus, batch=batch, data=masking(corpus), loss=loss, **QUIET
    )
    with training.loader:
        batches = Masked(training, (0, 64, 3, 32))
    training.model.double()
    hidden = training.model(batches.inputs)
    logits = hidden.double() @ training.model.head_weight.t()
    counts = batches.targets.flatten() != IGNORED
    want = F.cross_entropy(logits.flatten(0, 1), batches.targets.flatten())
    squares = logits.flatten(0, 1).logsumexp(-1).square()
    want_z = loss.get("z_loss", 0.0) * squares[counts].mean()
    (want + want_z).backward()
    gradients = [p.grad for p in training.model.parameters()]
    training.optimizer.zero_grad()
    training.model.float()

    got = training.backward(0, batches)
    assert got.mean.item() == pytest.approx(want.item(), rel=1e-6)
    assert got.counted == batches.counted == int(counts.sum())
    assert (0.0 if got.z_loss is None else got.z_loss.item()) == pytest.approx(want_z.item())
    for parameter, wanted in zip(training.model.parameters(), gradients, strict=True):
        assert parameter.grad is not None
        off = (parameter.grad - wanted).norm() / wanted.norm()  # type: ignore[union-attr, operator]
        assert off < 1e-5


def test_a_step_in_which_no_token_counts_changes_no_weight_and_has_no_loss(
    tmp_path: Path, corpus: Path
) -> None:
    batch = {"sequences": 4, "sequence_length": 64, "micro_batch": 1}
    training = begin(tmp_path / "run", corpus, batch=batch, data=masking(corpus), **QUIET)
    with training.loader:
        nothing = Masked(training, (0, 0, 0, 0))
    before = {name: value.clone() for name, value in model_tensors(training.model).items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            training, "backward", lambda step, _: type(training).backward(training, step, nothing)
        )
        training.take_step()
    after = model_tensors(training.model)
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    values = metrics(training)[1]
    assert values["train/loss_tokens"] == 0
    assert not values.keys() & {"train/loss", "train/grad_norm"}


def test_tokens_that_count_and_the_z_loss_are_logged_apart(tmp_path: Path, corpus: Path) -> None:
    quiet = {"log_every": 2, "quality_every": 2, "quality_tokens": 64, "parts_every": 0}
    changes = {"data": masking(corpus), "diagnostics": quiet, "steps": 2, **QUIET}
    sequence = {"batch": {"sequences": 1, "sequence_length": 64}}
    plain = begin(tmp_path / "plain", corpus, **changes, **sequence)
    training = begin(tmp_path / "run", corpus, loss={"z_loss": 1e-3}, **changes, **sequence)
    seen = watch_batches(training)
    train(training)
    train(plain)
    assert metrics(training).keys() == {2}, "they are no reason to log a step"
    values = metrics(training)[2]
    inputs, targets = seen[1]
    ends = inputs == training.stage.data.eos_id
    assert ends.any()
    assert torch.equal(targets == IGNORED, ends)
    assert values["train/loss_tokens"] == 64 - int(ends.sum())
    assert values["train/z_loss"] == pytest.approx(
        1e-3 * np.log(training.config.model.vocab_size) ** 2, rel=0.05
    )
    assert values["loss_same_tokens"] == pytest.approx(values["raw_ce_fp32"], rel=1e-5)
    assert "train/z_loss" not in metrics(plain)[2]
    # Before weights have changed much, the cross entropy has no part of it.
    assert values["train/loss"] == pytest.approx(metrics(plain)[2]["train/loss"], rel=1e-3)


# --- what is measured ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backend", "kernel"),
    [("auto", "flash_attention_for_cpu"), ("flash", "flash_attention_for_cpu"), ("math", "attention_math")],
)  # fmt: skip
def test_attention_uses_the_configured_kernel(
    tmp_path: Path, corpus: Path, backend: str, kernel: str
) -> None:
    training = begin(tmp_path / "run", corpus, steps=1, attention={"backend": backend}, **QUIET)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        train(training)
    ran = {event.key for event in seen.key_averages() if "_scaled_dot_product_" in event.key}
    assert {name for name in ran if not name.endswith("_backward")} == {
        f"aten::_scaled_dot_product_{kernel}"
    }


# --- saving and stopping ---------------------------------------------------------------------


def test_a_loss_that_is_not_finite_is_saved_as_none(tmp_path: Path, corpus: Path) -> None:
    validation = {"tokens": 512, "share": 0.1, "every": 1}
    training = begin(tmp_path, corpus, steps=3, validation=validation, checkpoint={"every": 1})
    losses = iter([float("nan"), 5.0, float("inf")])
    training.evaluate = lambda: next(losses)  # type: ignore[method-assign]
    train(training)
    saved = recorded(training, "checkpoint")
    assert [record["val_loss"] for record in saved] == [None, 5.0, None]
    assert training.progress.best_val_loss == 5.0


def give_orders(training: Training, **orders: object) -> None:
    assert training.events.path is not None
    training.events.path.with_name(layout.ORDERS).write_text(json.dumps(orders))


@pytest.mark.parametrize(("steps", "outcome"), [(1, "completed"), (2, "stopped")])
def test_order_during_the_last_step_does_not_stop_the_run(
    tmp_path: Path, corpus: Path, steps: int, outcome: str
) -> None:
    training = begin(tmp_path / "run", corpus, steps=steps, **QUIET)
    give_orders(training, desired="pause")
    with training.loader:
        finished = training.run()
    assert (finished.outcome, finished.step) == (outcome, 1)
    reasons = [record["reason"] for record in recorded(training, "checkpoint")]
    assert reasons == ["last" if outcome == "completed" else "stop"]


def test_loss_spikes_are_skipped_if_configured(tmp_path: Path, corpus: Path) -> None:
    skipping = {"enabled": True, "window": 4, "sigmas": 3.0}
    training = begin(tmp_path / "run", corpus, steps=4, skip_step=skipping, **QUIET)
    leap = iter([1.0, 1.0, 9.0, 1.0])
    loss = training.loss
    training.loss = lambda *args: LossSum(loss(*args).total * next(leap), loss(*args).count)
    before: list[torch.Tensor] = []
    training.model.register_forward_pre_hook(
        lambda model, _: before.append(model.head_weight.detach().clone())
    )
    with training.loader:
        take_steps(training, 4)
    assert torch.equal(before[2], before[3]), "the step of the leap was taken"
    assert not torch.equal(before[0], before[1])
    assert metrics(training)[3]["train/skipped_steps"] >= 1
