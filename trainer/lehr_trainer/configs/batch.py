"""The batch of an optimizer step: its sequences, their length, and later changes of the length."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from lehr_trainer.configs.base import Config, OrNone, PositiveInt


class LengthStage(Config):
    """A later part of training with sequences of another length."""

    after: Annotated[float, Field(gt=0.0, lt=1.0)]
    """Share of all steps before this stage. A common value is 0.9."""
    sequence_length: PositiveInt
    """Tokens of a sequence in this stage."""


class BatchConfig(Config):
    sequences: PositiveInt
    """Sequences an optimizer step, over all ranks and accumulation: [512, 2048] has 512."""
    sequence_length: PositiveInt
    """Tokens of a sequence."""
    micro_batch: PositiveInt | None = None
    """Sequences a forward pass on one rank; by default all of a rank's share at once."""
    stages: list[LengthStage] = []
    """Changes of sequence length in the course of training, at the same tokens per step. The older
    form of ``train.stages``."""
    block: OrNone[PositiveInt] = None
    """Tokens of a block: the corpus is cut into blocks, which are shuffled, and sequences are cut
    from them. The longest sequence if not given. Of stages and forks with the same block, the later
    one goes on exactly where the earlier one ended."""

    @model_validator(mode="after")
    def _stages_fit(self) -> Self:
        starts = [stage.after for stage in self.stages]
        if starts != sorted(set(starts)):
            raise ValueError(f"batch.stages must begin one after another, but `after` is {starts}")
        block = self.longest_sequence
        for length in (self.sequence_length, *(stage.sequence_length for stage in self.stages)):
            if block % length:
                raise ValueError(
                    f"sequence length {length} does not divide the longest, {block}: batches of "
                    "each length are cut from blocks of the longest"
                )
            if self.tokens_per_step % length:
                raise ValueError(
                    f"sequence length {length} does not divide the {self.tokens_per_step} tokens "
                    "of a step"
                )
        if self.tokens_per_step % block:
            raise ValueError(
                f"a step has {self.tokens_per_step} tokens, which are not whole blocks of the "
                f"longest sequence, {block}; change batch.sequences"
            )
        return self

    @property
    def tokens_per_step(self) -> int:
        return self.sequences * self.sequence_length

    @property
    def longest_sequence(self) -> int:
        """Tokens of a block."""
        lengths = (stage.sequence_length for stage in self.stages)
        return max(self.sequence_length, self.block or 0, *lengths)

    def sharing_problem(self, world_size: int) -> str | None:
        """Explain why ``world_size`` ranks cannot share every step equally; None if they can."""
        for _, shape in self._shapes(1):
            if shape.sequences % world_size:
                return (
                    f"{shape.sequences} sequences a step cannot be shared by {world_size} ranks "
                    "evenly; make batch.sequences a multiple"
                )
            share = shape.sequences // world_size
            if share % (shape.micro_batch or share):
                return (
                    f"batch.micro_batch {shape.micro_batch} does not divide the {share} sequences "
                    f"of {shape.sequence_length} tokens that each of {world_size} ranks takes"
                )
        return None

    def _shapes(self, steps: int) -> list[tuple[int, BatchConfig]]:
        """Return the shapes of the steps, each with the steps before it, of ``steps``."""
        later = [(round(s.after * steps), self.with_length(s.sequence_length)) for s in self.stages]
        return [(0, self), *later]

    def changes(self, steps: int) -> tuple[int, ...]:
        """Return the steps after which the sequence length changes, of ``steps``."""
        return tuple(first for first, _ in self._shapes(steps)[1:])

    def at(self, step: int, steps: int) -> BatchConfig:
        """Return the shape of a step (the first is 0); tokens per step never change.

        A micro-batch keeps its tokens too, as far as whole sequences allow.
        """
        return [shape for first, shape in self._shapes(steps) if first <= step][-1]

    def shapes_ahead(
        self, steps: int, world_size: int = 1, *, taken: int = 0
    ) -> list[tuple[int, int]]:
        """List the shapes [B, T] of a rank's forward passes in the steps after ``taken``.

        Each is listed once, in the order in which training meets them.
        """
        firsts = [taken, *(first for first in self.changes(steps) if first > taken)]
        shapes = [self.at(first, steps) for first in firsts if first < steps]
        sizes = ((s.micro_batch or s.sequences // world_size, s.sequence_length) for s in shapes)
        return list(dict.fromkeys(sizes))

    def most_micro_steps(self, steps: int, world_size: int = 1) -> int:
        """Count a rank's forward passes in the step that has most of them."""
        share = self.tokens_per_step // world_size
        return max(share // (b * t) for b, t in self.shapes_ahead(steps, world_size))

    def with_length(self, length: int) -> BatchConfig:
        if length == self.sequence_length:
            return self
        micro_batch = self.micro_batch
        if micro_batch is not None:
            micro_batch = max(1, micro_batch * self.sequence_length // length)
        return self.model_copy(
            update={
                "sequences": self.tokens_per_step // length,
                "sequence_length": length,
                "micro_batch": micro_batch,
            }
        )
