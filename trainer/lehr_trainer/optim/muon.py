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
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.adam import adam

from lehr_trainer.configs.optimizer import MuonConfig
from lehr_trainer.errors import BadConfig
from lehr_trainer.optim.adamw import by_role, mup_width
from lehr_trainer.optim.orthogonal import Exchange, Iteration, Shares
from lehr_trainer.runtime.sharding import Rows, own_parameters, shards_of

_EPS = 1e-8
"""Of NorMuon's division; its paper gives no other."""


def build_muon(model: nn.Module, config: MuonConfig) -> Muon:
    """Build one optimizer over the groups ``matrix``, ``embedding``, ``head`` and ``vector``.

    Under muP the matrices' rate has the factor of ``MuonConfig.mup_rate``, and their decay its
    inverse.

    Raises:
        BadConfig: ``qkv_heads`` is set, and the model does not tell its heads.
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
        "peak_weight_decay": config.weight_decay / rate,
        "cautious": config.cautious_weight_decay,
        "momentum": config.momentum,
        "nesterov": config.nesterov,
        "iteration": (config.coefficients, config.newton_schulz_steps),
        "normuon_beta": config.normuon_beta,
        "qkv_heads": config.qkv_heads,
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
    joined: Iterable[tuple[nn.Linear, int, int]] = getattr(model, "joined_linears", tuple)()
    numbers = {linear.weight: counts for linear, *counts in joined}
    if config.qkv_heads is not None and not numbers:
        raise BadConfig(
            f"optimizer.qkv_heads {config.qkv_heads}: {type(model).__name__} does not tell which "
            "weights have heads; leave it out, or give the model Llama's joined_linears()"
        )
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
        joined: Mapping[Tensor, list[int]] | None = None,
        rows: Mapping[Tensor, Rows] | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        """Build it; ``joined`` has the numbers of matrices, and of heads, that are a parameter.

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
        iteration = Iteration.of(*group["iteration"])
        matrices = itertools.chain.from_iterable(self._matrices(group, p) for p in group["params"])
        for batch in batches(matrices, group["batch_bytes"], shares.ranks):
            directions, like = self._directions(group, batch), batch[0]
            if like.rows is None:
                exchange = shares.orthogonalise(directions, iteration)
            else:
                whole = like.rows.whole
                exchange = shares.orthogonalise_rows(whole, like.shape, directions, iteration)
            # The ranks exchange one batch while they compute the next.
            if before is not None:
                self._move(group, *before)
            before = batch, exchange
        if before is not None:
            self._move(group, *before)

    def _matrices(self, group: dict[str, Any], parameter: Tensor) -> Iterator[Matrix]:
        """List the matrices of a parameter; none if it has no gradient."""
        if parameter.grad is not None:
            momentum = self._buffer(parameter, "momentum_buffer", parameter)
            parts, moments = (parameter, parameter.grad, momentum), None
            if group["normuon_beta"] is not None:
                moments = self._buffer(parameter, "row_moments", parameter[:, :1])
            number, heads = self._joined.get(parameter, (1, 1))
            if parameter in self._joined and group["qkv_heads"] is not None:
                number = heads // group["qkv_heads"]
            if rows := self._rows.get(parameter):
                yield Matrix(*parts, moments, rows, number)
            else:
                apart = [None] * number if moments is None else moments.chunk(number)
                yield from map(Matrix, *(part.chunk(number) for part in parts), apart)

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
        if found_inf is not None:
            decay = decay * (1 - found_inf)
            update *= 1 - found_inf
        # Of a tall matrix, what this rank computed lies transposed, and what it received does not.
        moves = update.to(weights[0].dtype, memory_format=torch.contiguous_format)
        if group["normuon_beta"] is not None:
            self._equalise_rows(group["normuon_beta"], batch, moves)
        if group["cautious"]:
            for weight, move in zip(weights, moves, strict=True):
                weight.mul_(torch.where(weight * move >= 0, 1 - decay, 1.0))
        else:
            torch._foreach_mul_(weights, 1 - decay)
        torch._foreach_add_(weights, list(moves), alpha=-scale)

    def _equalise_rows(self, beta: float, batch: list[Matrix], moves: Tensor) -> None:
        """Divide each row of ``moves`` [N, R, C] by the root of its average mean square (NorMuon).

        A matrix then gets the norm of a semi-orthogonal one: with ``adjust_lr: match_rms_adamw``
        that is the paper's rate, and with the original factor it is Muon's. Ranks that hold other
        rows of it send each other one number for each matrix.
        """
        found_inf: Tensor | None = getattr(self, "found_inf", None)
        moments = [m.row_moments for m in batch if m.row_moments is not None]
        squares = torch.linalg.vector_norm(moves, dim=2, keepdim=True).square() / moves.shape[2]
        new = squares
        if found_inf is not None:
            new = torch.where(found_inf.bool(), torch.stack(moments), squares)
        torch._foreach_lerp_(moments, list(new), 1 - beta)
        inverse = 1 / (torch.stack(moments).sqrt() + _EPS)
        heights = batch[0].heights
        parts = torch.split(squares * inverse.square(), heights, dim=1)
        totals = torch.stack([part.sum((1, 2)) for part in parts])
        if batch[0].rows is not None:
            dist.all_reduce(totals, group=self._group)
        rows, columns = batch[0].shape
        factors = (min(rows, columns) / (columns * totals).clamp(min=_EPS)).sqrt()
        for part, factor in zip(torch.split(inverse, heights, dim=1), factors, strict=True):
            part.mul_(factor[:, None, None])
        moves.mul_(inverse)

    def _buffer(self, parameter: Tensor, name: str, like: Tensor) -> Tensor:
        state = self.state[parameter]
        if name not in state:
            state[name] = torch.zeros_like(like, memory_format=torch.contiguous_format)
        buffer: Tensor = state[name]
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
    row_moments: Tensor | None = None
    """NorMuon's average of each row's mean square, [R, 1]."""
    rows: Rows | None = None
    """Which rows of the sharded parameter these are."""
    number: int = 1
    """How many matrices the sharded parameter is, one below the other."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of what is orthogonalised."""
        rows, columns = self.weight.shape
        return (self.rows.whole if self.rows else rows) // self.number, columns

    @property
    def heights(self) -> list[int]:
        """How many of the rows that this rank holds are of each matrix."""
        if self.rows is None:
            return [len(self.weight)]
        ends = [i * self.shape[0] for i in range(self.number + 1)]
        within = [min(max(end, self.rows.first), self.rows.last) for end in ends]
        return [last - first for first, last in itertools.pairwise(within)]


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


def shape_factor(shape: tuple[int, int], adjust_lr: str) -> float:
    """Return the factor by which a matrix's shape changes its rate (see MuonConfig.adjust_lr)."""
    rows, columns = shape
    if adjust_lr == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1, rows / columns))
