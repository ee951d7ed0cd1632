"""Compiled equals eager, accumulation equals one large batch, and one process compiles.

The modes that record CUDA graphs are compared in tests/gpu/test_kernels.py.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from lehr_testing.graphs import captured_graphs
from lehr_testing.trainer import EAGER, finish, losses, make_run, training
from lehr_trainer.configs.execution import CompileConfig
from lehr_trainer.configs.presets import GPT2_TINY, MODEL_PRESETS
from lehr_trainer.configs.shapes import GPT2Config
from lehr_trainer.configs.train import LlamaConfig
from lehr_trainer.losses.chunked import cross_entropy
from lehr_trainer.models.gpt2 import GPT2
from lehr_trainer.models.llama import Llama
from lehr_trainer.models.module_map import initialise
from lehr_trainer.runtime.compiling import Accumulation, compile_key, compile_lock, compile_model


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def build(kind: str = "llama"):
    if kind == "gpt2":
        model = GPT2(GPT2Config(**{**GPT2_TINY, "num_hidden_layers": 2}))
    else:
        model = Llama(LlamaConfig(**{**MODEL_PRESETS["tiny"].values, "num_hidden_layers": 1}))
    initialise(model, seed=0)
    return model


def train(model, config: CompileConfig, *, micro_batch: int, steps: int = 3):
    """Return the losses and the last step's gradients."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    accumulation = Accumulation(model, config)
    generator = torch.Generator().manual_seed(0)
    losses = []
    for step in range(steps):
        tokens = torch.randint(0, 512, (4, 33), generator=generator)
        total = 0.0
        for part in tokens.split(micro_batch):
            accumulation.begin_micro_step()
            hidden = model(part[:, :-1])
            loss = cross_entropy(hidden, model.head_weight, part[:, 1:]) * micro_batch / 4
            loss.backward()
            total += loss.item()
        losses.append(total)
        gradients = [p.grad.clone() for p in model.parameters()]
        optimizer.step()
        accumulation.clear(optimizer)
        if step + 1 < steps and config.cuda_graphs:
            assert all(p.grad is not None for p in model.parameters())
    return losses, gradients


def close(got, want) -> None:
    assert got[0] == pytest.approx(want[0], rel=1e-4)
    for a, b in zip(got[1], want[1], strict=True):
        assert (a - b).norm() < 2e-3 * b.norm() + 1e-7


@pytest.mark.slow
@pytest.mark.nightly  # Each compiles for 10 s or more.
@pytest.mark.parametrize(
    "config",
    [CompileConfig(scope="block", fullgraph=True), CompileConfig(scope="model")],
    ids=lambda c: c.scope,
)
def test_each_scope_matches_an_eager_large_batch(config) -> None:
    eager = train(build(), CompileConfig(scope="none"), micro_batch=4)
    model = build()
    names = list(model.state_dict())
    compile_model(model, config)
    close(train(model, config, micro_batch=1), eager)
    assert list(model.state_dict()) == names


def test_all_blocks_share_one_graph() -> None:
    model = build("gpt2")
    config = CompileConfig(scope="block", fullgraph=True)
    compile_model(model, config)
    with captured_graphs() as graphs:
        train(model, config, micro_batch=4)
    assert len(graphs) == 1


def test_without_cuda_graphs_gradients_are_dropped() -> None:
    model = build()
    accumulation = Accumulation(model, CompileConfig(scope="block"))
    assert all(p.grad is None for p in model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.zeros(1, 4, dtype=torch.long)).sum().backward()
    accumulation.clear(optimizer)
    assert all(p.grad is None for p in model.parameters())


def test_one_compiles_while_seven_wait_and_report_it(tmp_path: Path) -> None:
    """Threads stand for processes: the lock belongs to an open file, and each opens its own."""
    waiting: list[str] = []
    all_wait = threading.Event()

    def notify(_phase: str, message: str, _done: float | None) -> None:
        if "waiting for its result" in message:
            waiting.append(message)
            if len(waiting) == 7:
                all_wait.set()

    def take_turn(_number: int) -> tuple[bool, bool]:
        with compile_lock("key", notify, folder=tmp_path) as first:
            if first:
                assert all_wait.wait(60)
                (tmp_path / "cache").touch()
            return first, (tmp_path / "cache").exists()

    with ThreadPoolExecutor(8) as pool:
        turns = list(pool.map(take_turn, range(8)))
    assert sorted(turns) == [*[(False, True)] * 7, (True, True)]
    assert len(waiting) == 7
    assert any(f"process {os.getpid()} compiles" in message for message in waiting)


def test_after_compiling_nobody_waits_and_a_failure_releases_the_lock(tmp_path: Path) -> None:
    def quiet(*_: object) -> None:
        return None

    with pytest.raises(RuntimeError, match="boom"), compile_lock("a", quiet, folder=tmp_path):
        raise RuntimeError("boom")
    turns = []
    for _ in range(2):
        with compile_lock("a", quiet, folder=tmp_path) as first:
            turns.append(first)
    assert turns == [True, False]


def test_compile_key_depends_on_what_shapes_the_graph() -> None:
    assert compile_key({"hidden": 8}, [4, 32]) == compile_key({"hidden": 8}, [4, 32])
    assert compile_key({"hidden": 8}, [4, 32]) != compile_key({"hidden": 8}, [8, 32])


def test_ranks_whose_optimizer_exchanges_updates_do_not_wait_for_each_other_in_the_lock(
    tmp_path: Path, corpus: Path, data: Path
) -> None:
    """A rank in the compile lock must not meet a collective: the others wait for that lock."""
    run = make_run(
        tmp_path / "run",
        corpus,
        steps=1,
        compile={"scope": "block"},
        checkpoint={"every": 0},
        optimizer={"name": "muon", "lr": 0.01, "embedding_lr": 1e-3},
    )
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    with training(run, ranks=2, data=data, code=EAGER, **cache) as process:
        ended, output = finish(process, within_s=180)
    assert ended == 0, output
    assert [path.suffix for path in (tmp_path / "cache").glob("lehr-*")].count(".done") == 1
    assert losses(run / "attempt-1").keys() == {1}
