"""Muon for matrices, AdamW for the rest, in one optimizer.

``torch.optim.Muon`` orthogonalises one matrix at a time; a decoder has few
shapes and many matrices of each, so here a shape's matrices go through the
Newton-Schulz iteration together. Under data parallelism every rank has the same
gradients, so each rank orthogonalises its share of the matrices and sends the
result to the others: the iteration is most of Muon's work. The formulas are
torch's (and Keller Jordan's, https://kellerjordan.github.io/posts/muon/); tests
hold the two to each other. A weight that is several matrices, such as GPT-2's query, key and
value, is as many here, as in a model that has them apart.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import is_fake
from torch.optim.adam import adam

from lehr_trainer.configs.optimizer import MuonConfig
from lehr_trainer.optim.adamw import by_role, mup_width
from lehr_trainer.runtime.sharding import Rows, own_parameters, rows_of, shards_of

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_EPS = 1e-7


def build_muon(model: nn.Module, config: MuonConfig) -> Muon:
    """Build one optimizer over the groups ``matrix``, ``embedding``, ``head`` and ``vector``.

    Under muP the matrices' rate has the factor of ``MuonConfig.mup_rate``, and their decay its
    inverse.
    """
    lists = by_role(model)
    config.check_tied(tie_embeddings=not lists["head"])
    rates = {
        "embedding": config.embedding_lr,
        "head": config.head_lr or config.embedding_lr,
        "vector": config.norm_lr or config.embedding_lr,
    }
    width = mup_width(model)
    rate = 1.0 if width is None else config.mup_rate(width)
    muon = {
        "name": "matrix",
        "params": lists["matrix"],
        "lr": config.lr * rate,
        "peak_lr": config.lr * rate,
        "weight_decay": config.weight_decay / rate,
        "momentum": config.momentum,
        "nesterov": config.nesterov,
        "newton_schulz_steps": config.newton_schulz_steps,
        "adjust_lr": config.adjust_lr,
        "batch_bytes": config.batch_mb * 2**20,
        "distributed": config.distributed,
    }
    adamw = [
        {
            "name": name,
            "params": lists[name],  # type: ignore[index]
            "lr": rate,
            "peak_lr": rate,
            "weight_decay": 0.0,
            "betas": config.betas,
            "eps": config.eps,
            "fused": config.fused,
            # Only then does a load put the counter of steps where ``adam`` reads it.
            "capturable": not config.fused,
        }
        for name, rate in rates.items()
    ]
    joined: Iterable[tuple[nn.Linear, int]] = getattr(model, "joined_linears", tuple)()
    numbers = {linear.weight: number for linear, number in joined}
    own, shards = own_parameters(model), shards_of(model)
    return Muon(
        [group for group in (muon, *adamw) if group["params"]],
        joined={own[n]: numbers[p] for n, p in model.named_parameters() if p in numbers},
        rows=None if shards is None else {own[name]: rows for name, rows in shards.rows.items()},
        group=None if shards is None else shards.group,
    )


class Muon(torch.optim.Optimizer):
    """Updates groups that have ``momentum`` by Muon, the others by AdamW.

    Like fused AdamW, it obeys ``found_inf`` if that is set: where it is 1, on the device, weights
    and state stay as they are.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        joined: Mapping[Tensor, int] | None = None,
        rows: Mapping[Tensor, Rows] | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        """Build it; ``joined`` has the number of matrices that a parameter's rows are.

        Of a sharded model, ``rows`` has those that this rank holds, and ``group`` is its ranks.
        """
        super().__init__(groups, {})
        self._joined = joined or {}
        self._rows, self._group = rows or {}, group
        fused = all(group.get("fused", True) for group in self.param_groups)
        self._step_supports_amp_scaling = fused

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            (self._muon if "momentum" in group else self._adamw)(group)
        return loss

    def _muon(self, group: dict[str, Any]) -> None:
        if self._group is not None:
            shares = Shares(self._group.rank(), self._group.size(), self._group)
        else:
            shares = Shares.of_all_ranks() if group["distributed"] else Shares(0, 1)
        before: tuple[list[Matrix], Exchange] | None = None
        matrices = itertools.chain.from_iterable(map(self._matrices, group["params"]))
        for batch in batches(matrices, group["batch_bytes"], shares.ranks):
            directions, steps = self._directions(group, batch), group["newton_schulz_steps"]
            if self._group is None:
                exchange = shares.orthogonalise(directions, steps)
            else:
                exchange = shares.orthogonalise_rows(batch[0], directions, steps)
            # The ranks exchange one batch while they compute the next.
            if before is not None:
                self._move(group, *before)
            before = batch, exchange
        if before is not None:
            self._move(group, *before)

    def _matrices(self, parameter: Tensor) -> Iterator[Matrix]:
        """List the matrices of a parameter; none if it has no gradient."""
        if parameter.grad is not None:
            parts = parameter, parameter.grad, self._buffer(parameter)
            number = self._joined.get(parameter, 1)
            if rows := self._rows.get(parameter):
                yield Matrix(*parts, rows.whole, number)
            else:
                yield from map(Matrix, *(part.chunk(number) for part in parts))

    def _directions(self, group: dict[str, Any], batch: list[Matrix]) -> list[Tensor]:
        """Add the gradients to the momenta; return what is to be orthogonalised."""
        momentum = group["momentum"]
        gradients = [matrix.gradient for matrix in batch]
        momenta = [matrix.momentum for matrix in batch]
        found_inf: Tensor | None = getattr(self, "found_inf", None)
        if found_inf is not None:
            # A gradient that is not finite must not even be multiplied by 0.
            unmoved = found_inf.bool()
            gradients = [
                torch.where(unmoved, m, g) for g, m in zip(gradients, momenta, strict=True)
            ]
        torch._foreach_lerp_(momenta, gradients, 1 - momentum)
        if group["nesterov"]:
            return [g.lerp(m, momentum) for g, m in zip(gradients, momenta, strict=True)]
        return momenta

    def _move(self, group: dict[str, Any], batch: list[Matrix], exchange: Exchange) -> None:
        """Move the weights by their orthogonalised directions."""
        weights = [matrix.weight for matrix in batch]
        update = exchange.wait()
        lr = group["lr"]
        scale = lr * shape_factor(batch[0].shape, group["adjust_lr"])
        decay = lr * group["weight_decay"]
        found_inf: Tensor | None = getattr(self, "found_inf", None)
        if found_inf is None:
            torch._foreach_mul_(weights, 1 - decay)
        else:
            torch._foreach_mul_(weights, 1 - decay * (1 - found_inf))
            update *= 1 - found_inf
        torch._foreach_add_(weights, list(update.to(weights[0].dtype)), alpha=-scale)

    def _buffer(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        buffer: Tensor = state["momentum_buffer"]
        return buffer

    def _adamw(self, group: dict[str, Any]) -> None:
        parameters = [p for p in group["params"] if p.grad is not None]
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
        states = [self.state[p] for p in parameters]
        adam(
            parameters,
            [p.grad for p in parameters if p.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=group["fused"],
            foreach=not group["fused"],
            capturable=group["capturable"] and bool(parameters) and parameters[0].is_cuda,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
            decoupled_weight_decay=True,
            found_inf=getattr(self, "found_inf", None),
        )


@dataclass(frozen=True)
class Matrix:
    """What is orthogonalised by itself: a parameter, or a part of its rows.

    Of a sharded model: the rows of a parameter that this rank holds.
    """

    weight: Tensor
    gradient: Tensor
    momentum: Tensor
    whole_rows: int | None = None
    """Rows of the sharded parameter."""
    number: int = 1
    """How many matrices the sharded parameter is, one below the other."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of what is orthogonalised."""
        rows, columns = self.weight.shape
        return (self.whole_rows or rows) // self.number, columns


def batches(matrices: Iterable[Matrix], most_bytes: int, ranks: int) -> list[list[Matrix]]:
    """Group matrices by shape, as many in a batch as the bound allows.

    A batch of fewer matrices than ranks would leave ranks idle; each rank holds only its share of
    a batch in work, so it is filled up to a multiple of the ranks.
    """
    alike: dict[tuple[Any, ...], list[Matrix]] = {}
    for matrix in matrices:
        weight = matrix.weight
        kind = (matrix.shape, matrix.number, weight.dtype, weight.device)
        alike.setdefault(kind, []).append(matrix)
    found = []
    for members in alike.values():
        most = max(1, most_bytes // (2 * math.prod(members[0].shape) * members[0].number))
        most = -(-most // ranks) * ranks
        found += [members[i : i + most] for i in range(0, len(members), most)]
    return found


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

    def orthogonalise(self, directions: list[Tensor], steps: int) -> Exchange:
        """Orthogonalise this rank's share, and begin to exchange it for the others'."""
        if self.ranks == 1:
            return Exchange(orthogonalise(torch.stack(directions), steps))
        size = -(-len(directions) // self.ranks)
        mine = directions[self.rank * size : (self.rank + 1) * size]
        rows, columns = directions[0].shape
        part = directions[0].new_zeros(size, rows, columns, dtype=torch.bfloat16)
        if mine:
            part[: len(mine)] = orthogonalise(torch.stack(mine), steps)
        every = part.new_empty(self.ranks * size, rows, columns)
        sent = _all_gather()(every, part, async_op=True)
        return Exchange(every[: len(directions)], sent)

    def orthogonalise_rows(self, like: Matrix, directions: list[Tensor], steps: int) -> Exchange:
        """Do the same with matrices of which each rank has some rows; it gets its rows back.

        Each rank is sent all rows of its share, in bf16, in which the iteration begins anyway.
        """
        assert like.whole_rows is not None
        columns = directions[0].shape[1]
        rows = [rows_of(like.whole_rows, rank, self.ranks) for rank in range(self.ranks)]
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
        whole = torch.cat(
            [b.view(own, height, columns) for b, height in zip(blocks, heights, strict=True)], dim=1
        )
        if own:
            whole = orthogonalise(whole.reshape(-1, *like.shape), steps).reshape(whole.shape)
        back = torch.cat([part.flatten() for part in torch.split(whole, heights, dim=1)])
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


def orthogonalise(matrices_NRC: Tensor, steps: int) -> Tensor:
    """Replace each of N matrices by a matrix near its nearest semi-orthogonal one, in bf16.

    A quintic Newton-Schulz iteration: it drives every singular value to about 1 (0.5 to 1.5, by
    design), and keeps the singular vectors.
    """
    a, b, c = _COEFFICIENTS
    tall = matrices_NRC.shape[1] > matrices_NRC.shape[2]
    x = matrices_NRC.bfloat16()
    if tall:
        x = x.mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=_EPS)
    for _ in range(steps):
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


def shape_factor(shape: tuple[int, int], adjust_lr: str) -> float:
    """Return the factor by which a matrix's shape changes its rate (see MuonConfig.adjust_lr)."""
    rows, columns = shape
    if adjust_lr == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1, rows / columns))
