"""Map of a decoder's parts, independent of its family.

Techniques that work on parts (checkpointing, compile, FP8, diagnostics) use it, so that a new
family is added in one place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lehr_trainer.models.gpt2 import GPT2
from lehr_trainer.models.llama import Llama

Decoder = Llama | GPT2


@dataclass(frozen=True)
class ModuleMap:
    """Attribute names of the model's parts, and of the parts of each block."""

    embedding: str
    blocks: str
    attention: str
    mlp: str
    norms: tuple[str, str]
    final_norm: str


_LLAMA = ModuleMap(
    embedding="embed_tokens",
    blocks="layers",
    attention="self_attn",
    mlp="mlp",
    norms=("input_layernorm", "post_attention_layernorm"),
    final_norm="norm",
)
_GPT2 = ModuleMap(
    embedding="wte",
    blocks="h",
    attention="attn",
    mlp="mlp",
    norms=("ln_1", "ln_2"),
    final_norm="ln_f",
)


def module_map(model: nn.Module) -> ModuleMap:
    if isinstance(model, Llama):
        return _LLAMA
    if isinstance(model, GPT2):
        return _GPT2
    raise TypeError(f"{type(model).__name__} is not a model of lehr_trainer.models")


def blocks(model: nn.Module) -> nn.ModuleList:
    found = model.get_submodule(module_map(model).blocks)
    assert isinstance(found, nn.ModuleList)
    return found


def token_embedding(model: nn.Module) -> nn.Embedding:
    found = model.get_submodule(module_map(model).embedding)
    assert isinstance(found, nn.Embedding)
    return found


def block_linears(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """Yield each linear of the blocks, by its path in the model; without head and embedding."""
    prefix = module_map(model).blocks
    for name, module in blocks(model).named_modules(prefix=prefix):
        if isinstance(module, nn.Linear):
            yield name, module


class StableEmbedding(nn.Embedding):
    def __init__(self, count: int, size: int) -> None:
        super().__init__(count, size)
        self.norm = nn.LayerNorm(size)

    def forward(self, tokens: Tensor) -> Tensor:
        normed: Tensor = self.norm(F.embedding(tokens, self.weight))
        return normed


def use_stable_embedding(model: nn.Module, seed: int) -> None:
    """Replace the model's token embedding by a stable one; call it after ``initialise``.

    A tied head keeps using the embedding's weight.
    """
    old = token_embedding(model)
    new = StableEmbedding(old.num_embeddings, old.embedding_dim).to(old.weight.device)
    generator = torch.Generator(new.weight.device).manual_seed(seed)
    nn.init.xavier_uniform_(new.weight, generator=generator)
    setattr(model, module_map(model).embedding, new)
