"""Compiled equals eager, accumulation equals one large batch, and one process compiles.

The modes that record CUDA graphs are compared in tests/gpu/test_kernels.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lehr_testing.graphs import captured_graphs
from lehr_testing.paths import TESTING
from lehr_testing.trainer import EAGER, finish, losses, make_run, training
from lehr_trainer.configs.execution import CompileConfig
from lehr_trainer.configs.shapes import GPT2_TINY, MODEL_PRESETS, GPT2Config
from lehr_trainer.configs.train import LlamaConfig
from lehr_trainer.losses.chunked import cross_entropy
from lehr_trainer.models.gpt2 import GPT2
from lehr_trainer.models.llama import Llama
from lehr_trainer.models.module_map import initialise
from lehr_trainer.runtime.compiling import Accumulation, compile_key, compile_lock, compile_model

SCRIPT = TESTING / "compile_turns.py"
EXCHANGING = """
import torch
import torch.distributed as dist

class Exchanging(torch.optim.AdamW):
    def step(self, closure=None):
        loss = super().step(closure)
        dist.barrier()
        return loss

def build(model, config):
    return Exchanging(model.parameters(), lr=config.lr)
"""


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
    [
        CompileConfig(scope="block", fullgraph=True),
        CompileConfig(scope="model"),
    ],
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


def test_one_process_compiles_while_seven_wait_and_report_it(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(tmp_path), str(index), "7"],
            stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for index in range(8)
    ]  # fmt: skip
    try:
        outputs = [json.loads(process.communicate(timeout=120)[0]) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [o["first"] for o in outputs].count(True) == 1
    assert all(o["hit"] for o in outputs)
    waiting = [o for o in outputs if any("waiting for its result" in m for m in o["said"])]
    assert len(waiting) == 7
    holder = next(p.pid for p, o in zip(processes, outputs, strict=True) if o["first"])
    assert any(f"process {holder} compiles" in m for o in waiting for m in o["said"])


def test_after_compiling_nobody_waits_and_a_failure_releases_the_lock(
    tmp_path: Path,
) -> None:
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


@pytest.mark.parametrize("optimizer", ["muon", "a project's"])
def test_ranks_whose_optimizer_exchanges_updates_do_not_wait_for_each_other_in_the_lock(
    optimizer: str, tmp_path: Path, corpus: Path, data: Path
) -> None:
    """A rank in the compile lock must not meet a collective: the others wait for that lock."""
    changes: dict[str, Any] = {"optimizer": {"name": "muon", "lr": 0.01, "embedding_lr": 1e-3}}
    code = EAGER
    if optimizer != "muon":
        module = tmp_path / "code" / "exchanging.py"
        module.parent.mkdir()
        module.write_text(EXCHANGING)
        code += f"import sys; sys.path.insert(0, {str(module.parent)!r})\n"
        changes = {"parts": {"version": 1, "optimizer": "exchanging:build"}}
    run = make_run(
        tmp_path / "run",
        corpus,
        steps=1,
        compile={"scope": "block"},
        checkpoint={"every": 0},
        **changes,
    )
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    with training(run, ranks=2, data=data, code=code, **cache) as process:
        ended, output = finish(process, within_s=180)
    assert ended == 0, output
    assert [path.suffix for path in (tmp_path / "cache").glob("lehr-*")].count(".done") == 1
    assert losses(run / "attempt-1").keys() == {1}
