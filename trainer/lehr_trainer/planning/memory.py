"""How much memory a run takes, stage by stage, from its config alone: no torch needed.

The terms are those of this trainer's own tensors, counted as autograd keeps them. Against the 1.2B
Llama run of docs/reference-runs.md: weights, gradients and both moments are 19.87 GB, the measured
peak of its optimizer step; [1, 2048] in fp32 keeps 6.1 GB of activations, where 6.2 were measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from lehr_trainer.configs.train import GPT2Config, ModelConfig, TrainConfig
from lehr_trainer.planning import memory_parts as parts
from lehr_trainer.planning.counts import ParameterCounts, parameter_counts

CHUNK_BYTES = 2**30
"""Most that the fp32 logits of one chunk of the loss take: 2,048 rows of 131,072 tokens."""

_FP32, _BF16 = 4, 2
_OVERHEAD_BYTES = 1_500_000_000
"""CUDA context, cuBLAS workspaces and what the allocator cannot fill; a GPU's, not a CPU's."""


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes on one rank's device."""

    weights: int
    gradients: int
    optimizer: int
    weight_copies: int
    """16-bit copies of the linears' weights, which autocast keeps for the backward pass."""
    activations: int
    """What all layers keep for the backward pass of one micro-batch."""
    layer_workspace: int
    """Gradients that exist at once while one layer is differentiated, and what it recomputes."""
    head_gradient: int
    """It stands before any layer is differentiated."""
    loss: int
    """The head's cross entropy at its largest, by its kind."""
    optimizer_workspace: int
    """What the update holds for a moment besides gradients and state."""
    overhead: int
    keeps_gradients: bool
    """Gradients live through the forward pass: accumulation, or buckets of DDP."""
    checkpoint_copy: int
    """Of host memory, on rank 0 alone and so in no stage: the state's copy that asynchronous
    saves write from. 0 where saves block."""

    @property
    def resting(self) -> int:
        """Between two steps."""
        held = self.gradients if self.keeps_gradients else 0
        return self.weights + self.optimizer + held + self.overhead

    @property
    def forward(self) -> int:
        """At its end, while the loss is computed."""
        return self.resting + self.weight_copies + self.activations + self.loss

    @property
    def backward(self) -> int:
        """At the layer where activations left and gradients made weigh most: one of the ends."""
        held = 0 if self.keeps_gradients else self.gradients
        first = self.activations + self.head_gradient
        return self.resting + self.weight_copies + self.layer_workspace + max(first, held)

    @property
    def optimizer_step(self) -> int:
        held = 0 if self.keeps_gradients else self.gradients
        return self.resting + held + self.optimizer_workspace

    @property
    def peak(self) -> int:
        return max(self.forward, self.backward, self.optimizer_step)

    @property
    def stages(self) -> dict[str, int]:
        return {
            "resting": self.resting,
            "forward": self.forward,
            "backward": self.backward,
            "optimizer": self.optimizer_step,
        }


def training_memory(config: TrainConfig, world_size: int = 1) -> MemoryPlan:
    """The plan for one of ``world_size`` data-parallel ranks."""
    model, batch = config.model, config.batch
    counts = parameter_counts(model)
    share = max(1, batch.sequences // world_size)
    micro_batch = min(batch.micro_batch or share, share)
    # A micro-batch of one sequence grows with its length in a later stage.
    later = batch.shapes_ahead(config.steps, world_size)[1:]
    tokens = max(b * t for b, t in [(micro_batch, batch.sequence_length), *later])
    on_cpu = config.device == "cpu"
    compute = config.precision.compute
    half = compute in {"bf16", "fp16"} or (compute == "auto" and not on_cpu)
    optimizer = _optimizer_bytes(config, counts)
    # The math kernel keeps the softmax of all scores.
    scores = batch.longest_sequence if config.attention.backend == "math" else 0
    layer = parts.layer_bytes(model, half=half, length_of_scores=scores)
    dropped = layer.dropped(config.activation_checkpointing)
    kept = activation_bytes_per_token(model, half=half, length_of_scores=scores)
    kept -= parts.recomputing_layers(config) * dropped
    workspace = _workspace_bytes_per_token(model, half=half) + dropped
    return MemoryPlan(
        weights=_FP32 * counts.total,
        gradients=_FP32 * counts.total,
        optimizer=optimizer,
        weight_copies=parts.weight_copies(config, counts, half=half),
        activations=tokens * kept,
        layer_workspace=tokens * workspace,
        head_gradient=_FP32 * model.vocab_size * model.hidden_size,
        loss=parts.loss_bytes(config, tokens, half=half),
        optimizer_workspace=parts.optimizer_workspace(config, counts),
        overhead=0 if on_cpu else _OVERHEAD_BYTES,
        keeps_gradients=world_size > 1 or micro_batch < share,
        checkpoint_copy=_FP32 * counts.total + optimizer if config.checkpoint.asynchronous else 0,
    )


def _optimizer_bytes(config: TrainConfig, counts: ParameterCounts) -> int:
    """Both moments in fp32, but for 8-bit AdamW's in blocks and Muon's one momentum."""
    full = 2 * _FP32 * counts.total
    if config.optimizer.name == "adamw8bit":
        small = counts.layers + counts.head
        return full - 2 * (_FP32 - 1) * small + small // 32
    if config.optimizer.name == "muon":
        return full - _FP32 * counts.layers
    return full


def activation_bytes_per_token(model: ModelConfig, *, half: bool, length_of_scores: int = 0) -> int:
    """What autograd keeps for a token, over all layers and the last norm."""
    layer = parts.layer_bytes(model, half=half, length_of_scores=length_of_scores).all
    return model.num_hidden_layers * layer + 2 * _FP32 * model.hidden_size


def _workspace_bytes_per_token(model: ModelConfig, *, half: bool) -> int:
    """The SwiGLU's: gradients of its product, SiLU and gate, besides the residual's."""
    width = _BF16 if half else _FP32
    if isinstance(model, GPT2Config):
        return 2 * width * model.mlp_size + 2 * _FP32 * model.hidden_size
    return 4 * width * model.intermediate_size + 2 * _FP32 * model.hidden_size
