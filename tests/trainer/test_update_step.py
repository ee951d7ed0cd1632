"""Loss scaling like GradScaler's, skipped steps, and their state in checkpoints."""

from __future__ import annotations

import copy

import pytest
import torch

from lehr_testing import optimizers
from lehr_testing.optimizers import OPTIMIZERS
from lehr_trainer.configs.execution import LossScaleConfig, SkipStepConfig
from lehr_trainer.configs.presets import MODEL_PRESETS
from lehr_trainer.configs.train import LlamaConfig
from lehr_trainer.losses.chunked import cross_entropy
from lehr_trainer.models.llama import Llama
from lehr_trainer.models.module_map import initialise
from lehr_trainer.update_step import LossScale, Spikes, UpdateStep

CPU = torch.device("cpu")


def llama() -> Llama:
    model = Llama(LlamaConfig(**{**MODEL_PRESETS["tiny"].values, "num_hidden_layers": 1}))
    initialise(model, seed=0)
    return model


def backward(model, update_step: UpdateStep, seed: int = 0, dtype=torch.float32) -> torch.Tensor:
    tokens = torch.randint(0, 512, (2, 33), generator=torch.Generator().manual_seed(seed))
    model.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16, enabled=dtype == torch.float16):
        hidden = model(tokens[:, :-1])
    loss = cross_entropy(hidden, model.head_weight, tokens[:, 1:], operands=dtype)
    update_step.scaled(loss).backward()
    return loss.detach()


def snapshot(model, optimizer) -> list[torch.Tensor]:
    states = [v for p in model.parameters() for v in optimizer.state.get(p, {}).values()]
    tensors = [*model.parameters(), *(v for v in states if isinstance(v, torch.Tensor))]
    return [t.detach().clone() for t in tensors]


def same(a, b) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("most", [0.0, 0.5, 100.0])
def test_clipping_matches_torch(most: float) -> None:
    ours, theirs = llama(), llama()
    update_step = UpdateStep(CPU)
    backward(ours, update_step)
    backward(theirs, update_step)
    norm = update_step.clip(ours, most)
    want = torch.nn.utils.clip_grad_norm_(theirs.parameters(), most or float("inf"))
    assert torch.equal(norm, want)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, rtol=1e-6)


@pytest.mark.parametrize("most", [0.0, 0.5, 100.0])
def test_scaled_gradients_are_clipped_as_unscaled_ones(most: float) -> None:
    ours, theirs = llama(), llama()
    updates, plain = UpdateStep(CPU, loss_scale=LossScaleConfig(initial=8.0)), UpdateStep(CPU)
    backward(ours, updates)
    backward(theirs, plain)
    norms = [updates.clip(ours, most), plain.clip(theirs, most)]
    assert torch.equal(*norms), "a power of two rounds nothing"
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, rtol=1e-6)
    assert (updates.loss_scale, plain.loss_scale) == (8.0, None)


def test_a_fused_optimizer_decides_on_the_device_whether_it_steps() -> None:
    model = llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    updates = UpdateStep(CPU)
    given: list[float] = []
    optimizer.register_step_pre_hook(lambda one, *_: given.append(float(one.found_inf)))
    for bad in (False, True):
        loss = backward(model, updates)
        if bad:
            model.layers[0].mlp.up_proj.weight.grad[0, 0] = float("inf")
        updates.step(optimizer, loss, updates.clip(model, 1.0))
        assert not hasattr(optimizer, "found_inf")
    assert given == [0.0, 1.0]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_gradient_that_is_not_finite_changes_nothing(name: str) -> None:
    model = llama()
    optimizer, update_step = optimizers.build(name, model), UpdateStep(CPU)
    loss = backward(model, update_step)
    assert update_step.step(optimizer, loss, update_step.clip(model, 1.0)) == 0
    before = snapshot(model, optimizer)
    loss = backward(model, update_step, seed=1)
    model.layers[0].mlp.up_proj.weight.grad[3, 5] = float("nan")
    assert update_step.step(optimizer, loss, update_step.clip(model, 1.0)) == 1
    assert same(before, snapshot(model, optimizer))
    loss = backward(model, update_step, seed=2)
    assert update_step.step(optimizer, loss, update_step.clip(model, 1.0)) == 0
    after = snapshot(model, optimizer)
    assert not same(before, after)
    assert all(torch.isfinite(t).all() for t in after if t.is_floating_point())
    assert int(update_step.skipped) == 1


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_step_that_is_taken_matches_the_plain_step(name: str) -> None:
    guarded, plain = llama(), llama()
    one, two = optimizers.build(name, guarded), optimizers.build(name, plain)
    update_step = UpdateStep(CPU)
    for seed in range(2):
        loss = backward(guarded, update_step, seed)
        update_step.step(one, loss, update_step.clip(guarded, 1.0))
        backward(plain, update_step, seed)
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        two.step()
    for a, b in zip(guarded.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-6, atol=1e-8)


def test_loss_scale_matches_gradscaler() -> None:
    theirs = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    ours = LossScale(LossScaleConfig(initial=1024.0, growth_interval=3), CPU)
    weight = torch.nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    overflows = [False, False, False, False, True, True, False, False, False, True, False]
    for overflow in overflows:
        theirs.scale(weight * (float("inf") if overflow else 1.0)).backward()
        theirs.step(optimizer)
        theirs.update()
        optimizer.zero_grad()
        ours.update(torch.tensor(overflow))
        assert float(ours.scale) == theirs.get_scale()


def test_fp16_overflow_skips_halves_the_scale_and_recovers() -> None:
    model = llama()
    optimizer = optimizers.build("adamw", model)
    update_step = UpdateStep(CPU, loss_scale=LossScaleConfig(initial=2.0**40))
    start = snapshot(model, optimizer)
    refused, losses = [], []
    for _ in range(60):
        loss = backward(model, update_step, dtype=torch.float16)
        norm = update_step.clip(model, 1.0)
        refused.append(int(update_step.step(optimizer, loss, norm)))
        losses.append(float(loss))
        if len(refused) == 1:
            assert same(start, snapshot(model, optimizer)[: len(start)])
    count = sum(refused)
    assert refused == [1] * count + [0] * (60 - count)
    assert 0 < count < 40
    assert float(update_step.loss_scale) == 2.0 ** (40 - count)
    assert losses[-1] < losses[0] - 0.5


def test_unscaled_fp16_gradients_match_fp32() -> None:
    half, full = llama(), llama()
    scaled, plain = UpdateStep(CPU, loss_scale=LossScaleConfig()), UpdateStep(CPU)
    backward(half, scaled, dtype=torch.float16)
    backward(full, plain)
    norm, want = scaled.clip(half, 0.0), plain.clip(full, 0.0)
    assert float(norm) == pytest.approx(float(want), rel=1e-2)
    for (name, a), b in zip(half.named_parameters(), full.parameters(), strict=True):
        assert (a.grad - b.grad).norm() < 2e-2 * b.grad.norm(), name


def judged(update_step: UpdateStep, loss: float, norm: float = 1.0) -> int:
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.zeros(1)
    optimizer = torch.optim.SGD([weight], lr=0.0)
    return int(update_step.step(optimizer, torch.tensor(loss), torch.tensor(norm)))


def wavering(step: int) -> float:
    return 3.0 + 0.01 * (step % 5)


def test_spike_of_loss_or_norm_is_skipped_and_an_ordinary_step_is_not() -> None:
    update_step = UpdateStep(CPU, skip_step=SkipStepConfig(enabled=True, window=16))
    assert [judged(update_step, wavering(s), 1 + 0.01 * (s % 3)) for s in range(40)] == [0] * 40
    assert judged(update_step, 3.5) == 1
    assert judged(update_step, wavering(0)) == 0
    assert judged(update_step, 3.0, 5.0) == 1


def test_restored_state_skips_the_same_steps() -> None:
    def fresh() -> UpdateStep:
        return UpdateStep(
            CPU,
            loss_scale=LossScaleConfig(growth_interval=5),
            skip_step=SkipStepConfig(enabled=True, window=16),
        )

    straight = fresh()
    for step in range(12):
        judged(straight, wavering(step), 1 + 0.01 * step)
    judged(straight, 3.0, float("inf"))
    resumed = fresh()
    resumed.load({k: v.clone() for k, v in straight.state().items()})
    ahead = copy.deepcopy(straight)
    for loss, norm in ((3.0, 1.1), (4.5, 1.1), (3.02, 9.0), (3.01, float("nan"))):
        assert judged(ahead, loss, norm) == judged(resumed, loss, norm)
    for name, value in ahead.state().items():
        assert torch.equal(value, resumed.state()[name]), name
    assert int(resumed.skipped) == 4


def test_checkpoints_hold_the_state_under_names_that_never_change() -> None:
    whole = UpdateStep(CPU, loss_scale=LossScaleConfig(), skip_step=SkipStepConfig(enabled=True))
    names = {"skipped", "loss_scale", "loss_scale_calm", "spike_window", "spike_seen"}
    assert set(whole.state()) == names
    assert set(UpdateStep(CPU).state()) == {"skipped"}


@pytest.mark.parametrize(
    ("window", "values", "leaps"),
    [
        # Pairs of loss and gradient norm.
        (4, [(1.0, 1.0)] * 6, [False] * 6),
        (2, [(1.0, 1.0), (0.9, 0.9)], [False, False]),
        (2, [(1.0, 1.0), (1.3, 1.0)], [False, True]),
        (4, [(1.0, 1.0), (1.0, 9.0), (1.0, 1.0), (1.0, 9.0), (2.0, 5.0)], [False] * 4 + [True]),
        (4, [(1.0, 1.0), (9.0, 1.0), (1.0, 1.0), (9.0, 1.0), (5.0, 2.0)], [False] * 4 + [True]),
        (8, [(1.0, 1.0)] * 3 + [(5.0, 1.0)], [False] * 4),
        (8, [(1.0, 1.0)] * 4 + [(5.0, 1.0)], [False] * 4 + [True]),
        (5, [(1.0, 1.0)] * 2 + [(5.0, 1.0)], [False] * 2 + [True]),
    ],
    ids=[
        "the same again",
        "less than before",
        "more than the only value before",
        "a loss by its own spread",
        "a norm by its own spread",
        "too few to say",
        "half a window",
        "half of an odd window",
    ],
)
def test_outlier_is_far_above_the_last_values_of_its_series(
    window: int, values: list[tuple[float, float]], leaps: list[bool]
) -> None:
    spikes = Spikes(SkipStepConfig(enabled=True, window=window, sigmas=3.0), CPU)
    found = [bool(spikes.judge(torch.tensor(a), torch.tensor(b))) for a, b in values]
    assert found == leaps
