"""Muon and its AdamW groups against torch's own, and the group of each parameter."""

from __future__ import annotations

import copy
import json
import os
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from lehr_testing.forking import fork
from lehr_testing.paths import TESTING
from lehr_trainer.configs.optimizer import MuonConfig
from lehr_trainer.configs.presets import GPT2_TINY, MODEL_PRESETS
from lehr_trainer.configs.shapes import GPT2Config
from lehr_trainer.configs.train import LlamaConfig
from lehr_trainer.errors import BadConfig
from lehr_trainer.models.gpt2 import GPT2
from lehr_trainer.models.llama import Llama
from lehr_trainer.models.module_map import initialise
from lehr_trainer.optim.adamw import roles, set_lr_factor
from lehr_trainer.optim.muon import build_muon
from lehr_trainer.optim.orthogonal import Iteration

pytestmark = pytest.mark.xdist_group("forks")


def llama(tied: bool = True) -> Llama:
    values = {**MODEL_PRESETS["tiny"].values, "tie_embeddings": tied, "num_hidden_layers": 2}
    model = Llama(LlamaConfig(**values))
    initialise(model, seed=0)
    return model


def backward(model, seed: int = 0) -> None:
    tokens = torch.randint(0, 512, (2, 33), generator=torch.Generator().manual_seed(seed))
    model.zero_grad()
    logits = model(tokens[:, :-1]) @ model.head_weight.T
    F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()


@pytest.mark.parametrize("adjust_lr", ["original", "match_rms_adamw"])
@pytest.mark.parametrize("nesterov", [True, False])
def test_three_steps_match_torch_muon_and_adamw(adjust_lr: str, nesterov: bool) -> None:
    ours = llama(tied=False)
    theirs = copy.deepcopy(ours)
    config = MuonConfig(
        adjust_lr=adjust_lr, nesterov=nesterov, embedding_lr=1e-3, head_lr=2e-3, norm_lr=5e-4
    )
    optimizer = build_muon(ours, config)
    role = roles(theirs)

    def members(kind):
        return [p for name, p in theirs.named_parameters() if role[name] == kind]

    oracles = [
        torch.optim.Muon(
            members("matrix"), lr=0.02, weight_decay=0.1, momentum=0.95,
            nesterov=nesterov, adjust_lr_fn=adjust_lr,
        ),
        torch.optim.AdamW(
            [
                {"params": members("embedding"), "lr": 1e-3},
                {"params": members("head"), "lr": 2e-3},
                {"params": members("vector"), "lr": 5e-4},
            ],
            betas=(0.9, 0.95), weight_decay=0.0, fused=True,
        ),
    ]  # fmt: skip
    start = {name: p.detach().clone() for name, p in ours.named_parameters()}
    for step in range(3):
        backward(ours, step)
        for ours_p, theirs_p in zip(ours.parameters(), theirs.parameters(), strict=True):
            theirs_p.grad = ours_p.grad.clone()  # the same gradients: only the step is compared
        optimizer.step()
        for oracle in oracles:
            oracle.step()
    for (name, got), want in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        moved = want - start[name]
        # The iteration runs in bf16; batched products may sum in another order.
        bound = 2e-2 if role[name] == "matrix" else 1e-6
        assert (got - want).norm() <= bound * moved.norm(), name


VARIANTS: dict[str, dict[str, Any]] = {
    "polar_express": {"coefficients": "polar_express"},
    "normuon": {"normuon_beta": 0.9},
    "normuon_matching_rms": {"normuon_beta": 0.9, "adjust_lr": "match_rms_adamw"},
    "cautious": {"cautious_weight_decay": True},
    "all": {
        "coefficients": "polar_express",
        "normuon_beta": 0.95,
        "cautious_weight_decay": True,
        "qkv_heads": 1,
    },
}


def published(
    weight: torch.Tensor, gradients: list[torch.Tensor], config: MuonConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a matrix after updates as published, in float64, and where none of them was near 0.

    Algorithms 1 of arXiv:2505.16932 and arXiv:2510.05491, equation 1 of arXiv:2510.12402.
    """
    w = weight.double()
    (m, n), sure = w.shape, torch.ones_like(w)
    momentum, v = torch.zeros_like(w), w.new_zeros(m, 1)
    iteration = Iteration.of(config.coefficients, 5)  # Its numbers are tested in test_orthogonal.
    for gradient in gradients:
        momentum = config.momentum * momentum + (1 - config.momentum) * gradient
        x = momentum.mT if m > n else momentum
        x = x / (x.norm() * (1.01 if config.coefficients == "polar_express" else 1))
        for a, b, c in iteration.polynomials:
            gram = x @ x.mT
            x = a * x + (b * gram + c * gram @ gram) @ x
        o = x.mT if m > n else x
        matching = config.adjust_lr == "match_rms_adamw"
        rate = config.lr * (0.2 * max(m, n) ** 0.5 if matching else max(1, m / n) ** 0.5)
        if config.normuon_beta is not None:
            v = config.normuon_beta * v + (1 - config.normuon_beta) * (o * o).mean(1, keepdim=True)
            o = o / (v.sqrt() + 1e-8)
            # Without the paper's 0.2 sqrt(mn): the norm of Muon's update.
            rate *= min(m, n) ** 0.5 / o.norm()
            if matching:
                assert rate == pytest.approx(0.2 * config.lr * (m * n) ** 0.5 / o.norm())
        decayed = (o * w >= 0) if config.cautious_weight_decay else 1
        w = w - config.lr * config.weight_decay * decayed * w - rate * o
        sure *= o.abs() > 0.05 * o.square().mean().sqrt()
    return w, sure


@pytest.mark.parametrize("name", VARIANTS)
def test_updates_are_those_of_the_published_text(name: str) -> None:
    draw = torch.Generator().manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(48, 32, bias=False), torch.nn.Linear(24, 72, bias=False)
    )
    scales = torch.logspace(-2, 0, 72)[:, None]  # Rows differ, or NorMuon would change little.
    changes = {k: v for k, v in VARIANTS[name].items() if k != "qkv_heads"}
    config = MuonConfig(nesterov=False, weight_decay=3.0, **changes)
    optimizer = build_muon(model, config)
    starts = [p.detach().clone() for p in model.parameters()]
    gradients = [
        [torch.randn(p.shape, generator=draw) * scales[: len(p)] for p in model.parameters()]
        for _ in range(3)
    ]
    for step in gradients:
        for parameter, gradient in zip(model.parameters(), step, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    for index, parameter in enumerate(model.parameters()):
        want, sure = published(starts[index], [step[index] for step in gradients], config)
        # bf16 may turn the sign of an update near 0, and with it whether a weight is decayed.
        error, moved = (parameter - want) * sure, (want - starts[index]) * sure
        assert error.norm() <= 2e-2 * moved.norm()


def test_batch_size_of_orthogonalisation_does_not_change_updates() -> None:
    whole, split = llama(), llama()
    for model, batch_mb in ((whole, 256), (split, 1)):
        optimizer = build_muon(model, MuonConfig(batch_mb=batch_mb))
        for group in optimizer.param_groups:
            if batch_mb == 1 and "batch_bytes" in group:
                group["batch_bytes"] = 1  # one matrix at a time
        backward(model)
        optimizer.step()
    for a, b in zip(whole.parameters(), split.parameters(), strict=True):
        assert torch.allclose(a, b, atol=2e-3)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_each_parameter_is_in_exactly_one_group(kind: str, tied: bool) -> None:
    model = (
        llama(tied)
        if kind == "llama"
        else GPT2(GPT2Config(**{**GPT2_TINY, "tie_embeddings": tied}))
    )
    groups = {g["name"]: g["params"] for g in build_muon(model, MuonConfig()).param_groups}
    held = [id(p) for members in groups.values() for p in members]
    assert sorted(held) == sorted(id(p) for p in model.parameters())
    assert ("head" in groups) is not tied
    names = {id(p): name for name, p in model.named_parameters()}
    assert all(
        p.ndim == 2 and (".h." in f".{names[id(p)]}" or ".layers." in f".{names[id(p)]}")
        for p in groups["matrix"]
    )
    assert {names[id(p)] for p in groups["embedding"]} == (
        {"embed_tokens.weight"} if kind == "llama" else {"wte.weight", "wpe.weight"}
    )
    assert all(p.ndim == 1 for p in groups["vector"])


def test_tied_head_with_its_own_rate_is_refused() -> None:
    config = MuonConfig(embedding_lr=1e-3, head_lr=2e-3)
    with pytest.raises(
        ValueError, match=r"head_lr 0\.002 differs .* one weight, which has one rate"
    ):
        build_muon(llama(tied=True), config)
    build_muon(llama(tied=False), config)
    build_muon(llama(tied=True), MuonConfig(embedding_lr=1e-3, head_lr=1e-3))


@pytest.mark.parametrize("changes", [{}, VARIANTS["all"]], ids=["plain", "all"])
def test_state_restored_from_a_checkpoint_continues_bitwise(changes: dict[str, Any]) -> None:
    straight, broken, config = llama(), llama(), MuonConfig(**changes)
    one, two = build_muon(straight, config), build_muon(broken, config)
    for model, optimizer in ((straight, one), (broken, two)):
        backward(model)
        optimizer.step()
    again = build_muon(broken, config)
    again.load_state_dict(copy.deepcopy(two.state_dict()))
    for model, optimizer in ((straight, one), (broken, again)):
        backward(model, 1)
        optimizer.step()
    assert all(
        torch.equal(a, b) for a, b in zip(straight.parameters(), broken.parameters(), strict=True)
    )


RANKS = 4


@pytest.fixture(scope="module")
def over_ranks(tmp_path_factory) -> list[dict]:
    folder = tmp_path_factory.mktemp("ranks")
    begin = f"import sys; sys.path.insert(0, {str(TESTING.parent)!r})"
    processes = [
        fork(
            None,
            code=f"{begin}; from lehr_testing.muon_ranks import main; main{given!r}",
            environment={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(RANKS)
        for given in [(rank, RANKS, str(folder / "store"), str(folder / f"{rank}.json"))]
    ]
    try:
        for process in processes:
            out, _ = process.communicate(120)
            assert process.returncode == 0, out
    finally:
        for process in processes:
            process.end_session()
            process.close()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


def test_ranks_that_share_the_work_have_the_weights_of_one_that_does_it_all(over_ranks) -> None:
    """Three layers have 3 or 6 matrices of a shape: no multiple of four ranks."""
    kinds = ("shared", "small_batches", "whole")
    assert len({one[kind]["weights"] for one in over_ranks for kind in kinds}) == 1


def test_rows_of_sharded_weights_move_as_in_the_whole(over_ranks) -> None:
    assert max(one["rows"] for one in over_ranks) < 1e-5


def test_each_rank_orthogonalises_its_share_and_no_matrix_is_done_twice(over_ranks) -> None:
    matrices = 2 * 7 * 3  # In two steps: seven a layer.
    assert [one["whole"]["orthogonalised"] for one in over_ranks] == [matrices] * RANKS
    for kind in ("shared", "small_batches"):
        done = [one[kind]["orthogonalised"] for one in over_ranks]
        assert sum(done) == matrices
        assert max(done) < matrices / 2


@pytest.mark.parametrize(
    ("kind", "qkv_heads", "parts"),
    [
        ("gpt2", None, {"c_attn": 3}),
        ("gpt2", 2, {"c_attn": 6}),
        ("llama", 1, {"q_proj": 4, "k_proj": 2, "v_proj": 2, "o_proj": 1}),
    ],
)
def test_parts_of_a_weight_move_as_matrices_of_their_own(
    kind: str, qkv_heads: int | None, parts: dict[str, int]
) -> None:
    model = llama() if kind == "llama" else GPT2(GPT2Config(**GPT2_TINY))
    initialise(model, seed=0)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    config = MuonConfig(nesterov=False, weight_decay=0.0, qkv_heads=qkv_heads)
    optimizer = build_muon(model, config)
    backward(model)
    optimizer.step()
    checked = set()
    for name, parameter in model.named_parameters():
        linear, _, what = name.rpartition(".")
        number = parts.get(linear.rpartition(".")[2])
        if number is None or what != "weight":
            continue
        assert parameter.grad is not None
        # One momentum of the weight's shape, as in checkpoints of before.
        assert optimizer.state[parameter]["momentum_buffer"].shape == parameter.shape
        trios = (t.detach().chunk(number) for t in (parameter, start[name], parameter.grad))
        for moved, before, gradient in zip(*trios, strict=True):
            alone = torch.nn.Parameter(before.clone())
            alone.grad = gradient.clone()
            oracle = torch.optim.Muon([alone], lr=0.02, weight_decay=0.0, nesterov=False)
            oracle.step()
            expected = alone.detach() - before
            assert (moved - before - expected).norm() <= 2e-2 * expected.norm()
        checked.add(linear.rpartition(".")[2])
    assert checked == parts.keys()


def test_model_that_does_not_tell_its_heads_refuses_to_split_them() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8))
    with pytest.raises(BadConfig, match="qkv_heads 1: Sequential does not tell which weights"):
        build_muon(model, MuonConfig(qkv_heads=1))


def test_update_that_overflowed_changes_neither_weights_nor_state() -> None:
    model = llama()
    optimizer = build_muon(model, MuonConfig(**VARIANTS["all"]))
    backward(model)
    optimizer.step()

    def held() -> list[torch.Tensor]:
        states = (state.values() for state in optimizer.state.values())
        return [*model.parameters(), *(value for values in states for value in values)]

    before = [tensor.detach().clone() for tensor in held()]
    backward(model, 1)
    for parameter in model.parameters():
        parameter.grad[0] = float("inf")
    optimizer.found_inf = torch.tensor(1.0)  # type: ignore[attr-defined]
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, held(), strict=True))


def test_weight_decay_falls_as_half_a_cosine_over_the_run() -> None:
    """0.5 (1 + cos(pi step / steps)), steps counted from 0, as nanochat's base_train.py has it."""
    config = MuonConfig(weight_decay=0.2, weight_decay_schedule="cosine")
    optimizer = build_muon(llama(), config)
    decays = []
    for step in range(5):
        set_lr_factor(optimizer, 0.5, config.decay_factor(step / 4))
        decays.append([group["weight_decay"] for group in optimizer.param_groups])
    assert decays == [pytest.approx([d, 0, 0]) for d in (0.2, 0.1707107, 0.1, 0.0292893, 0)]
