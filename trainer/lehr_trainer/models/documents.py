"""Packed documents: the document of each token, and attention masks.

A packed sequence holds several documents end to end, an end-of-sequence token after each. Without
masking a token attends to the documents before its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from lehr_trainer.models.attention import masks_by_blocks

InputFn = Callable[[Tensor], tuple[Tensor, ...]]
"""Turns tokens into the model's arguments."""


def make_input_fn(eos_id: int | None) -> InputFn:
    """Make an input function: tokens alone or, given ``eos_id``, tokens and their documents."""
    if eos_id is None:
        return lambda tokens: (tokens,)
    return lambda tokens: (tokens, document_ids(tokens, eos_id))


def document_ids(tokens_BT: Tensor, eos_id: int) -> Tensor:
    """Return document numbers, [B, T] int32: 0 for a sequence's first document, 1 for the next, ...

    The end-of-sequence token still belongs to the document that it ends.
    """
    ends_BT = tokens_BT == eos_id
    return (ends_BT.cumsum(dim=1) - ends_BT.long()).to(torch.int32)


def document_positions(ids_BT: Tensor) -> Tensor:
    """Return each token's place in its own document, [B, T] int64, for learned positions."""
    index_T = torch.arange(ids_BT.shape[1], device=ids_BT.device)
    starts_BT = torch.ones_like(ids_BT, dtype=torch.bool)
    starts_BT[:, 1:] = ids_BT[:, 1:] != ids_BT[:, :-1]
    first_BT = torch.where(starts_BT, index_T, 0).cummax(dim=1).values
    return index_T - first_BT


def dense_mask(ids_BT: Tensor, window: int | None = None) -> Tensor:
    """Make a mask, [B, 1, T, T] bool: a query sees earlier keys of its own document.

    With a ``window``, it sees itself and at most so many less one before it.
    """
    same_BTT = ids_BT[:, :, None] == ids_BT[:, None, :]
    causal_TT = torch.ones_like(same_BTT[0]).tril()
    if window is not None:
        causal_TT = causal_TT.triu(1 - window)
    return (same_BTT & causal_TT)[:, None]


def block_mask(ids_BT: Tensor, window: int | None = None) -> BlockMask:
    """Make the same mask as blocks for FlexAttention: no T x T scores, empty blocks are skipped."""
    batch, length = ids_BT.shape

    def visible(row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        own = row if batch > 1 else 0  # One row of ids is that of all sequences.
        seen = (query >= key) & (ids_BT[own, query] == ids_BT[own, key])
        return seen if window is None else seen & (query - key < window)

    make = _block_mask_maker(compiled=ids_BT.is_cuda)
    mask: BlockMask = make(visible, batch, None, length, length, device=ids_BT.device)
    return mask


def _block_mask_maker(*, compiled: bool) -> Any:
    """Return the function that makes block masks: compiled it holds no T x T mask.

    In a compiled model it becomes a part of the model's graph.
    """
    from torch.nn.attention.flex_attention import create_block_mask

    if not compiled or torch.compiler.is_compiling():
        return create_block_mask
    return _compiled(create_block_mask)


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function)


def attention_mask(
    tokens_BT: Tensor, ids_BT: Tensor | None, window: int | None = None
) -> Tensor | BlockMask | None:
    """Make the mask of a layer in the form that the run's attention kernel takes.

    ``ids_BT`` are the tokens' documents if they are masked. None: the layer sees all that is
    before a token, for which kernels need no mask.
    """
    length = tokens_BT.shape[1]
    if window is not None and window >= length:
        window = None
    if ids_BT is None:
        if window is None:
            return None
        ids_BT = tokens_BT.new_zeros((1, length), dtype=torch.int32)
    make = block_mask if masks_by_blocks(ids_BT.device) else dense_mask
    return make(ids_BT, window)
