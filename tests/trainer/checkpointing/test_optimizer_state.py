"""An optimizer's state in a checkpoint: what it holds, and the optimizers of others."""

from __future__ import annotations

import copy
import importlib
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import nn

from lehr_trainer import parts
from lehr_trainer.checkpointing import checkpoint, optimizer_state
from lehr_trainer.checkpointing.saved_tensors import SavedTensors
from lehr_trainer.configs.optimizer import AdamWConfig
from lehr_trainer.configs.presets import MODEL_PRESETS
from lehr_trainer.configs.train import LlamaConfig
from lehr_trainer.errors import BadCheckpoint, BadConfig
from lehr_trainer.losses.chunked import cross_entropy
from lehr_trainer.models import build_model
from lehr_trainer.optim import build_optimizer, set_lr_factor

SHAPE = LlamaConfig.model_validate(
    {
        **MODEL_PRESETS["tiny"].values,
        "vocab_size": 32,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    }
)
CONFIG = AdamWConfig(lr=1e-3)


PACKAGE = "pytorch_optimizer"
OTHERS = importlib.import_module(PACKAGE).get_supported_optimizers() if find_spec(PACKAGE) else []
OTHER_ARGUMENTS = frozenset(
    [
        "adago",
        "adalomo",
        "adammini",
        "adamuon",
        "bsam",
        "demo",
        "distributedmuon",
        "lomo",
        "muon",
        "muonclip",
        "normuon",
        "ranger21",
    ]
)
"""Not made from parameters and a rate alone."""
REFUSED = {
    "a2grad": "a group without lr",
    "alig": "a group without lr",
    "adahessian": "does not require grad",
    "adashift": "grad_queue is a deque",
    "conda": "projector is a GaLoreProjector",
    "emofact": "an entry of no parameter: 'ema'",
    "emolynx": "an entry of no parameter: 'ema'",
    "emonavi": "an entry of no parameter: 'ema'",
    "lbfgs": "missing 1 required positional argument: 'closure'",
    "lorarite": "shapes cannot be multiplied",
    "madgrad": "an entry of no parameter: 'k'",
    "magma": "KeyError",
    "scalableshampoo": "graft is a SGDGraft",
    "sophiah": "does not require grad",
    "spam": "an entry of no parameter: 'total_step'",
    "spectralsphere": "only supports 2D parameters",
    "stablespam": "differs some steps after it is loaded",
}


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, numbers: range) -> None:
    """Take real steps, each of which depends only on its number and the state."""
    for number in numbers:
        np.random.seed(number)  # noqa: NPY002 - the generator that a checkpoint holds
        torch.manual_seed(number)
        tokens = torch.randint(0, SHAPE.vocab_size, (4, 17))
        cross_entropy(model(tokens[:, :-1]), model.head_weight, tokens[:, 1:]).backward()
        set_lr_factor(optimizer, 1 - number / 100)
        optimizer.step()
        optimizer.zero_grad()


def saved(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> Path:
    document, tensors = optimizer_state.capture(model, optimizer)
    checkpoint.write_checkpoint(
        folder,
        tensors={"optimizer": tensors},
        documents={"state": {"optimizer": document}},
        manifest=checkpoint.Manifest(step=1, tokens=1, reason="interval"),
    )
    return folder


def load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    document = checkpoint.read_document(folder, "state")["optimizer"]
    tensors = checkpoint.read_tensors(folder, checkpoint.read_manifest(folder), "optimizer")
    optimizer_state.restore(folder, model, optimizer, document, tensors)


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = build_model(SHAPE, device="cpu", seed=0)
    optimizer = build_optimizer(model, CONFIG)
    steps(model, optimizer, range(1))
    return model, optimizer


def test_state_of_a_parameter_that_the_optimizer_lacks_is_refused(tmp_path: Path) -> None:
    model, optimizer = trained()
    document, tensors = optimizer_state.capture(model, optimizer)
    other = torch.optim.AdamW([p for p in model.parameters() if p is not model.norm.weight])
    with pytest.raises(BadCheckpoint, match=r"this run's optimizer: it holds state of norm.weight"):
        optimizer_state.restore(tmp_path, model, other, document, tensors)


@pytest.mark.parametrize("name", sorted({*OTHERS} - OTHER_ARGUMENTS))
def test_optimizer_of_others_resumes_bitwise_or_is_refused_before_step_1(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = importlib.import_module(PACKAGE).load_optimizer(name)
    part = ModuleType("part")
    part.make = lambda model, config: kind(list(model.parameters()), lr=config.lr)
    monkeypatch.setitem(sys.modules, "part", part)
    model = build_model(SHAPE, device="cpu", seed=0)
    if name in REFUSED:
        with pytest.raises(BadConfig, match=rf"parts.optimizer: part:make .*{REFUSED[name]}"):
            parts.require_resumable("part:make", model, CONFIG)
        return
    parts.require_resumable("part:make", model, CONFIG)
    whole = parts.replaced_optimizer("part:make", model, CONFIG)
    steps(model, whole, range(5))
    model_again = copy.deepcopy(model)
    again = parts.replaced_optimizer("part:make", model_again, CONFIG)
    load(saved(tmp_path / "saved", model, whole), model_again, again)
    for each, optimizer in ((model, whole), (model_again, again)):
        steps(each, optimizer, range(5, 20))
    for a, b in zip(model.parameters(), model_again.parameters(), strict=True):
        assert torch.equal(a, b)


def test_tensor_that_is_listed_but_missing_is_damage(tmp_path: Path) -> None:
    model, optimizer = trained()
    document, tensors = optimizer_state.capture(model, optimizer)
    tensors.pop("norm.weight/exp_avg")
    with pytest.raises(BadCheckpoint, match=r"lists the optimizer's tensor 'norm.weight/exp_avg'"):
        optimizer_state.restore(tmp_path, model, optimizer, document, SavedTensors.of(tensors))
