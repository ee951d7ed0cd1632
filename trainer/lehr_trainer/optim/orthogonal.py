"""Orthogonalisation of many matrices, by one rank or shared by several."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake

from lehr_trainer.runtime.sharding import rows_of

_EPS = 1e-7
_MARGIN = 1.01
Polynomial = tuple[float, float, float]
"""a, b and c of a x + b x^3 + c x^5, which an iteration applies to the singular values x."""
_JORDAN: Polynomial = (3.4445, -4.7750, 2.0315)
_POLAR_EXPRESS: tuple[Polynomial, ...] = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
)


@dataclass(frozen=True)
class Iteration:
    """How singular values are driven to 1: a polynomial for each step."""

    polynomials: tuple[Polynomial, ...]
    margin: float = 1.0
    """By how much the first division makes a matrix smaller than its norm."""

    @classmethod
    def of(cls, coefficients: str, steps: int) -> Iteration:
        """Return Jordan's steps, or those of algorithm 1 of arXiv:2505.16932 (Polar Express).

        Its polynomials are the best for singular values from 0.001 to 1. All but the last, which
        is repeated, are for values that rounding has made up to 1 % too large.
        """
        if coefficients == "jordan":
            return cls((_JORDAN,) * steps)
        safe = ((a / _MARGIN, b / _MARGIN**3, c / _MARGIN**5) for a, b, c in _POLAR_EXPRESS)
        return cls((*safe, *[(1.875, -1.25, 0.375)] * steps)[:steps], _MARGIN)


@dataclass(frozen=True)
class Exchange:
    """Orthogonalised matrices [N, R, C] that the ranks send each other."""

    matrices: Tensor
    sent: dist.Work | None = None

    def wait(self) -> Tensor:
        if self.sent is not None:
            self.sent.wait()
        return self.matrices


@dataclass(frozen=True)
class Shares:
    """The share of this rank in the matrices of a batch: one of equal, contiguous parts."""

    rank: int
    ranks: int
    group: dist.ProcessGroup | None = None

    @classmethod
    def of_all_ranks(cls) -> Shares:
        if not (dist.is_available() and dist.is_initialized()):
            return cls(0, 1)
        return cls(dist.get_rank(), dist.get_world_size())

    def orthogonalise(self, directions: list[Tensor], iteration: Iteration) -> Exchange:
        """Orthogonalise this rank's share, and begin to exchange it for the others'."""
        if self.ranks == 1:
            return Exchange(orthogonalise(torch.stack(directions), iteration))
        size = -(-len(directions) // self.ranks)
        mine = directions[self.rank * size : (self.rank + 1) * size]
        rows, columns = directions[0].shape
        part = directions[0].new_zeros(size, rows, columns, dtype=torch.bfloat16)
        if mine:
            part[: len(mine)] = orthogonalise(torch.stack(mine), iteration)
        every = part.new_empty(self.ranks * size, rows, columns)
        sent = _all_gather()(every, part, async_op=True)
        return Exchange(every[: len(directions)], sent)

    def orthogonalise_rows(
        self, whole: int, shape: tuple[int, int], directions: list[Tensor], iteration: Iteration
    ) -> Exchange:
        """Do the same with matrices of which each rank has some rows; it gets its rows back.

        Each rank is sent all rows of its share, in bf16, in which the iteration begins anyway.

        Args:
            whole: rows of a parameter, of which each rank holds some.
            shape: of a matrix; a parameter is one or several, one below the other.
            directions: the rows that this rank holds, of each parameter.
            iteration: how they are orthogonalised.
        """
        columns = directions[0].shape[1]
        rows = [rows_of(whole, rank, self.ranks) for rank in range(self.ranks)]
        heights = [part.last - part.first for part in rows]
        mine, size = heights[self.rank], -(-len(directions) // self.ranks)
        counts = [len(directions[rank * size : (rank + 1) * size]) for rank in range(self.ranks)]
        own = counts[self.rank]
        to_owners = [count * mine * columns for count in counts]
        to_holders = [own * height * columns for height in heights]
        sent = torch.stack(directions).bfloat16().flatten()
        received = sent.new_empty(sum(to_holders))
        dist.all_to_all_single(received, sent, to_holders, to_owners, group=self.group)
        blocks = torch.split(received, to_holders)
        joined = torch.cat(
            [b.view(own, height, columns) for b, height in zip(blocks, heights, strict=True)], dim=1
        )
        if own:
            joined = orthogonalise(joined.reshape(-1, *shape), iteration).reshape(joined.shape)
        back = torch.cat([part.flatten() for part in torch.split(joined, heights, dim=1)])
        result = torch.empty_like(sent)
        work = dist.all_to_all_single(
            result, back, to_owners, to_holders, group=self.group, async_op=True
        )
        return Exchange(result.view(len(directions), mine, columns), work)


def _all_gather() -> Callable[..., dist.Work]:
    """Return the gathering of equal parts; torch 2.13 has a new name for it, 2.11 has not."""
    name = "all_gather_single"
    found: Any = getattr(dist, name, None) or dist.all_gather_into_tensor
    return cast("Callable[..., dist.Work]", found)


def orthogonalise(matrices_NRC: Tensor, iteration: Iteration) -> Tensor:
    """Replace each of N matrices by a matrix near its nearest semi-orthogonal one, in bf16.

    A quintic Newton-Schulz iteration: it drives every singular value to about 1 (0.5 to 1.5, by
    Jordan's design), and keeps the singular vectors.
    """
    tall = matrices_NRC.shape[1] > matrices_NRC.shape[2]
    x = matrices_NRC.bfloat16()
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(1, 2), keepdim=True) * iteration.margin).clamp(min=_EPS)
    for a, b, c in iteration.polynomials:
        gram = _added_product(x, x, x.mT, beta=0.0, alpha=1.0)
        polynomial = _added_product(gram, gram, gram, beta=b, alpha=c)
        x = _added_product(x, polynomial, x, beta=a, alpha=1.0)
    return x.mT if tall else x


def _added_product(
    added: Tensor, left: Tensor, right: Tensor, *, beta: float, alpha: float
) -> Tensor:
    """Return ``beta * added + alpha * left @ right``, summed in fp32 and rounded once.

    A CPU without bf16 instructions emulates them, 50 times slower than fp32; this has its rounding.
    Fake tensors on a CPU stand for a GPU's (``memory_trace``), so they take the GPU's way.
    """
    if left.device.type == "cpu" and not is_fake(left):
        wide = torch.bmm(left.float(), right.float()).mul_(alpha)
        if beta:
            wide.add_(added.float(), alpha=beta)
        return wide.bfloat16()
    if not beta:
        return torch.bmm(left, right)
    return torch.baddbmm(added, left, right, beta=beta, alpha=alpha)
