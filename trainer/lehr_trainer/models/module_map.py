"""Map of a decoder's parts, independent of its family, and their first weights.

Techniques that work on parts (checkpointing, compile, FP8, diagnostics) use it, so that a new
family is added in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lehr_trainer.configs.shapes import head_std
from lehr_trainer.models.gpt2 import GPT2
from lehr_trainer.models.llama import BLOCK_NORMS, Llama
from lehr_trainer.planning.counts import EMBEDDING_STD

Decoder = Llama | GPT2


@dataclass(frozen=True)
class ModuleMap:
    """Attribute names of the model's parts, and of the parts of each block."""

    embedding: str
    blocks: str
    attention: str
    mlp: str
    norms: tuple[str, ...]
    """A block may have some of them."""
    final_norm: str


_LLAMA = ModuleMap(
    embedding="embed_tokens",
    blocks="layers",
    attention="self_attn",
    mlp="mlp",
    norms=BLOCK_NORMS["peri"],
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


def use_stable_embedding(model: nn.Module) -> None:
    """Replace the model's token embedding by a stable one; call it before ``initialise``.

    A tied head keeps using the embedding's weight.
    """
    old = token_embedding(model)
    new = StableEmbedding(old.num_embeddings, old.embedding_dim)
    setattr(model, module_map(model).embedding, new)


@torch.no_grad()
def initialise(model: Decoder, seed: int) -> None:
    """Fill the parameters with their first weights."""
    generator = torch.Generator(model.head_weight.device).manual_seed(seed)
    for name, fill in first_weights(model, generator):
        fill(model.get_parameter(name))


def first_weights(
    model: Decoder, generator: torch.Generator
) -> Iterator[tuple[str, Callable[[Tensor], object]]]:
    """List names of linears' and embeddings' parameters, with what fills a tensor of their shape.

    All are to be filled, in this order, from one generator, which lives on the parameters' device:
    a billion numbers take a blink on a GPU and ten seconds on a CPU core. The same seed therefore
    gives other weights on another kind of device. A tied weight is filled once, as the embedding,
    but under muP with the size of a head.
    """
    config, seed = model.config, generator.initial_seed()

    def normal(std: float) -> Callable[[Tensor], object]:
        return lambda weight: weight.normal_(0.0, std, generator=generator)

    def xavier(weight: Tensor) -> None:
        normal(EMBEDDING_STD)(weight)  # The weights after it are those of a model without it.
        own = torch.Generator(generator.device).manual_seed(seed)
        nn.init.xavier_uniform_(weight, generator=own)

    # hidden^-0.5 for both residual projections, although the down projection's input is wider: as
    # the 1.2B Llama run of docs/reference-runs.md did.
    residual_std = config.hidden_size**-0.5 / (2 * config.num_hidden_layers) ** 0.5
    residual = set(model.residual_projections())
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            std = residual_std if module in residual else module.in_features**-0.5
            if module.weight is model.head_weight:
                std = head_std(config)
            yield f"{name}.weight", normal(std)
            if module.bias is not None:
                yield f"{name}.bias", Tensor.zero_
        elif isinstance(module, StableEmbedding):
            yield f"{name}.weight", xavier
        elif isinstance(module, nn.Embedding):
            shared = module.weight is model.head_weight and config.parametrization == "mup"
            std = head_std(config) if shared else EMBEDDING_STD
            yield f"{name}.weight", normal(std)
