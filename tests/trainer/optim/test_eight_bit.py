"""8-bit AdamW stays close to AdamW, keeps 8-bit state, and its state survives as tensors."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from lehr_trainer import extras
from lehr_trainer.checkpointing import optimizer_state
from lehr_trainer.checkpointing.saved_tensors import SavedTensors
from lehr_trainer.configs.optimizer import EightBitAdamWConfig
from lehr_trainer.configs.presets import MODEL_PRESETS
from lehr_trainer.configs.train import LlamaConfig
from lehr_trainer.errors import BadConfig
from lehr_trainer.models.llama import Llama
from lehr_trainer.models.module_map import StableEmbedding, initialise, use_stable_embedding
from lehr_trainer.optim import adamw
from lehr_trainer.optim.adamw import build_eight_bit

LIBRARIES = ["bitsandbytes", "torchao"]


@pytest.fixture(autouse=True)
def _eager():
    """torchao compiles its step, 15 s for each shape here; the numbers are the same eagerly."""
    with torch.compiler.set_stance("force_eager"):
        yield


def llama() -> Llama:
    values = {**MODEL_PRESETS["tiny"].values, "num_hidden_layers": 1}
    model = Llama(LlamaConfig(**values))
    initialise(model, seed=0)
    return model


def backward(model, seed: int = 0) -> None:
    tokens = torch.randint(0, 512, (2, 33), generator=torch.Generator().manual_seed(seed))
    model.zero_grad()
    logits = model(tokens[:, :-1]) @ model.head_weight.T
    F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()


@pytest.mark.parametrize("library", LIBRARIES)
def test_steps_stay_close_to_those_of_adamw(library: str) -> None:
    ours, theirs = llama(), llama()
    optimizer = build_eight_bit(ours, EightBitAdamWConfig(library=library, lr=1e-3))
    decayed = [p for n, p in theirs.named_parameters() if p.ndim == 2 and "embed" not in n]
    kept = [p for n, p in theirs.named_parameters() if p.ndim == 1 or "embed" in n]
    oracle = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": kept, "weight_decay": 0.0}],
        lr=1e-3,
        betas=(0.9, 0.95),
    )
    start = {name: p.detach().clone() for name, p in ours.named_parameters()}
    for step in range(4):
        backward(theirs, step)
        for mine, their in zip(ours.parameters(), theirs.parameters(), strict=True):
            mine.grad = their.grad.clone()
        optimizer.step()
        oracle.step()
    for (name, got), want in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        exact = want.ndim == 1 or "embed" in name
        bound = 1e-4 if exact else 0.1
        assert (got - want).norm() < bound * (want - start[name]).norm(), name


def test_bitsandbytes_waits_for_the_device_once_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's own step waits after every parameter."""
    from bitsandbytes.optim import optimizer as library

    waits: list[str] = []
    monkeypatch.setattr(library, "sync_gpu", lambda _: waits.append("library"))
    monkeypatch.setattr(adamw, "_wait", lambda _: waits.append("once"), raising=False)
    model = llama()
    optimizer = build_eight_bit(model, EightBitAdamWConfig())
    for seed in range(2):
        backward(model, seed)
        optimizer.step()
    assert waits == ["once", "once"]


def test_steps_with_bitsandbytes_are_bitwise_those_of_its_own_class() -> None:
    from bitsandbytes.optim import AdamW8bit

    config = EightBitAdamWConfig(lr=1e-3)
    ours, theirs = llama(), llama()
    optimizer = build_eight_bit(ours, config)
    groups = optimizer.param_groups
    names = {id(p): name for name, p in ours.named_parameters()}
    of_theirs = dict(theirs.named_parameters())
    own = AdamW8bit(
        [
            {
                "params": [of_theirs[names[id(p)]] for p in group["params"]],
                "weight_decay": group["weight_decay"],
            }
            for group in groups
        ],
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
    )
    own.mng = object.__new__(type(optimizer.mng))
    own.mng.initialize()
    own.mng.override_config([theirs.embed_tokens.weight], "optim_bits", 32)
    for seed in range(3):
        backward(ours, seed)
        backward(theirs, seed)
        if seed == 1:  # A parameter without a gradient is left as it is.
            ours.layers[0].mlp.up_proj.weight.grad = None
            theirs.layers[0].mlp.up_proj.weight.grad = None
        optimizer.step()
        own.step()
    for (name, got), want in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert torch.equal(got, want), name


@pytest.mark.parametrize("library", LIBRARIES)
def test_moments_of_matrices_take_a_byte_each(library: str) -> None:
    model = llama()
    optimizer = build_eight_bit(model, EightBitAdamWConfig(library=library))
    backward(model)
    optimizer.step()
    weight = model.layers[0].mlp.up_proj.weight
    [name] = [name for name, parameter in model.named_parameters() if parameter is weight]
    _, tensors = optimizer_state.capture(model, optimizer)
    sizes = {k: v.numel() for k, v in tensors.items() if v.dtype == torch.uint8}
    assert [sizes[key] for key in sizes if key.startswith(f"{name}/")] == 2 * [weight.numel()]
    assert not any("embed_tokens" in key for key in sizes)


@pytest.mark.parametrize("library", LIBRARIES)
def test_state_goes_through_plain_tensors_and_continues_bitwise(library: str) -> None:
    config = EightBitAdamWConfig(library=library)
    straight, resumed = llama(), llama()
    one, two = build_eight_bit(straight, config), build_eight_bit(resumed, config)
    for model, optimizer in ((straight, one), (resumed, two)):
        backward(model)
        optimizer.step()
    document, tensors = optimizer_state.capture(resumed, two)
    saved = {key: tensor.clone() for key, tensor in tensors.items()}
    assert all(type(tensor) is torch.Tensor for tensor in saved.values())
    again = build_eight_bit(resumed, config)
    given = json.loads(json.dumps(document))
    optimizer_state.restore(Path("a"), resumed, again, given, SavedTensors.of(saved))
    for model, optimizer in ((straight, one), (resumed, again)):
        backward(model, 1)
        optimizer.step()
    for a, b in zip(straight.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("library", LIBRARIES)
def test_missing_library_is_a_clear_error(library: str, monkeypatch) -> None:
    module = "bitsandbytes" if library == "bitsandbytes" else "torchao.optim"
    monkeypatch.setitem(sys.modules, module, None)
    fix = re.escape(extras.install(library))
    with pytest.raises(BadConfig, match=f"optimizer.library: {library} .*{fix}, or use"):
        build_eight_bit(llama(), EightBitAdamWConfig(library=library))


def test_stable_embedding_matches_bitsandbytes() -> None:
    from bitsandbytes.nn import StableEmbedding as Theirs

    ours = StableEmbedding(50, 16)
    theirs = Theirs(50, 16)
    theirs.load_state_dict(ours.state_dict())
    tokens = torch.randint(0, 50, (3, 7))
    assert torch.equal(ours(tokens), theirs(tokens))


def test_stable_embedding_stays_tied_and_is_trained() -> None:
    model = llama()
    use_stable_embedding(model)
    initialise(model, seed=0)
    assert model.head_weight is model.embed_tokens.weight
    optimizer = build_eight_bit(model, EightBitAdamWConfig())
    backward(model)
    optimizer.step()
    held = [p for group in optimizer.param_groups for p in group["params"]]
    assert {id(p) for p in held} == {id(p) for p in model.parameters()}
    assert model.embed_tokens.norm.weight.grad.abs().sum() > 0
    bound = (6 / (512 + 128)) ** 0.5
    assert model.embed_tokens.weight.abs().max() < bound * 1.02
