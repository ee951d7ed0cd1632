"""What one layer keeps and allocates for a token, in bytes, by device. Pure.

Without compilation a CPU keeps more of a Llama than CUDA does: it has no fused RMSNorm, so autograd
also keeps each norm's normalised values in fp32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lehr_trainer.configs.sizes import BF16, FP8, FP32, ParameterCounts
from lehr_trainer.configs.train import GPT2Config, ModelConfig, TrainConfig
from lehr_trainer.planning.counts import block_norms


@dataclass(frozen=True)
class Kernels:
    """What decides which tensors a layer makes."""

    half: bool
    """Products take 16-bit operands."""
    on_cpu: bool = False
    compiled: bool = False
    """The compiler computes one of the MLP's tensors again. Of the residual stream it keeps
    what attention adds to it, rounded, and both norms' results."""
    fp8: str = ""
    """torchao's recipe by which the blocks' linears round their operands to FP8, if any."""
    joint: bool = False
    """Query, key and value are one product, of which the value stays a part."""
    residual: int = FP32
    """Bytes of a value of the residual stream, as it is kept. An eager norm keeps fp32, except a
    CPU's LayerNorm."""
    scores: int = 0
    """The sequence's length if attention keeps all scores, else 0: the math kernel."""
    mask: int = 0
    """The sequence's length if attention takes a dense mask, else 0: documents on a CPU, or with a
    kernel that was asked for by name."""
    repeated_heads: bool = False
    """Keys and values are repeated, since the attention kernel cannot share them."""

    @classmethod
    def of(cls, config: TrainConfig, *, half: bool, length: int) -> Kernels:
        """Choose for a config that is resolved for its device, cpu or cuda."""
        on_cpu = config.device == "cpu"
        backend = config.attention.chosen
        return cls(
            half=half,
            on_cpu=on_cpu,
            compiled=config.compile.compiles,
            fp8=config.precision.fp8.torchao_recipe,
            joint=config.compile.joint_products,
            residual=BF16
            if config.precision.residual == "bf16"
            and (config.compile.compiles or (on_cpu and isinstance(config.model, GPT2Config)))
            else FP32,
            scores=length if backend.holds_scores else 0,
            mask=length
            if config.attention.document_masking and (on_cpu or backend.dense_mask)
            else 0,
            repeated_heads=not on_cpu and (not half or not backend.shares_heads),
        )

    @property
    def width(self) -> int:
        """Bytes of a product's operand."""
        return BF16 if self.half else FP32

    @property
    def layer_norm(self) -> int:
        """Bytes of a value of LayerNorm's result: fp32 in CUDA's autocast, not in a CPU's."""
        return self.residual if self.on_cpu else FP32

    @property
    def fused_norm(self) -> bool:
        return self.compiled or not self.on_cpu


@dataclass(frozen=True)
class LayerBytes:
    """What autograd keeps of one layer for a token."""

    block_input: int
    """The residual stream, fp32."""
    middle: int
    """The residual stream between attention and MLP, and both norms' results."""
    unfused_norms: int
    """Both norms' normalised values, where the norm is no fused kernel."""
    attention: int
    """Query, key, value, the result, and the log of each head's softmax sum (fp32)."""
    mlp: int
    wide_input: int = 0
    """What the input of attention and of the MLP takes beyond its rounded copy. A part that
    recomputes keeps it as it came: LayerNorm's result is fp32, also in autocast. Compiled, it is
    computed again, and even the rounded copy is not kept."""
    norm_results: int = 0
    """Both norms' results, where compiled code can compute them again."""
    product: int = 0
    """Attention's result as it is added to the stream, if this is kept instead of the sum."""

    @property
    def all(self) -> int:
        return self.block_input + self.middle + self.unfused_norms + self.attention + self.mlp

    def dropped(self, policy: str) -> int:
        """Count the bytes that a layer under that policy recomputes instead of keeping.

        A checkpointed part keeps its input. For attention and the MLP this is the norm's result. A
        fused norm and the embedding keep almost nothing besides the inputs of other parts.
        """
        return {
            "none": 0,
            "embedding": 0,
            "norms": self.unfused_norms + self.norm_results,
            "attention": self.attention + self.product - self.wide_input,
            "swiglu": self.mlp - self.wide_input,
            "block": self.all - self.block_input,
        }[policy]

    def recomputed_for_mlp(self, policy: str) -> int:
        """Count the recomputed bytes while the MLP is differentiated, when most exist."""
        return self.dropped(policy) if policy in {"swiglu", "block"} else 0


def layer_bytes(model: ModelConfig, kernels: Kernels) -> LayerBytes:
    """Count the bytes that autograd keeps of one layer for a token."""
    width, hidden = kernels.width, model.hidden_size
    rounds_norms = isinstance(model, GPT2Config) and kernels.half
    # Compiled, what FP8 rounds is computed again: the rounding hides its use in a product.
    again = 1 if kernels.compiled and kernels.fp8 else 0
    # The product and what becomes of it; or SwiGLU's two, SiLU of one, and their product.
    wide = 2 if model.mlp != "swiglu" else 3 if kernels.compiled else 4
    inner = (wide - again) * model.mlp_size
    if isinstance(model, GPT2Config):
        statistics, unfused = 4 * FP32, 0
        wide_input = kernels.layer_norm - width
    else:
        norms = block_norms(model)
        statistics, unfused = norms * FP32, 0 if kernels.fused_norm else norms * FP32 * hidden
        wide_input = 0
    norm_results, product = 0 if again else 2 * width * hidden, 0
    between = kernels.residual * hidden
    if kernels.compiled:
        between = product = width * hidden
        wide_input = -width if rounds_norms and not again else 0
    if model.norm == "peri":  # What attention and MLP give to the norms after them.
        between += (width if kernels.compiled else 2 * FP32) * hidden
    elif model.norm == "post" and kernels.compiled and kernels.half:
        between = 0  # No norm keeps the stream.
    return LayerBytes(
        block_input=kernels.residual * hidden,
        middle=between + norm_results + statistics,
        unfused_norms=unfused,
        attention=_attention_bytes(model, kernels),
        mlp=width * inner,
        wide_input=wide_input * hidden,
        norm_results=norm_results if kernels.compiled and not rounds_norms else 0,
        product=product,
    )


def _attention_bytes(model: ModelConfig, kernels: Kernels) -> int:
    width, heads, kv_heads = kernels.width, model.num_attention_heads, model.num_key_value_heads
    q, kv = heads * model.head_size, 2 * kv_heads * model.head_size
    normed = _qk_norm_bytes(model, kernels)
    if kernels.scores and kernels.compiled:
        # Query and key are repeated as they are, and the softmax keeps its rows' figures.
        return width * (3 * q + kv // 2) + heads * (FP32 * (kernels.scores + 2) + 1) + normed
    if kernels.scores:
        # The math kernel widens and repeats its operands, and keeps the softmax of all scores.
        return 3 * FP32 * q + width * q + FP32 * heads * kernels.scores + normed
    if kernels.repeated_heads:
        kv = 2 * q
    # The value is a part of the joint product, so the whole product is kept beside the rotated
    # query and key.
    joint = q + kv // 2 if kernels.joint else 0
    return width * (2 * q + kv + joint) + FP32 * heads + width * kernels.mask + normed


def _qk_norm_bytes(model: ModelConfig, kernels: Kernels) -> int:
    """Count what the norms of query and key keep for a token: their inputs, and a figure a norm."""
    if model.qk_norm == "none":
        return 0
    heads = model.num_attention_heads + model.num_key_value_heads
    width = kernels.width if kernels.compiled else FP32 * (1 if kernels.fused_norm else 2)
    return width * heads * model.head_size + FP32 * (heads if model.qk_norm == "head" else 2)


def outer_bytes(model: ModelConfig, kernels: Kernels) -> int:
    """Count what is kept before the first layer for a token: a mask, a normed embedding's input."""
    return kernels.mask + (FP32 * model.hidden_size + 2 * FP32 if model.stable_embedding else 0)


def final_bytes(model: ModelConfig, kernels: Kernels) -> int:
    """Count what is kept after the last layer for a token: the stream and the last norm's result.

    The last norm is outside of the compiled blocks.
    """
    unfused = 0
    if not isinstance(model, GPT2Config) and kernels.on_cpu:
        unfused = FP32 * model.hidden_size
    stream = kernels.layer_norm if isinstance(model, GPT2Config) else FP32
    return (stream + hidden_width(model, kernels)) * model.hidden_size + unfused


def hidden_width(model: ModelConfig, kernels: Kernels) -> int:
    """Return the bytes of a value of the last hidden states."""
    return kernels.layer_norm if isinstance(model, GPT2Config) else kernels.width


def final_norm_bytes(model: ModelConfig, kernels: Kernels) -> int:
    """Count the gradients of the last norm that exist at once, for a token: five if not fused."""
    unfused = kernels.on_cpu and not isinstance(model, GPT2Config)
    return (5 if unfused else 2) * FP32 * model.hidden_size


def mlp_gradient_bytes(model: ModelConfig, kernels: Kernels, *, again: bool) -> int:
    """Count the most gradients that the MLP has beyond what it frees, for a token.

    Those of SiLU, gate and their product, which is freed by then; or of GPT-2's GELU, with the
    residual stream's rounded gradient. And the gradient of the residual stream. Compiled code has
    one of SwiGLU's in the place of what it kept; what it computed ``again`` is not reused.
    """
    width, hidden = kernels.width, model.hidden_size
    rounded = width * hidden if kernels.half else 0
    if kernels.fp8 and kernels.compiled:
        return FP32 * hidden + _compiled_fp8_gradient_bytes(model, kernels)
    if kernels.fp8:
        return width * model.mlp_size + FP32 * hidden + fp8_cast_bytes(model, kernels)
    if model.mlp == "gelu" or (model.mlp == "relu2" and kernels.compiled):
        return width * model.mlp_size + FP32 * hidden + rounded
    if model.mlp == "relu2":
        return 3 * width * model.mlp_size + FP32 * hidden
    if kernels.compiled and again:
        # A norm after the MLP is differentiated first, and what it needed is freed by then.
        wide = 3 if model.norm == "pre" else 2
        return wide * width * model.mlp_size + FP32 * hidden + rounded
    wide = 1 if kernels.compiled else 2
    return wide * width * model.mlp_size + FP32 * hidden


def fp8_cast_bytes(model: ModelConfig, kernels: Kernels) -> int:
    """Count what rounding the MLP's widest operand to FP8 takes, for a token; 0 without FP8.

    Eager, it is widened to fp32 and scaled, then cut off, then rounded.
    """
    if not kernels.fp8:
        return 0
    wide = (kernels.width if kernels.compiled else 2 * FP32) + 1
    held = FP32 * model.hidden_size if isinstance(model, GPT2Config) else 0
    return wide * model.mlp_size + (0 if kernels.compiled else held)


def _compiled_fp8_gradient_bytes(model: ModelConfig, kernels: Kernels) -> int:
    """Count the MLP's gradients in compiled FP8: wide ones in fp32, 16 bits and FP8, for a token.

    They are as Inductor allocates them: a scale for the whole tensor needs one pass before the
    rounding, a scale by row does not.
    """
    width, tensorwise = kernels.width, kernels.fp8 == "tensorwise"
    if isinstance(model, GPT2Config):
        narrow = (2 * width + 1) * model.hidden_size if tensorwise else 0
        return (FP32 + width + (1 if tensorwise else 2)) * model.mlp_size + narrow
    return ((FP32 if tensorwise else 0) + 2 * width + 4) * model.mlp_size


def score_gradients(kernels: Kernels) -> int:
    """Return how many tensors of all scores the math kernel's backward pass has at once."""
    return 1 if kernels.compiled else 2


def forward_bytes(model: ModelConfig, kernels: Kernels, policy: str) -> int:
    """Count the most that a layer allocates in forward and does not keep, for a token.

    The MLP's wide tensors and, where the whole block is recomputed, its input in both forms.
    Compiled, that is its rounded input and what attention adds to the stream.
    """
    width, hidden = kernels.width, model.hidden_size
    if policy not in {"swiglu", "block"}:
        return 0
    single, wide = model.mlp != "swiglu", model.mlp_size
    if kernels.compiled:
        # GELU works in place; its result stands beside that of the product after it.
        narrow = 2 if policy == "block" else 1 if single else 0
        return width * ((1 if single else 2) * wide + narrow * hidden)
    inner, norm = (2 if single else 3) * wide, width
    if isinstance(model, GPT2Config):
        norm = FP32
    if kernels.fp8:
        inner, held = wide, (2 * FP32 + 1) * wide
    else:
        held = 0
    if policy != "block":
        return held + width * inner
    of_mlp = held + width * inner + (FP32 + norm) * hidden
    if isinstance(model, GPT2Config):
        return of_mlp
    # Queries while they are rotated in fp32, beside all projections: of heads wider than the model.
    q, k = (n * model.head_size for n in (model.num_attention_heads, model.num_key_value_heads))
    rotated = (5 if kernels.half else 4) * FP32 * q
    return max(of_mlp, width * (hidden + q + 2 * k) + rotated)


def recomputing_layers(config: TrainConfig) -> int:
    if config.activation_checkpointing.policy in {"none", "embedding"}:
        return 0
    return math.ceil(config.model.num_hidden_layers / config.activation_checkpointing.every)


GPUS_OF_A_NODE = 8  # Assumed for ``parallel.shard: node``, if there are as many ranks.


@dataclass(frozen=True)
class Gathered:
    """Bytes of whole weights and gradients that FSDP2 has beside a rank's shards, by phase.

    ``kept`` from the forward to the backward pass; ``at_the_start`` until the first block has its
    weights; ``between`` two blocks, where compiled code still has the buffer of the one before, and
    in an evaluation; ``in_last`` while the last block computes backward, when nothing is sent yet;
    ``in_others`` then, with whole gradients and a copy to send.
    """

    kept: int = 0
    at_the_start: int = 0
    in_forward: int = 0
    between: int = 0
    in_last: int = 0
    in_others: int = 0
    at_the_end: int = 0
    narrow: bool = False
    """Weights of blocks are gathered in 16 bits, so autocast makes no copies of them."""

    @classmethod
    def of(
        cls, config: TrainConfig, counts: ParameterCounts, world_size: int, *, half: bool,
        trains: bool = True,
    ) -> tuple[int, Gathered]:  # fmt: skip
        """Return the number of shards, and what is gathered; one shard is the whole model."""
        shard = config.parallel.shard
        ways = min(world_size, GPUS_OF_A_NODE) if shard == "node" else world_size
        if shard == "none" or ways == 1:
            return 1, cls()
        width = config.gathered_width(half=half, trains=trains)
        narrow = width == BF16
        block, in_fp32 = (
            w * counts.layers // config.model.num_hidden_layers for w in (width, FP32)
        )
        outer = FP32 * counts.total - FP32 * counts.layers
        compiled = config.compile.compiles
        copies = 0
        # Gradients in 16 bits, then in fp32 to be sent; compiled code still has two buffers.
        sent = (4 + 2 * compiled) * block if narrow else in_fp32 + 2 * block
        if compiled and width == FP8:
            # The MLP's code transposes its weights, and keeps what comes of it.
            again = config.activation_checkpointing.policy in {"swiglu", "block"}
            number = config.model.num_hidden_layers
            copies = counts.mlp * (number - again * recomputing_layers(config)) // number
        if shard == "optimizer":
            whole = outer + block * config.model.num_hidden_layers
            wider = (1 + compiled) * block if narrow else in_fp32 - block  # Whole gradients.
            return ways, cls(whole + copies, 0, block, block, 0, wider, whole, narrow)
        # The weights of the block at work, and the buffer in which they came.
        start, between = 2 * outer + 2 * block, (2 + compiled) * block
        return ways, cls(outer + copies, start, 2 * block, between, 2 * block, sent, outer, narrow)
