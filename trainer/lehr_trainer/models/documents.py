"""Packed documents: which token belongs to which, and what each may see.

A packed sequence holds several documents end to end, an end-of-sequence token
after each. Without masking a token attends to the documents before its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

InputFn = Callable[[Tensor], tuple[Tensor, ...]]
"""From tokens to what a model is called with."""


def reading(eos_id: int | None) -> InputFn:
    """Tokens alone; or, given ``eos_id``, with them the document of each."""
    if eos_id is None:
        return lambda tokens: (tokens,)
    return lambda tokens: (tokens, document_ids(tokens, eos_id))


def document_ids(tokens_BT: Tensor, eos_id: int) -> Tensor:
    """[B, T] int32: 0 for a sequence's first document, 1 for its second, ...

    The end-of-sequence token still belongs to the document that it ends.
    """
    ends_BT = tokens_BT == eos_id
    return (ends_BT.cumsum(dim=1) - ends_BT.long()).to(torch.int32)


def document_positions(ids_BT: Tensor) -> Tensor:
    """[B, T] int64: each token's place within its own document (learned positions need it)."""
    index_T = torch.arange(ids_BT.shape[1], device=ids_BT.device)
    starts_BT = torch.ones_like(ids_BT, dtype=torch.bool)
    starts_BT[:, 1:] = ids_BT[:, 1:] != ids_BT[:, :-1]
    first_BT = torch.where(starts_BT, index_T, 0).cummax(dim=1).values
    return index_T - first_BT


def dense_mask(ids_BT: Tensor) -> Tensor:
    """[B, 1, T, T] bool, true where a query may see a key: causal, and the same document."""
    same_BTT = ids_BT[:, :, None] == ids_BT[:, None, :]
    return (same_BTT & torch.ones_like(same_BTT[0]).tril())[:, None]


def block_mask(ids_BT: Tensor) -> BlockMask:
    """The same mask as blocks for FlexAttention: no T x T scores, empty blocks are skipped."""
    from torch.nn.attention.flex_attention import create_block_mask

    def visible(batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (ids_BT[batch, query] == ids_BT[batch, key])

    batch, length = ids_BT.shape
    return create_block_mask(
        visible, batch, None, length, length, device=ids_BT.device, _compile=ids_BT.is_cuda
    )


def document_mask(ids_BT: Tensor) -> Tensor | BlockMask:
    """What this device's attention reads fastest: blocks on CUDA, a dense mask on CPU."""
    return block_mask(ids_BT) if ids_BT.is_cuda else dense_mask(ids_BT)
