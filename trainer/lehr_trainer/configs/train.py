"""The config of a training run, complete and resolved: pure Pydantic, no torch.

The platform validates a spec with these classes on a machine without torch; the trainer builds
itself from them. ``TrainConfig`` dumped to YAML is enough to repeat a run. Every field has a unit
in its name or its description.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from lehr_trainer.configs import budget
from lehr_trainer.configs.base import Config, NonNegativeInt, OrNone, PositiveInt, tagged
from lehr_trainer.configs.batch import BatchConfig
from lehr_trainer.configs.budget import ForkedAt, Tokens
from lehr_trainer.configs.corpus import ChatCorpus, Corpus, corpora
from lehr_trainer.configs.execution import (
    ActivationCheckpointingConfig,
    AttentionConfig,
    AverageConfig,
    CompileConfig,
    DiagnosticsConfig,
    Fp8Config,
    LossScaleConfig,
    ParallelConfig,
    ProfileConfig,
    SkipStepConfig,
    sixteen_bit_only,
)
from lehr_trainer.configs.loss import LossConfig
from lehr_trainer.configs.optimizer import AdamWConfig, MuonConfig, OptimizerConfig, mup_names
from lehr_trainer.configs.parts import PartsConfig
from lehr_trainer.configs.presets import expand_model_preset
from lehr_trainer.configs.schedule import ScheduleConfig
from lehr_trainer.configs.shapes import GPT2Config, LlamaConfig
from lehr_trainer.configs.stages import CourseStage, StageConfig, StageSpan, course, span_of, spans
from lehr_trainer.configs.tasks import JudgedBy, Tasks, in_training

__all__ = ["AdamWConfig", "BatchConfig", "Config", "GPT2Config", "LlamaConfig"]
"""Of other modules, but commonly imported from here."""

ModelConfig = Annotated[
    LlamaConfig | GPT2Config, Field(discriminator="kind"), BeforeValidator(tagged("kind", "llama"))
]


# --- data ----------------------------------------------------------------------------------


class ValidationConfig(Config):
    """The held-out set: fixed documents (by hash), tokens and order for every run of a corpus."""

    tokens: PositiveInt = 1_048_576
    """How many tokens each evaluation scores, as far as so many are held out."""
    share: Annotated[float, Field(gt=0.0, lt=0.5)] = 0.01
    """Share of documents held out, chosen by document hash."""
    every: NonNegativeInt = 250
    """Steps between evaluations; 0 evaluates only after the last step."""
    micro_batch: PositiveInt | None = None
    """Sequences a forward pass; the training micro-batch if not given."""


class DataConfig(Config):
    corpus: Corpus
    tokenizer: str = "tekken"
    """tekken (131,072 tokens, offline), byte, a path to a tokenizers JSON, or a hub id."""
    max_tokens: PositiveInt | None = None
    """Prepare at most this many training tokens of the corpus; of a mix, of each corpus."""
    loading: Literal["auto", "memmap", "preload"] = "auto"
    """auto preloads if one rank is alone on its machine and the shards fit in half of the free
    memory. Several ranks share one map, which is read ahead if it fits so."""
    workers: NonNegativeInt = 1
    """Threads that make batches ahead of time; 0 makes each when it is needed."""
    prefetch: PositiveInt = 4
    """Batches that each worker keeps ready."""
    loss_mask: Annotated[
        Literal["none", "document_starts", "prompts"], Field(exclude_if=lambda mask: mask == "none")
    ] = "none"
    """Training tokens that are read but not predicted. document_starts: the first token of each
    document that follows another one in its sequence; validation scores every token. prompts: in
    chats, all but the assistant's messages and what ends them; validation leaves them out, too."""

    @property
    def masks_prompts(self) -> bool:
        """Whether the corpus is one of chats whose prompts are masked."""
        return isinstance(self.corpus, ChatCorpus) and self.loss_mask == "prompts"

    @model_validator(mode="after")
    def _prompts_need_chats(self) -> Self:
        kinds = dict.fromkeys(one.kind for one in corpora(self.corpus, "").values())
        if self.loss_mask == "prompts" and "chat" not in kinds:
            raise ValueError(
                f"loss_mask prompts masks the prompts of chats, but the corpus has none (kind "
                f"{', '.join(kinds)}); use a corpus of kind chat, or loss_mask: none"
            )
        return self


# --- precision, checkpoints ----------------------------------------------------------------


class PrecisionConfig(Config):
    shorthand: ClassVar[str] = "compute"
    compute: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """bf16: autocast with fp32 master weights. fp16: the same, with a loss scale. auto: bf16 on
    CUDA, fp32 on CPU."""
    tf32: bool = True
    """Let fp32 matmuls run as TF32 where the GPU can."""
    loss_scale: LossScaleConfig = LossScaleConfig()
    """Loss scaling; used with fp16 only."""
    fp8: Fp8Config = Fp8Config()
    residual: Literal["fp32", "bf16"] = "fp32"
    """Of the residual stream, to which every layer adds. bf16 halves what its norms and additions
    read and write, and adds with 8 bits: docs/benchmarks.md has what that costs in loss. Needs
    precision.compute bf16."""


class CheckpointConfig(Config):
    every: NonNegativeInt = 2500
    """Steps between checkpoints; 0 saves only at the end and when stopped."""
    keep_last: Annotated[int, Field(ge=2)] = 2
    """Number of newest checkpoints that stay on disk; two, since the newest may be damaged."""
    keep_best: JudgedBy = True
    """Also keep the one with the lowest val/loss, of those saved at a step that was evaluated; or,
    by its name such as task/mean or task/NAME/accuracy, the one with the best value of a task."""
    keep_every: NonNegativeInt = 0
    """Also keep each checkpoint whose step is a multiple of this; 0 keeps no others."""
    save_last: bool = True
    """Save after the last step."""
    asynchronous: bool = True
    """Make training wait only until rank 0 has copied the state to host memory; the copy is written
    during the next steps. It takes as much memory as a checkpoint has bytes. False waits until the
    checkpoint is complete."""


class TrainConfig(Config):
    """One training run, complete."""

    model_config = ConfigDict(json_schema_extra=budget.steps_or_budget)

    model: Annotated[ModelConfig, BeforeValidator(expand_model_preset)]
    """A preset's name, or the shape; ``{preset: NAME, ...}`` changes part of a preset."""
    data: DataConfig
    batch: BatchConfig
    tokens_per_parameter: Annotated[float, Field(gt=0)] | None = None
    """Train on this many tokens for each parameter of the model, embeddings included; ``steps``
    follow from it. 20 is about the optimum of Hoffmann et al. 2022 (arXiv:2203.15556)."""
    tokens: OrNone[Tokens] = None
    """Train on this many tokens, e.g. 2B or 300M; ``steps`` follow from it."""
    forked_at: Annotated[OrNone[ForkedAt], AfterValidator(budget.needed)] = None
    """Set by a fork that changes the tokens of a step: budgets count the tokens before it, too."""
    stages: Annotated[list[StageConfig], Field(exclude_if=lambda stages: not stages)] = []
    """The course of the training: each stage goes on from the one before with other data, lengths,
    batches or rates. ``steps`` follow from their tokens."""
    steps: Annotated[PositiveInt, BeforeValidator(budget.resolve_steps)]
    """Optimizer steps. Give these, ``tokens``, ``tokens_per_parameter`` or ``stages``."""
    seed: NonNegativeInt = 0
    """Seed of initialisation and data order."""
    optimizer: OptimizerConfig = AdamWConfig()
    """Chosen by its ``name``; adamw if not given."""
    optimizer_state: Annotated[
        Literal["keep", "fresh"], Field(exclude_if=lambda kept: kept == "keep")
    ] = "keep"
    """Set by a fork. fresh starts without the optimizer's state of the checkpoint that it forks,
    which another optimizer could not use; it keeps the state of its own checkpoints."""
    schedule: ScheduleConfig = ScheduleConfig()
    loss: LossConfig = LossConfig()
    grad_clip: Annotated[float, Field(ge=0)] = 1.0
    """Largest global gradient norm; 0 does not clip."""
    skip_step: SkipStepConfig = SkipStepConfig()
    precision: PrecisionConfig = PrecisionConfig()
    attention: AttentionConfig = AttentionConfig()
    activation_checkpointing: ActivationCheckpointingConfig = ActivationCheckpointingConfig()
    compile: CompileConfig = CompileConfig()
    parallel: ParallelConfig = ParallelConfig()
    average: OrNone[AverageConfig] = None
    """Keep a mean of the weights over the training beside them."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    validation: ValidationConfig = ValidationConfig()
    evals: Tasks = []
    """Tasks that each stage is evaluated on, too: docs/tasks.md."""
    diagnostics: DiagnosticsConfig = DiagnosticsConfig()
    profile: ProfileConfig = ProfileConfig()
    parts: OrNone[PartsConfig] = None
    """Parts of the trainer that the project replaces: model, loss, optimizer."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto uses CUDA if there is a GPU."""
    deterministic: bool = False
    """Deterministic kernels: bitwise the same run every time, somewhat slower."""
    threads: PositiveInt | None = None
    """CPU threads of each rank; None leaves it to torchrun and torch."""

    @model_validator(mode="before")
    @classmethod
    def _steps_or_budget(cls, raw: Any) -> Any:
        """Let the validator of ``steps`` run where only a token budget is given."""
        if isinstance(raw, dict) and any(
            raw.get(name) not in (None, []) for name in budget.BUDGETS
        ):
            return {"steps": None, **raw}
        return raw

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.has_budget:
            # They follow from the budget: whoever changes the model or the batch of this config,
            # for example a sweep, gets them again.
            self.__pydantic_fields_set__.discard("steps")
        batch = self.batch
        if batch.micro_batch is not None and batch.sequences % batch.micro_batch:
            raise ValueError(
                f"batch.micro_batch {batch.micro_batch} does not divide "
                f"batch.sequences {batch.sequences}"
            )
        if batch.longest_sequence > self.model.max_sequence_length:
            raise ValueError(
                f"batch.sequence_length {batch.longest_sequence} is longer than "
                f"model.max_sequence_length {self.model.max_sequence_length}"
            )
        backend = self.attention.chosen
        # A CPU's flash kernel takes fp32; with device: auto the trainer decides when it starts.
        on_cuda = self.device == "cuda" or (self.device == "auto" and not backend.on_cpu)
        if self.precision.compute == "fp32" and backend.sixteen_bit_only and on_cuda:
            raise ValueError(sixteen_bit_only(self.attention.backend))
        if self.precision.residual == "bf16" and self.precision.compute not in {"auto", "bf16"}:
            raise ValueError(
                f"precision.residual bf16 needs precision.compute bf16, not "
                f"{self.precision.compute}: fp32 products would be rounded as they are added"
            )
        self._check_joint_products()
        self._check_delayed_scaling()
        self._check_parts()
        self._check_keep_best()
        self.parallel.check_fits(self)
        self._check_loss_mask()
        self.schedule.check_fits(self.steps)
        if self.average is not None:
            self.average.check_fits(self.steps)
        if isinstance(self.optimizer, MuonConfig):
            self.optimizer.check_tied(tie_embeddings=self.model.tie_embeddings)
            heads = self.model.num_attention_heads
            self.optimizer.check_heads(heads, getattr(self.model, "num_key_value_heads", heads))
        if self.model.parametrization == "mup" and self.optimizer.mup_rate(1.0) is None:
            raise ValueError(
                f"model.parametrization mup is not defined for optimizer {self.optimizer.name}; "
                f"use {' or '.join(mup_names())}, or model.parametrization: standard"
            )
        if self.stages:
            self.course  # noqa: B018 - each stage is validated
        return self

    def _check_joint_products(self) -> None:
        if not self.compile.joint_products:
            return
        if self.model.kind == "gpt2":
            raise ValueError(
                "compile.joint_products has no effect on a GPT-2, whose query, key and value are "
                "one product already; leave it out"
            )
        if self.precision.fp8.recipe != "none":
            raise ValueError(
                f"compile.joint_products cannot join the layers that precision.fp8.recipe "
                f"{self.precision.fp8.recipe} converts; leave one of the two out"
            )

    def _check_delayed_scaling(self) -> None:
        if self.precision.fp8.recipe == "te_delayed" and self.compile.on("cpu").compiles:
            raise ValueError(
                "precision.fp8.recipe te_delayed cannot be compiled: Transformer Engine refuses it "
                "under torch.compile; leave compile out, or use tensorwise or rowwise"
            )

    def _check_keep_best(self) -> None:
        metric, where = self.checkpoint.keep_best, {one.name: one.where for one in self.evals}
        if isinstance(metric, str) and not in_training(metric, where):
            raise ValueError(
                f"checkpoint.keep_best is {metric}, but of train.evals, which has "
                f"{', '.join(where) or 'no task'}, none or not all of these are evaluated in the "
                "training (where: training); name another one, or true for val/loss"
            )

    def _check_parts(self) -> None:
        if self.parts is None:
            return
        if self.parts.model is not None and self.tokens_per_parameter is not None:
            raise ValueError(
                f"tokens_per_parameter counts the parameters of Lehr's {self.model.kind}, but "
                f"parts.model is {self.parts.model}; give steps"
            )
        if self.parts.optimizer is not None and self.model.parametrization == "mup":
            raise ValueError(
                "model.parametrization mup sets the rate of each group of Lehr's optimizers, but "
                f"parts.optimizer is {self.parts.optimizer}; use parametrization: standard"
            )

    def _check_loss_mask(self) -> None:
        replaced = self.parts.loss if self.parts is not None else None
        if cap := self.model.logit_softcap:
            self.loss.check_caps(cap)
        for field, is_set in (("loss.z_loss", self.loss.z_loss), ("model.logit_softcap", cap)):
            if replaced is not None and is_set:
                raise ValueError(
                    f"{field} is computed by Lehr's own losses, but parts.loss is {replaced}; "
                    "leave one of the two out"
                )
        if self.masks_tokens and replaced is None:
            self.loss.check_weighs(f"data.loss_mask {self.data.loss_mask}")

    def on(self, device: str) -> Self:
        """Return the config with what depends on the device (``cuda`` or ``cpu``) resolved."""
        # Transformer Engine cannot be compiled.
        compiles = "cpu" if self.precision.fp8.recipe == "te_delayed" else device
        compiling = self.compile.on(compiles)
        loss = self.loss.on(device, compiles=compiling.compiles)
        return self.model_copy(update={"compile": compiling, "loss": loss})

    @property
    def has_budget(self) -> bool:
        """Whether the steps follow from a token budget."""
        return any(getattr(self, name) for name in budget.BUDGETS)

    @property
    def masks_tokens(self) -> bool:
        """Whether some of the training tokens may not count in the loss."""
        return self.data.loss_mask != "none"

    @property
    def gathers_operands(self) -> bool:
        """Whether ranks that divide the blocks' weights gather them as autocast rounds them.

        FP8 rounds the fp32 ones, and a project's model may use them in fp32.
        """
        own = self.parts is not None and self.parts.model is not None
        return not own and self.precision.fp8.recipe == "none"

    def gathered_width(self, *, half: bool, trains: bool = True) -> int:
        """Return the bytes of a block's weight as ranks gather it, to train or else to evaluate.

        ``half``: the run computes in 16 bits.
        """
        if trains and self.precision.fp8.recipe == "tensorwise":
            return 1
        return 2 if half and self.gathers_operands else 4

    @property
    def tokens_per_step(self) -> int:
        """Of the last stage."""
        return self.spans[-1].batch.tokens_per_step

    @property
    def spans(self) -> list[StageSpan]:
        """The steps of its stages."""
        return spans(self.stages, self.batch, self.forked_at, steps=self.steps)

    @property
    def course(self) -> list[CourseStage]:
        """Its stages, each as a complete config; itself if it has none."""
        return course(self)

    @property
    def total_tokens(self) -> int:
        return self.tokens_at(self.steps)

    def tokens_at(self, step: int) -> int:
        """Return the tokens trained on after ``step`` steps, those before a fork included."""
        return span_of(self.spans, step).tokens_at(step)
