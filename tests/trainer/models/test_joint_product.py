"""Products of one input computed as one, and the dtype of the residual stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lehr_testing.specs import train as train_values
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.errors import BadConfig
from lehr_trainer.models import build_model_of
from lehr_trainer.runtime.precision import Precision

CPU = torch.device("cpu")
LLAMA = {"preset": "tiny", "num_hidden_layers": 2, "attention_bias": True, "mlp_bias": True}


def config_of(model: Any = "tiny", **changes: Any) -> TrainConfig:
    return TrainConfig.model_validate(train_values(Path("corpus"), model=model, **changes))


def gradients(model: Any) -> dict[str, Tensor]:
    tokens = torch.randint(0, 256, (2, 33), generator=torch.Generator().manual_seed(0))
    hidden = model(tokens[:, :-1])
    logits = hidden.to(model.head_weight.dtype) @ model.head_weight.T
    F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    return {name: p.grad for name, p in model.named_parameters()}


class Products(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket in {torch.ops.aten.mm, torch.ops.aten.addmm}
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("model", ["tiny", LLAMA], ids=["plain", "biases"])
def test_joint_products_give_the_same_gradients_by_fewer_products(model: Any) -> None:
    apart = build_model_of(config_of(model), device="cpu").double()
    joint = build_model_of(
        config_of(model, compile={"joint_products": True}), device="cpu"
    ).double()
    assert list(apart.state_dict()) == list(joint.state_dict())
    with Products() as before:
        wanted = gradients(apart)
    with Products() as after:
        found = gradients(joint)
    for name, want in wanted.items():
        assert torch.allclose(found[name], want, rtol=1e-10, atol=1e-14), name
    # Of seven products in a layer four are left; each has two more in the backward pass.
    layers = apart.config.num_hidden_layers
    assert before.count - after.count == 3 * 3 * layers


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"precision": {"fp8": {"recipe": "tensorwise"}}}, "precision.fp8.recipe tensorwise"),
        ({"model": "gpt2-tiny"}, "no effect on a GPT-2"),
    ],
)
def test_what_cannot_be_joined_is_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        config_of(**{"compile": {"joint_products": True}, **changes})


@pytest.mark.parametrize("model", ["tiny", "gpt2-tiny"])
@pytest.mark.parametrize(("residual", "kind"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_every_block_adds_to_a_stream_of_the_chosen_dtype(
    model: str, residual: str, kind: torch.dtype
) -> None:
    config = config_of(model, precision={"compute": "bf16", "residual": residual})
    decoder = build_model_of(config, device="cpu")
    streams = []
    blocks = decoder.layers if model == "tiny" else decoder.h
    for block in blocks:
        block.register_forward_hook(lambda _, given, out: streams.extend([given[0], out]))
    with Precision.choose(config.precision, CPU).autocast():
        found = gradients(decoder)
    assert len(streams) == 2 * len(blocks)
    assert {stream.dtype for stream in streams} == {kind}
    assert {one.dtype for one in found.values()} == {torch.float32}


@pytest.mark.parametrize("model", ["tiny", "gpt2-tiny"])
def test_without_autocast_everything_is_fp32(model: str) -> None:
    """So the loss of ``quality`` in fp32 is computed."""
    narrow = {"precision": {"compute": "bf16", "residual": "bf16"}}
    wanted, found = (
        gradients(build_model_of(config_of(model, **changes), device="cpu"))
        for changes in ({}, narrow)
    )
    assert all(torch.equal(found[name], want) for name, want in wanted.items())


def test_a_16_bit_stream_needs_16_bit_products() -> None:
    with pytest.raises(ValidationError, match=r"precision\.residual bf16 needs precision\.compute"):
        config_of(precision={"compute": "fp32", "residual": "bf16"})
    with pytest.raises(BadConfig, match="on cpu, auto is fp32"):
        Precision.choose(config_of(precision={"residual": "bf16"}).precision, CPU)
