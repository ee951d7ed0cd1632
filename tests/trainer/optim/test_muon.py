"""Muon and its AdamW groups against torch's own, and the group of each parameter."""

from __future__ import annotations

import copy
import json
import os

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from lehr_testing.forking import fork
from lehr_testing.paths import TESTING
from lehr_trainer.configs.optimizer import MuonConfig
from lehr_trainer.configs.shapes import GPT2_TINY, MODEL_PRESETS, GPT2Config
from lehr_trainer.configs.train import LlamaConfig
from lehr_trainer.models.gpt2 import GPT2
from lehr_trainer.models.llama import Llama
from lehr_trainer.models.module_map import initialise
from lehr_trainer.optim import muon
from lehr_trainer.optim.adamw import roles
from lehr_trainer.optim.muon import build_muon, orthogonalise

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


def test_orthogonalised_matrices_have_singular_values_near_one_and_the_same_vectors() -> None:
    for shape in ((3, 48, 32), (3, 32, 48)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        out = orthogonalise(x, 5).float()
        values = torch.linalg.svdvals(out)
        assert values.min() > 0.3
        assert values.max() < 1.4
        u, _, v = torch.linalg.svd(x, full_matrices=False)
        core = u.mT @ out @ v.mT
        off = core - torch.diag_embed(core.diagonal(dim1=1, dim2=2))
        assert off.norm() < 0.1 * core.norm()


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


def test_state_restored_from_a_checkpoint_continues_bitwise() -> None:
    straight, broken = llama(), llama()
    one, two = build_muon(straight, MuonConfig()), build_muon(broken, MuonConfig())
    for model, optimizer in ((straight, one), (broken, two)):
        backward(model)
        optimizer.step()
    again = build_muon(broken, MuonConfig())
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
    weights = {one[kind]["weights"] for one in over_ranks for kind in one}
    assert len(weights) == 1


def test_each_rank_orthogonalises_its_share_and_no_matrix_is_done_twice(over_ranks) -> None:
    matrices = 2 * 7 * 3  # In two steps: seven a layer.
    assert [one["whole"]["orthogonalised"] for one in over_ranks] == [matrices] * RANKS
    for kind in ("shared", "small_batches"):
        done = [one[kind]["orthogonalised"] for one in over_ranks]
        assert sum(done) == matrices
        assert max(done) < matrices / 2


def test_parts_of_a_joint_weight_move_as_matrices_of_their_own() -> None:
    model = GPT2(GPT2Config.model_validate({**GPT2_TINY, "num_hidden_layers": 2}))
    initialise(model, seed=0)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = build_muon(model, MuonConfig(nesterov=False, weight_decay=0.0))
    backward(model)
    optimizer.step()
    parts = 0
    for name, parameter in model.named_parameters():
        if not name.endswith("c_attn.weight"):
            continue
        assert parameter.grad is not None
        # One momentum of the weight's shape, as in checkpoints of before.
        assert optimizer.state[parameter]["momentum_buffer"].shape == parameter.shape
        trios = (tensor.detach().chunk(3) for tensor in (parameter, start[name], parameter.grad))
        for moved, before, gradient in zip(*trios, strict=True):
            alone = torch.nn.Parameter(before.clone())
            alone.grad = gradient.clone()
            oracle = torch.optim.Muon([alone], lr=0.02, weight_decay=0.0, nesterov=False)
            oracle.step()
            expected = alone.detach() - before
            assert (moved - before - expected).norm() <= 2e-2 * expected.norm()
            parts += 1
    assert parts == 6


@pytest.mark.filterwarnings("error")
def test_exchange_uses_no_deprecated_name() -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    # It sends nothing, and so needs no other rank.
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        directions = [torch.randn(4, 6) for _ in range(3)]
        exchange = muon.Shares.of_all_ranks().orthogonalise(directions, steps=2)
        assert exchange.wait().shape == (3, 4, 6)
    finally:
        dist.destroy_process_group()
