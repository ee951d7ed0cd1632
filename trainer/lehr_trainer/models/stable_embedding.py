"""bitsandbytes' StableEmbedding as an option of the model.

It adds a LayerNorm after the look-up and starts from Xavier's uniform instead of
0.02: another model, not only another optimizer, so it is chosen beside the
model and works with any optimizer (Dettmers et al. 2021, arXiv:2110.02861).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lehr_trainer.models.module_map import module_map, token_embedding


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
