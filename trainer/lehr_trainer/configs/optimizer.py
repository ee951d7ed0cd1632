"""The optimizers: their settings, and the memory that they take."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BeforeValidator, ConfigDict, Field

from lehr_trainer.configs.base import Config, OrNone, PositiveInt, must_name, tagged
from lehr_trainer.configs.sizes import BF16, FP32, ParameterCounts

EIGHT_BIT_BLOCK = 256
"""Values with one scale, in both libraries of 8-bit moments."""
EIGHT_BIT_LEAST = 4096
"""Moments of parameters with fewer values stay in 32 bits, in both."""
Rate = Annotated[float, Field(gt=0)]
Beta = Annotated[float, Field(ge=0, lt=1)]


class BaseOptimizerConfig(Config, ABC):
    """What the planner needs to know of every optimizer."""

    shorthand: ClassVar[str] = "name"
    builder: ClassVar[str]
    """Where the function stands that builds it from the model and this config, as
    ``package.module:function``. It is imported on use: this file imports no torch."""
    lr_family: ClassVar[str] = "adamw"
    """Optimizers of one family have the same best learning rate."""
    lr_scales_with_width: ClassVar[bool] = True
    """Whether the best learning rate goes as 1 / width (muP, arXiv:2203.03466)."""

    def mup_rate(self, width: float) -> float | None:
        """Return the factor of the blocks' matrices' rate under muP; None if it is not defined.

        Args:
            width: hidden_size / base_width.
        """
        return None

    def decay_factor(self, done: float) -> float:
        """Return the share of the weight decay at a step before which ``done`` of all is done."""
        return 1.0

    @abstractmethod
    def state_bytes(self, counts: ParameterCounts) -> int:
        """Count the bytes of state that the optimizer keeps between two steps."""

    @abstractmethod
    def update_workspace_bytes(
        self, counts: ParameterCounts, *, ranks: int = 1, on_cpu: bool = False
    ) -> int:
        """Count the most bytes that the update itself allocates, besides gradients and state."""

    def check_rows(self, name: str, length: int) -> None:
        """Raise ValueError if rows of ``length`` values cannot be divided among ranks."""

    def in_eight_bits(self) -> EightBitAdamWConfig | None:
        """Return the same optimizer with its moments in 8 bits; None if there is none."""
        return None


class AdamWConfig(BaseOptimizerConfig):
    """AdamW (Loshchilov and Hutter 2019), moments in fp32."""

    builder: ClassVar[str] = "lehr_trainer.optim.adamw:build_adamw"

    name: Literal["adamw"] = "adamw"
    lr: Rate = 3e-4
    """Peak learning rate."""
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    """Decay of the first and second moments' averages."""
    eps: Rate = 1e-8
    """Added to the denominator of the update."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    """On matrices only; norms, biases and embeddings are not decayed."""
    fused: bool = True
    """One kernel for all parameters, where the device has it."""

    def mup_rate(self, width: float) -> float:
        """Return 1 / width (Yang et al. 2022, arXiv:2203.03466, table 8)."""
        return 1 / width

    def state_bytes(self, counts: ParameterCounts) -> int:
        """Count both moments in fp32."""
        return 2 * FP32 * counts.total

    def update_workspace_bytes(
        self, counts: ParameterCounts, *, ranks: int = 1, on_cpu: bool = False
    ) -> int:
        """Count the square roots of all second moments at once; the fused kernel needs none.

        A CPU takes one parameter after the other: its square roots, and the same corrected.
        """
        if self.fused:
            return 0
        return 2 * FP32 * counts.largest if on_cpu else FP32 * counts.total

    def in_eight_bits(self) -> EightBitAdamWConfig | None:
        """Return the optimizer with quantised moments."""
        return EightBitAdamWConfig(
            lr=self.lr, betas=self.betas, eps=self.eps, weight_decay=self.weight_decay
        )


class EightBitAdamWConfig(BaseOptimizerConfig):
    """AdamW whose two moments are kept in 8 bits, quantised by blocks (Dettmers et al. 2021).

    Embeddings keep theirs in 32 bits, as the paper found necessary;
    ``model.stable_embedding`` is the other half of its advice.
    """

    model_config = ConfigDict(json_schema_extra=must_name("name"))

    builder: ClassVar[str] = "lehr_trainer.optim.adamw:build_eight_bit"

    name: Literal["adamw8bit"] = "adamw8bit"
    library: Literal["bitsandbytes", "torchao"] = "bitsandbytes"
    """The library whose kernels are used."""
    lr: Rate = 3e-4
    """Peak learning rate."""
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    """Decay of the first and second moments' averages."""
    eps: Rate = 1e-8
    """Added to the denominator of the update."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    """On matrices only; norms, biases and embeddings are not decayed."""

    def state_bytes(self, counts: ParameterCounts) -> int:
        """Count both moments: 8 bits and a scale per block; fp32 for embedding and norms."""
        small = counts.layers + counts.head
        return 2 * FP32 * counts.total - 2 * (FP32 - 1) * small + small // 32

    def check_rows(self, name: str, length: int) -> None:
        """Raise ValueError unless blocks end where rows do: then ranks divide none."""
        if length % EIGHT_BIT_BLOCK:
            raise ValueError(
                f"optimizer.name adamw8bit scales blocks of {EIGHT_BIT_BLOCK} values, which "
                f"parallel.shard must not cut, but {name} has rows of {length}; use a multiple "
                f"of {EIGHT_BIT_BLOCK}, optimizer.name adamw or muon, or parallel.shard: none"
            )

    def update_workspace_bytes(
        self, counts: ParameterCounts, *, ranks: int = 1, on_cpu: bool = False
    ) -> int:
        """Count both moments of one parameter as torchao decodes them: one after the other.

        The kernel of bitsandbytes decodes them as it goes.
        """
        if self.library == "bitsandbytes":
            return 0
        return 2 * FP32 * max(counts.largest_matrix, counts.head)


class MuonConfig(BaseOptimizerConfig):
    """Muon for the matrices of the blocks, AdamW for embedding, head, norms and biases.

    Muon (Jordan et al. 2024) replaces a matrix's momentum by the nearest orthogonal
    matrix, so each matrix moves by about the same amount in every direction. ``coefficients``,
    ``normuon_beta``, ``qkv_heads``, ``cautious_weight_decay`` and ``weight_decay_schedule`` are
    later changes of it; each is off unless it is set.
    """

    model_config = ConfigDict(json_schema_extra=must_name("name"))

    builder: ClassVar[str] = "lehr_trainer.optim.muon:build_muon"
    lr_family: ClassVar[str] = "muon"
    lr_scales_with_width: ClassVar[bool] = False

    name: Literal["muon"] = "muon"
    lr: Rate = 0.02
    """Peak learning rate of Muon, that is of the blocks' matrices: what a sweep over
    ``optimizer.lr`` changes. The AdamW groups have their own below."""
    momentum: Beta = 0.95
    """Decay of the momentum of the blocks' matrices."""
    nesterov: bool = True
    """Look ahead by the momentum."""
    newton_schulz_steps: Annotated[int, Field(ge=1, lt=100)] = 5
    """Iterations of the orthogonalisation."""
    coefficients: Annotated[
        Literal["jordan", "polar_express"], Field(exclude_if=lambda kind: kind == "jordan")
    ] = "jordan"
    """Polynomials of the iterations: Jordan's, the same in each, or those of Polar Express (Amsel
    et al. 2025, arXiv:2505.16932), which come closer to an orthogonal matrix in as many."""
    normuon_beta: OrNone[Beta] = None
    """Divides each row of an orthogonalised matrix by the root of its average mean square, so that
    neurons move alike (NorMuon, Li et al. 2025, arXiv:2510.05491): the decay of that average,
    which is 0.95 in the paper and 0.9 in nanochat. Off if not given."""
    qkv_heads: OrNone[PositiveInt] = None
    """How many heads of a query, key or value are orthogonalised together: 1 in Kimi K3
    (arXiv:2607.24653) and GLM-5 (arXiv:2602.15763), 2 of query and key in modded-nanogpt. All if
    not given; GPT-2's joint query, key and value are three matrices either way."""
    adjust_lr: Literal["original", "match_rms_adamw"] = "original"
    """How a matrix's shape enters its rate: original is Jordan's sqrt(max(1, rows/columns));
    match_rms_adamw is Moonshot's 0.2 sqrt(max(rows, columns)), under which ``lr`` means what it
    means to AdamW (arXiv:2502.16982)."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    """Decays the matrices only."""
    cautious_weight_decay: Annotated[bool, Field(exclude_if=lambda is_on: not is_on)] = False
    """Decay only weights that the update moves towards 0 too (Chen et al. 2025,
    arXiv:2510.12402)."""
    weight_decay_schedule: Annotated[
        Literal["constant", "cosine"], Field(exclude_if=lambda kind: kind == "constant")
    ] = "constant"
    """cosine: the decay falls to 0 as half a cosine over all steps of the run, as in nanochat."""
    embedding_lr: Rate = 3e-4
    """Peak rate of the embeddings, positions included; of the head too when it is tied."""
    head_lr: Rate | None = None
    """Peak rate of an untied head; embedding_lr if not given. A tied head is the embedding, so
    another rate is an error."""
    norm_lr: Rate | None = None
    """Peak rate of norms and biases; embedding_lr if not given."""
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    """Decay of both moments' averages in the AdamW groups."""
    eps: Rate = 1e-8
    """Added to the denominator of the update."""
    fused: bool = True
    """Run AdamW as one kernel."""
    batch_mb: PositiveInt = 256
    """Matrices of one shape are orthogonalised together, up to this many MiB of bf16."""
    distributed: bool = True
    """Each rank orthogonalises its share of the matrices and sends it to the others in bf16. Off:
    each rank computes all of them, and nothing is sent."""

    def mup_rate(self, width: float) -> float:
        """Return what keeps the spectral norm of an update independent of width.

        That is the condition of Yang, Simon and Bernstein 2023 (arXiv:2310.17813). Jordan's factor
        depends on proportions only, so nothing is left to do; Moonshot's grows as the root.
        """
        return 1.0 if self.adjust_lr == "original" else width**-0.5

    def decay_factor(self, done: float) -> float:
        """Return 1, or the height of the cosine."""
        constant = self.weight_decay_schedule == "constant"
        return 1.0 if constant else 0.5 * (1.0 + math.cos(math.pi * done))

    def state_bytes(self, counts: ParameterCounts) -> int:
        """Count one fp32 momentum for the blocks' matrices, both moments for other parameters.

        NorMuon has a number for each row of a matrix besides.
        """
        rows = sum(rows * number for rows, _, number in counts.matrices)
        of_rows = 0 if self.normuon_beta is None else FP32 * rows
        return 2 * FP32 * counts.total - FP32 * counts.layers + of_rows

    def sharded_workspace_bytes(self, counts: ParameterCounts, ways: int) -> int:
        """Count the same for matrices of which a rank has some rows: a share of them is gathered.

        Held are the rows' directions, in fp32 if they look ahead, and sent in 16 bits; and of the
        share four copies in 16 bits: as it came, joined, and two of the iteration.
        """
        most = 0
        for rows, columns, number in counts.matrices:
            size, gram = rows * columns, min(rows, columns) ** 2
            batch = max(1, self.batch_mb * 2**20 // (BF16 * size))
            together = min(-(-batch // ways) * ways, number)
            held = (FP32 if self.nesterov else 0) + BF16
            share = -(-together // ways) * BF16 * (4 * size + 2 * gram)
            most = max(most, held * size * together // ways + share)
        return most

    def update_workspace_bytes(
        self, counts: ParameterCounts, *, ranks: int = 1, on_cpu: bool = False
    ) -> int:
        """Count the most that the update holds at once, over its batches of matrices.

        It computes a batch while the results of the one before are exchanged, then casts those to
        fp32. Held are: the directions in fp32 if they look ahead, a rank's share of them stacked in
        fp32 and two stages of the iteration in 16 bits with Gram matrix and polynomial, the
        16-bit results of both batches, and the cast ones; to decay cautiously, the products with a
        matrix's weights and their signs.
        """
        ranks = ranks if self.distributed else 1
        most = before_results = before_cast = before_directions = 0
        for rows, columns, number in counts.matrices:
            size, gram = rows * columns, min(rows, columns) ** 2
            batch = max(1, self.batch_mb * 2**20 // (BF16 * size))
            batch = -(-batch // ranks) * ranks
            for first in range(0, number, batch):
                together = min(batch, number - first)
                share = -(-together // ranks)
                directions = FP32 * size * together if self.nesterov else 0
                results = BF16 * size * share * ranks
                working = share * (FP32 * size + 2 * BF16 * (size + gram))
                most = max(
                    most,
                    before_results + before_directions + directions,
                    before_results + directions + working,
                    before_results + directions + results + before_cast,
                )
                before_results, before_directions = results, directions
                before_cast = FP32 * size * together
                if self.cautious_weight_decay:
                    before_cast += (FP32 + 1) * size
        return max(most, before_results + before_directions + before_cast)

    def check_heads(self, heads: int, kv_heads: int) -> None:
        """Check that query and key-value heads can be taken ``qkv_heads`` at a time.

        Raises:
            ValueError: they do not divide into such groups.
        """
        if self.qkv_heads is not None and (heads % self.qkv_heads or kv_heads % self.qkv_heads):
            raise ValueError(
                f"optimizer.qkv_heads {self.qkv_heads} does not divide both the {heads} query "
                f"heads and the {kv_heads} key-value heads of the model; 1 does"
            )

    def check_tied(self, *, tie_embeddings: bool) -> None:
        """Check that tied weights, which are one weight, have one learning rate.

        Raises:
            ValueError: embedding and head are tied, yet their rates differ.
        """
        if tie_embeddings and self.head_lr not in {None, self.embedding_lr}:
            raise ValueError(
                f"optimizer.head_lr {self.head_lr:g} differs from optimizer.embedding_lr "
                f"{self.embedding_lr:g}, but model.tie_embeddings makes head and embedding one "
                "weight, which has one rate. Drop head_lr, or set model.tie_embeddings: false"
            )


AnyOptimizer = AdamWConfig | EightBitAdamWConfig | MuonConfig
OptimizerConfig = Annotated[
    AnyOptimizer, Field(discriminator="name"), BeforeValidator(tagged("name", "adamw"))
]


def mup_names() -> list[str]:
    """Return the names of the optimizers for which muP is defined."""
    kinds = [kind() for kind in get_args(AnyOptimizer)]
    return [kind.name for kind in kinds if kind.mup_rate(1.0) is not None]


def optimizer_kind(train: Mapping[str, Any]) -> str:
    """Return whose state an optimizer has: another kind cannot go on from it.

    ``train`` is a TrainConfig's values, also of an earlier version.
    """
    replaced = (train.get("parts") or {}).get("optimizer")
    if replaced is not None:
        return str(replaced)
    optimizer = train["optimizer"]
    library = optimizer.get("library")
    if optimizer.get("normuon_beta") is not None:
        return f"{optimizer['name']} with normuon_beta"
    return f"{optimizer['name']} of {library}" if library else str(optimizer["name"])
