"""Memory plan of a run, stage by stage, from its config alone: no torch needed.

The terms are the trainer's own tensors, counted as autograd keeps them. Against the 1.2B Llama run
of docs/reference-runs.md: weights, gradients and both moments are 19.87 GB, the measured peak of
its optimizer step; [1, 2048] in fp32 keeps 6.1 GB of activations, where 6.2 were measured.
tests/trainer/test_memory_published.py checks the plan against these measurements.

The formulas of an optimizer and of a loss are methods of its config, in ``lehr_trainer.configs``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lehr_trainer.configs.activation_checkpointing import ActivationCheckpointingConfig
from lehr_trainer.configs.sizes import BF16, FP32, HeadSize, ParameterCounts
from lehr_trainer.configs.train import GPT2Config, ModelConfig, TrainConfig
from lehr_trainer.planning.counts import parameter_counts

_OVERHEAD_BYTES = 1_500_000_000
"""CUDA context, cuBLAS workspaces and fragmentation; for a GPU, not for a CPU."""


@dataclass(frozen=True)
class MemoryPlan:
    """Planned bytes on one rank's device."""

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
    """Gradient of the head, which exists before any layer is differentiated."""
    loss: int
    """Most bytes that the head and its cross entropy hold, by the kind of loss."""
    optimizer_workspace: int
    """Most bytes that the update allocates, besides gradients and state."""
    overhead: int
    keeps_gradients: bool
    """Gradients live through the forward pass: accumulation, or buckets of DDP."""
    checkpoint_copy: int
    """Bytes of host memory on rank 0 (and so in no stage): the copy of the state that asynchronous
    saves write from. 0 if saves block."""

    @property
    def resting(self) -> int:
        """Bytes between two steps."""
        held = self.gradients if self.keeps_gradients else 0
        return self.weights + self.optimizer + held + self.overhead

    @property
    def forward(self) -> int:
        """Bytes at the end of the forward pass, while the loss is computed."""
        return self.resting + self.weight_copies + self.activations + self.loss

    @property
    def backward(self) -> int:
        """Bytes at the layer where activations and gradients add up to most: the first or last."""
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
    """Plan the memory of one of ``world_size`` data-parallel ranks.

    With ``device: auto`` the plan is one for CUDA.
    """
    config = config.on("cpu" if config.device == "cpu" else "cuda")
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
    optimizer = config.optimizer.state_bytes(counts)
    head = HeadSize(tokens, model.hidden_size, model.vocab_size, half)
    # The math kernel keeps the softmax of all scores.
    scores = batch.longest_sequence if config.attention.backend == "math" else 0
    compiled = config.compile.compiles
    # An eager norm keeps its input in fp32; compiled code keeps the stream, and widens it again.
    residual = BF16 if compiled and config.precision.residual == "bf16" else FP32
    layer = layer_bytes(
        model, half=half, length_of_scores=scores, compiled=compiled, residual=residual
    )
    dropped = layer.dropped(config.activation_checkpointing)
    kept = activation_bytes_per_token(
        model, half=half, length_of_scores=scores, compiled=compiled, residual=residual
    )
    kept -= recomputing_layers(config) * dropped
    workspace = _workspace_bytes_per_token(model, half=half) + dropped
    return MemoryPlan(
        weights=FP32 * counts.total,
        gradients=FP32 * counts.total,
        optimizer=optimizer,
        weight_copies=weight_copies(config, counts, half=half),
        activations=tokens * kept,
        layer_workspace=tokens * workspace,
        head_gradient=FP32 * model.vocab_size * model.hidden_size,
        loss=config.loss.loss_bytes(head),
        optimizer_workspace=config.optimizer.update_workspace_bytes(counts),
        overhead=0 if on_cpu else _OVERHEAD_BYTES,
        keeps_gradients=world_size > 1 or micro_batch < share,
        checkpoint_copy=FP32 * counts.total + optimizer if config.checkpoint.asynchronous else 0,
    )


@dataclass(frozen=True)
class LayerBytes:
    """What autograd keeps of one layer for a token, with a fused norm and attention kernel."""

    block_input: int
    """The residual stream, fp32."""
    middle: int
    """The residual stream between attention and MLP, and both norms' results."""
    attention: int
    """Query, key, value, the result, and the log of each head's softmax sum (fp32)."""
    mlp: int

    @property
    def all(self) -> int:
        return self.block_input + self.middle + self.attention + self.mlp

    def dropped(self, config: ActivationCheckpointingConfig) -> int:
        """Count the bytes that a layer under that policy recomputes instead of keeping.

        A checkpointed part keeps its input, so that of attention and MLP stays: the norm's
        result. Norms and embedding keep next to nothing that is not another's input.
        """
        return {
            "none": 0,
            "embedding": 0,
            "norms": 0,
            "attention": self.attention,
            "swiglu": self.mlp,
            "block": self.all - self.block_input,
        }[config.policy]


def layer_bytes(
    model: ModelConfig,
    *,
    half: bool,
    length_of_scores: int = 0,
    compiled: bool = False,
    residual: int = FP32,
) -> LayerBytes:
    """Count the bytes that autograd keeps of one layer for a token.

    Args:
        model: its shape.
        half: whether products take 16-bit operands.
        length_of_scores: the sequence's length if the kernel keeps all scores (in fp32), else 0.
        compiled: the compiler computes one of the MLP's tensors again, and one norm's result.
        residual: bytes of a value of the residual stream, as it is kept.
    """
    width, hidden, heads = BF16 if half else FP32, model.hidden_size, model.num_attention_heads
    if isinstance(model, GPT2Config):
        kv, inner, statistics = 2 * hidden, 2 * model.mlp_size, 4 * FP32
    else:
        kv = 2 * model.num_key_value_heads * (hidden // heads)
        # The SwiGLU's two products, SiLU of one, and their product.
        inner, statistics = (3 if compiled else 4) * model.intermediate_size, 2 * FP32
    norms = 1 if compiled else 2
    scores = FP32 * heads * length_of_scores
    return LayerBytes(
        block_input=residual * hidden,
        middle=residual * hidden + norms * width * hidden + statistics,
        attention=width * (2 * hidden + kv) + FP32 * heads + scores,
        mlp=width * inner,
    )


def recomputing_layers(config: TrainConfig) -> int:
    if config.activation_checkpointing.policy in {"none", "embedding"}:
        return 0
    return math.ceil(config.model.num_hidden_layers / config.activation_checkpointing.every)


def weight_copies(config: TrainConfig, counts: ParameterCounts, *, half: bool) -> int:
    """Count the 16-bit copies of the linears' weights that live until backward.

    Those of a recomputed part are made again in backward. Compiled code keeps them like eager
    code: inductor saves what feeds a matrix product.
    """
    if not half:
        return 0
    share = recomputing_layers(config) / config.model.num_hidden_layers
    again = {"attention": counts.attention, "swiglu": counts.mlp, "block": counts.layers}
    return round(
        BF16 * (counts.layers - share * again.get(config.activation_checkpointing.policy, 0))
    )


def activation_bytes_per_token(
    model: ModelConfig,
    *,
    half: bool,
    length_of_scores: int = 0,
    compiled: bool = False,
    residual: int = FP32,
) -> int:
    """Count the bytes that autograd keeps for a token, over all layers and the last norm."""
    layer = layer_bytes(
        model, half=half, length_of_scores=length_of_scores, compiled=compiled, residual=residual
    )
    return model.num_hidden_layers * layer.all + 2 * FP32 * model.hidden_size


def _workspace_bytes_per_token(model: ModelConfig, *, half: bool) -> int:
    """Count the gradients of the SwiGLU's product, SiLU and gate, and of the residual stream."""
    width = BF16 if half else FP32
    if isinstance(model, GPT2Config):
        return 2 * width * model.mlp_size + 2 * FP32 * model.hidden_size
    return 4 * width * model.intermediate_size + 2 * FP32 * model.hidden_size
