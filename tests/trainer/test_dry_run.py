"""The dry run before step 1: every shape, beside the optimizer's state; all is restored."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from lehr_testing import optimizers
from lehr_testing.optimizers import OPTIMIZERS, TORCHAO
from lehr_testing.specs import train as train_values
from lehr_trainer.checkpointing.optimizer_state import capture, remember_config
from lehr_trainer.checkpointing.state import save_generators
from lehr_trainer.configs.execution import ParallelConfig
from lehr_trainer.configs.train import PrecisionConfig, TrainConfig
from lehr_trainer.dry_run import DryRun
from lehr_trainer.errors import BadConfig
from lehr_trainer.losses.chunked import cross_entropy, summed_cross_entropy
from lehr_trainer.models import build_model
from lehr_trainer.optim import build_optimizer, set_lr_factor
from lehr_trainer.runtime.compiling import Accumulation
from lehr_trainer.runtime.distributed import Ranks, overflow_counts
from lehr_trainer.runtime.precision import Precision

CPU = torch.device("cpu")
BIG_BATCH = {
    "sequences": 32,
    "sequence_length": 16,
    "micro_batch": 8,
    "stages": [{"after": 0.9, "sequence_length": 32}],
}
WIDE = {"preset": "tiny", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1}


def config(**changes: Any) -> TrainConfig:
    values = {"model": WIDE, "batch": BIG_BATCH, "steps": 10, **changes}
    return TrainConfig.model_validate(train_values(Path("unused"), **values))


def test_each_remaining_shape_is_run_once() -> None:
    batch = config().batch
    assert batch.shapes_ahead(10) == [(8, 16), (4, 32)]
    assert batch.shapes_ahead(10, taken=8) == [(8, 16), (4, 32)]
    assert batch.shapes_ahead(10, taken=9) == [(4, 32)]
    assert batch.shapes_ahead(10, taken=10) == []
    plain = {"sequences": 32, "sequence_length": 16}
    assert config(batch=plain).batch.shapes_ahead(10, 4, taken=3) == [(8, 16)]
    back = [{"after": 0.5, "sequence_length": 32}, {"after": 0.9, "sequence_length": 16}]
    again = config(batch={**plain, "stages": back}).batch
    assert again.shapes_ahead(10, 2) == [(16, 16), (8, 32)]


class Trained:
    """A model, its optimizer, and what training them needs."""

    def __init__(self, optimizer: str, *, in_buckets: bool = False) -> None:
        self.config = config(optimizer=optimizers.settings(optimizer))
        self.model = build_model(self.config.model, device="cpu", seed=0)
        self.optimizer = build_optimizer(self.model, self.config.optimizer)
        self.accumulation = Accumulation(
            self.model, self.config.compile.on("cpu"), in_buckets=in_buckets
        )

    def dry_run(self, wrapped: nn.Module | None = None, *, accumulates: bool = False) -> None:
        dry_run = DryRun(
            self.model,
            self.optimizer,
            self.accumulation,
            Precision.choose(PrecisionConfig(compute="fp32"), CPU),
            summed_cross_entropy,
            lambda tokens: (tokens,),
            accumulates,
            self.config,
        )
        dry_run.run(self.config.batch.shapes_ahead(self.config.steps), wrapped)

    def step(self, seed: int) -> None:
        tokens = torch.randint(0, 512, (2, 17), generator=torch.Generator().manual_seed(seed))
        set_lr_factor(self.optimizer, 0.5)
        loss = cross_entropy(self.model(tokens[:, :-1]), self.model.head_weight, tokens[:, 1:])
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def tensors(self) -> dict[str, torch.Tensor]:
        _, state = capture(self.model, self.optimizer)
        weights = self.model.state_dict()
        return {name: tensor.clone() for name, tensor in {**state, **weights}.items()}


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[Ranks]:
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield Ranks(0, 1, CPU, dist.new_group(backend="gloo"))
    dist.destroy_process_group()


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@torch.compiler.set_stance("force_eager")  # torchao compiles its step, for 20 s
@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, TORCHAO])
def test_dry_run_restores_all_state_bitwise(optimizer: str) -> None:
    trained, plain = Trained(optimizer), Trained(optimizer)
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 - the generator that a checkpoint holds
    torch.manual_seed(1)
    before, generators = trained.tensors(), save_generators()
    rates = [float(group["lr"]) for group in trained.optimizer.param_groups]
    trained.dry_run()
    assert same(trained.tensors(), before)
    assert save_generators() == generators
    assert [float(group["lr"]) for group in trained.optimizer.param_groups] == rates
    assert all(parameter.grad is None for parameter in trained.model.parameters())
    for seed in range(2):
        trained.step(seed)
        plain.step(seed)
    assert same(trained.tensors(), plain.tensors())


def test_ddp_buckets_are_built_before_the_first_step(one_rank: Ranks) -> None:
    """DDP rebuilds its buckets once; a resumed run must have the final ones from its first step."""
    trained, plain = Trained("adamw"), Trained("adamw")
    sharing = ParallelConfig(bucket_mb=0.05, compression="bf16")
    wrapped = one_rank.wrap(trained.model, sharing)
    overflows = overflow_counts(wrapped)
    assert overflows is not None
    overflows.fill_(3)
    sent: list[list[int]] = []
    reduce = wrapped.lehr_compression.reduce

    def note(bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        sent[-1].append(bucket.buffer().numel())
        return reduce(bucket)

    wrapped.lehr_compression.reduce = note
    sent.append([])
    trained.dry_run(wrapped)
    assert set(overflows.tolist()) == {3}
    assert same(trained.tensors(), plain.tensors())
    for seed in range(2):
        sent.append([])
        tokens = torch.randint(0, 512, (2, 17), generator=torch.Generator().manual_seed(seed))
        hidden = wrapped(tokens[:, :-1])
        cross_entropy(hidden, trained.model.head_weight, tokens[:, 1:]).backward()
        trained.optimizer.zero_grad()
    assert len(sent[0]) > 2, "several buckets, or there is nothing to see"
    assert sent[1] == sent[2]


def test_ranks_are_told_of_an_unused_parameter_before_the_first_step(one_rank: Ranks) -> None:
    trained = Trained("adamw")
    trained.model.norm.unused = nn.Parameter(torch.zeros(3))
    with pytest.raises(BadConfig, match=r"on 1 trained parameters, the first is norm\.unused"):
        trained.dry_run(one_rank.wrap(trained.model, ParallelConfig()))
    trained.model.norm.unused.requires_grad_(False)
    trained.dry_run(one_rank.wrap(trained.model, ParallelConfig()))


def test_step_of_an_own_optimizer_is_undone() -> None:
    class Counting(torch.optim.Optimizer):
        def step(self, closure: None = None) -> None:
            for group in self.param_groups:
                group["k"] += 1
                for parameter in group["params"]:
                    self.state[parameter]["seen"] = True
                    parameter.data += 1

    trained = Trained("adamw")
    groups = [{"params": [*trained.model.parameters()], "k": 0, "lr": 0.1, "peak_lr": 0.1}]
    trained.optimizer = Counting(groups, {})
    remember_config(trained.optimizer)
    before = trained.tensors()
    trained.dry_run()
    assert same(trained.tensors(), before)
    assert trained.optimizer.param_groups[0]["k"] == 0


@pytest.mark.parametrize(("accumulates", "alive"), [(False, [0, 0]), (True, [0, 1, 0, 1])])
def test_gradients_exist_beside_activations_as_in_a_real_step(
    accumulates: bool, alive: list[int]
) -> None:
    trained = Trained("adamw")
    seen: list[float] = []

    def look(*_: object) -> None:
        gradients = [p.grad is not None for p in trained.model.parameters()]
        seen.append(sum(gradients) / len(gradients))

    trained.model.register_forward_pre_hook(look)
    trained.dry_run(accumulates=accumulates)
    assert seen == alive


def test_accumulated_gradients_stay_in_the_buckets_of_ddp(one_rank: Ranks) -> None:
    """Outside of them each gradient would exist twice until the last micro-batch is reduced."""
    trained = Trained("adamw", in_buckets=True)
    wrapped = one_rank.wrap(trained.model, ParallelConfig(bucket_mb=0.05))
    trained.dry_run(wrapped, accumulates=True)

    def places() -> list[int | None]:
        return [None if p.grad is None else p.grad.data_ptr() for p in trained.model.parameters()]

    def micro_batch(*, last: bool) -> None:
        tokens = torch.randint(0, 512, (2, 17), generator=torch.Generator().manual_seed(0))
        with one_rank.no_sync_while(wrapped, keep=not last):
            hidden = wrapped(tokens[:, :-1])
            cross_entropy(hidden, trained.model.head_weight, tokens[:, 1:]).backward()

    for _ in range(2):
        before = places()
        micro_batch(last=False)
        added_up = places()
        micro_batch(last=True)
        assert None not in added_up
        assert before == added_up == places()
        trained.optimizer.step()
        trained.accumulation.clear(trained.optimizer)
