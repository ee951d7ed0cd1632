"""Memory plan of a run, phase by phase, from its config alone: no torch needed.

The terms are the trainer's own tensors, counted as autograd keeps them. Against the 1.2B Llama run
of docs/reference-runs.md: weights, gradients and both moments are 19.87 GB, the measured peak of
its optimizer step; [1, 2048] in fp32 keeps 6.1 GB of activations, where 6.2 were measured.
tests/trainer/test_memory_published.py checks the plan against these measurements, and
tests/trainer/diagnostics/test_memory_trace.py against the tensors that a step makes.

The formulas of an optimizer and of a loss are methods of its config, in ``lehr_trainer.configs``;
those of a layer are in layers.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lehr_trainer.configs.loss import LossConfig
from lehr_trainer.configs.optimizer import MuonConfig
from lehr_trainer.configs.sizes import BF16, FP32, HeadSize, ParameterCounts
from lehr_trainer.configs.stages import as_built
from lehr_trainer.configs.train import GPT2Config, ModelConfig, TrainConfig
from lehr_trainer.planning import layers
from lehr_trainer.planning.counts import checkpoint_bytes, parameter_counts
from lehr_trainer.planning.layers import Kernels

PHASES = ("resting", "forward", "loss", "backward", "optimizer", "evaluation")
"""The phases of a step. Each is represented by its moment of most memory."""


@dataclass(frozen=True)
class MemoryMoment:
    """Bytes on one rank's device."""

    parameters: int
    """With the model's constant tables."""
    gradients: int
    """Of the parameters; with several ranks they are DDP's buckets."""
    optimizer: int
    """The optimizer's state."""
    activations: int
    """What the forward pass keeps for the backward pass, 16-bit copies of weights included."""
    temporaries: int
    """All else: logits, gradients on their way, what is recomputed, what an update allocates."""

    @property
    def total(self) -> int:
        return (
            self.parameters + self.gradients + self.optimizer + self.activations + self.temporaries
        )


_OVERHEAD_BYTES = 1_500_000_000
"""CUDA context, cuBLAS workspaces and fragmentation; for a GPU, not for a CPU."""


@dataclass(frozen=True)
class MemoryPlan:
    """Planned bytes on one rank's device, with micro-batches of one shape."""

    stage: str
    """Its name; empty in a run without stages."""
    shape: tuple[int, int]
    """[B, T] of a forward pass."""
    phases: dict[str, MemoryMoment]
    """The moment of most memory of each phase, without ``overhead``."""
    overhead: int
    checkpoint_copy: int
    """Bytes of host memory (and so in no phase), on each rank that saves: the copy of the state
    that asynchronous saves write from. 0 if saves block."""
    average: int
    """Bytes of host memory for ``train.average``, beside that copy."""

    @property
    def kept(self) -> int:
        """Bytes that the forward pass keeps for the backward pass."""
        return self.phases["loss"].activations

    @property
    def stages(self) -> dict[str, int]:
        """Bytes of each phase."""
        return {name: moment.total + self.overhead for name, moment in self.phases.items()}

    @property
    def on_cpu(self) -> bool:
        return self.overhead == 0

    @property
    def peak(self) -> int:
        return max(self.stages.values())


def training_memory(config: TrainConfig, world_size: int = 1) -> MemoryPlan:
    """Plan the memory of one of ``world_size`` data-parallel ranks, in its largest stage.

    With ``device: auto`` the plan is one for CUDA.
    """
    return max(memory_by_stage(config, world_size), key=lambda plan: plan.peak)


def memory_by_stage(config: TrainConfig, world_size: int = 1) -> list[MemoryPlan]:
    """Plan for each stage, and each shape of a micro-batch in it."""
    config = config.on("cpu" if config.device == "cpu" else "cuda")
    plans = []
    for span, own in as_built(config):
        share = own.batch.tokens_per_step // world_size
        # Ranks that cannot share a batch evenly get a plan too: their error names what to change.
        shapes = [
            (max(1, min(micro_batch, share // length)), length)
            for micro_batch, length in own.batch.shapes_ahead(own.steps, world_size)
        ]
        plans += [_plan(own, world_size, shape, span.name) for shape in shapes]
    return plans


def _plan(config: TrainConfig, world_size: int, shape: tuple[int, int], stage: str) -> MemoryPlan:
    model, batch = config.model, config.batch
    counts = parameter_counts(model)
    tokens = shape[0] * shape[1]
    on_cpu = config.device == "cpu"
    compute = config.precision.compute
    half = compute in {"bf16", "fp16"} or (compute == "auto" and not on_cpu)
    kernels = Kernels.of(config, half=half, length=shape[1])
    head = _head_size(model, kernels, tokens)
    ways, gathered = layers.Gathered.of(config, counts, world_size, half=half)
    casts = half and not gathered.narrow
    state = config.optimizer.state_bytes(counts) // ways
    all_gradients = FP32 * counts.total // ways
    # Buckets of DDP and CUDA graphs keep gradients between two steps, accumulation until an update.
    rests = (world_size > 1 and ways == 1) or config.compile.cuda_graphs
    holds = rests or batch.tokens_per_step // world_size > tokens

    def moment(*, gradients: int = 0, activations: int = 0, temporaries: int = 0) -> MemoryMoment:
        return MemoryMoment(
            parameters=FP32 * counts.total // ways + _buffer_bytes(model),
            gradients=all_gradients if holds else gradients,
            optimizer=state,
            activations=activations,
            temporaries=temporaries,
        )

    copies = weight_copies(config, counts, half=casts)
    layer = _LayerMemory.of(config, kernels)
    kept = copies + tokens * layer.kept + gathered.kept + _window_bytes(config, kernels, shape[1])
    passing = casts * _passing_copies(kernels, counts) - (0 if kernels.compiled else copies)
    # The head's gradient is a table of its own; a tied one waits for that of the embedding, with
    # which it is one weight.
    table, tied = FP32 * model.vocab_size * model.hidden_size, counts.head == 0
    embedding_table = FP32 * counts.embedding
    waiting, of_head = (table, 0) if tied else (0, table)
    of_layers = FP32 * counts.total - embedding_table - of_head
    of_block = of_layers // model.num_hidden_layers
    if ways > 1:  # Whole gradients are those of one group at a time, and what is sent of them.
        waiting, of_head, of_layers = table, 0, of_layers // ways
    stream = tokens * FP32 * model.hidden_size
    forward = [
        moment(temporaries=gathered.at_the_start),
        moment(activations=kept, temporaries=gathered.between),
        moment(
            activations=kept, temporaries=passing + tokens * layer.forward + gathered.in_forward
        ),
    ]
    # In between, gradients of weights come and activations go, so the most is at one end.
    weights = FP32 * tokens if config.masks_tokens else 0
    backward = [
        moment(activations=kept, temporaries=config.loss.backward_bytes(head) + weights),
        moment(
            gradients=of_head, activations=kept, temporaries=waiting + tokens * layer.final_norm
        ),
        moment(
            gradients=of_head,
            activations=kept,
            temporaries=waiting + tokens * layer.last + gathered.in_last,
        ),
        moment(
            gradients=of_head + of_layers - of_block // ways,
            temporaries=waiting + tokens * layer.first + gathered.in_others + gathered.kept,
        ),
        moment(
            gradients=of_head + of_layers,
            temporaries=waiting + embedding_table + stream + gathered.at_the_end,
        ),
    ]
    if ways > 1:
        every = (
            BF16 * counts.layers if casts and not config.precision.fp8.torchao_recipe else copies
        )
        again = (every - copies) // model.num_hidden_layers  # Of a recomputed block's weights.
        at_work = tokens * (layer.first - layer.of_a_layer) + gathered.in_others + again
        backward.append(
            moment(
                gradients=of_block // ways,
                activations=kept - tokens * layer.of_a_layer,
                temporaries=waiting + at_work,
            )
        )
    resting = replace(moment(), gradients=all_gradients if rests else 0)
    if ways > 1 and isinstance(config.optimizer, MuonConfig):
        update = config.optimizer.sharded_workspace_bytes(counts, ways)
    else:
        update = config.optimizer.update_workspace_bytes(counts, ranks=world_size, on_cpu=on_cpu)
        update //= ways
    evaluation = _evaluation_bytes(config, world_size, counts, kernels, casts=casts)
    average = 0
    if config.average is not None:
        average = config.average.host_bytes(counts.total, on_cpu=on_cpu) // ways
        evaluation += FP32 * counts.total // ways  # The weights, while the average has their place.
    return MemoryPlan(
        stage=stage,
        shape=shape,
        phases={
            "resting": resting,
            "forward": max(forward, key=lambda each: each.total),
            "loss": moment(activations=kept, temporaries=config.loss.forward_bytes(head) + weights),
            "backward": max(backward, key=lambda each: each.total),
            "optimizer": moment(gradients=all_gradients, temporaries=update),
            "evaluation": replace(resting, temporaries=evaluation),
        },
        overhead=0 if on_cpu else _OVERHEAD_BYTES,
        checkpoint_copy=(
            checkpoint_bytes(config, counts) // ways if config.checkpoint.asynchronous else 0
        ),
        average=average,
    )


@dataclass(frozen=True)
class _LayerMemory:
    """Bytes for a token in a micro-batch, over all layers; less what is freed by then."""

    kept: int
    """What all layers keep for the backward pass."""
    forward: int
    """What the forward pass allocates beyond what it keeps, at its moment of most memory."""
    final_norm: int
    """Gradients of the last norm."""
    last: int
    """What the last layer recomputes and its gradients."""
    first: int
    """The same of the first layer, and what it kept."""
    of_a_layer: int
    """What the first layer keeps."""

    @classmethod
    def of(cls, config: TrainConfig, kernels: Kernels) -> _LayerMemory:
        model, recompute = config.model, config.activation_checkpointing
        layer = layers.layer_bytes(model, kernels)
        recomputing = layers.recomputing_layers(config)
        dropped = layer.dropped(recompute.policy) if recomputing else 0
        again = layer.recomputed_for_mlp(recompute.policy) if recomputing else 0
        last_recomputes = (model.num_hidden_layers - 1) % recompute.every == 0
        final = layers.final_bytes(model, kernels)
        of_first, of_last = (
            layers.mlp_gradient_bytes(model, kernels, again=again > 0 and recomputes)
            for recomputes in (True, last_recomputes)
        )
        in_last = layers.fp8_cast_bytes(model, kernels)
        if last_recomputes:
            in_last = max(in_last, layers.forward_bytes(model, kernels, recompute.policy))
        # Once more beside those that are kept, in the last layer that computes attention.
        scores = FP32 * model.num_attention_heads * kernels.scores
        # The last norm's result, before it is rounded.
        rounds = kernels.half and layers.hidden_width(model, kernels) == BF16
        hidden = FP32 * model.hidden_size
        outside = layers.outer_bytes(model, kernels) + final
        gradients = of_last + (again if last_recomputes else 0) - final
        of_scores = layers.score_gradients(kernels) * scores + hidden - layer.mlp - final
        return cls(
            kept=model.num_hidden_layers * layer.all + outside - recomputing * dropped,
            forward=max(0, in_last - final, hidden if rounds else 0, scores - layer.mlp - final),
            final_norm=layers.final_norm_bytes(model, kernels) - (final - hidden),
            last=max(gradients, of_scores),
            first=of_first + layer.all - dropped + again,
            of_a_layer=layer.all - dropped,
        )


def _window_bytes(config: TrainConfig, kernels: Kernels, length: int) -> int:
    """Count the dense masks of layers with a window, one for all sequences; documents have theirs.

    FlexAttention's blocks are small.
    """
    dense = kernels.on_cpu or config.attention.chosen.dense_mask
    if (
        kernels.mask
        or not dense
        or config.activation_checkpointing.policy in {"attention", "block"}
    ):
        return 0
    windows = sum(1 for window in config.model.windows if window and window < length)
    return windows * kernels.width * length**2


def _head_size(model: ModelConfig, kernels: Kernels, tokens: int) -> HeadSize:
    return HeadSize(
        tokens=tokens,
        hidden=model.hidden_size,
        vocabulary=model.vocab_size,
        half=kernels.half,
        on_cpu=kernels.on_cpu,
        width=layers.hidden_width(model, kernels),
        capped=model.logit_softcap is not None,
    )


def weight_copies(config: TrainConfig, counts: ParameterCounts, *, half: bool) -> int:
    """Count the 16-bit copies of the linears' weights that live until backward.

    Those of a recomputed part are made again in backward. Compiled code keeps them like eager
    code: inductor saves what feeds a matrix product. torchao's FP8 keeps the weights themselves.
    """
    if not half or config.precision.fp8.torchao_recipe:
        return 0
    share = layers.recomputing_layers(config) / config.model.num_hidden_layers
    again = {"attention": counts.attention, "swiglu": counts.mlp, "block": counts.layers}
    return round(
        BF16 * (counts.layers - share * again.get(config.activation_checkpointing.policy, 0))
    )


def _passing_copies(kernels: Kernels, counts: ParameterCounts) -> int:
    """Count the weights' 16-bit copies at the end of a forward pass, also those not kept.

    Autocast has a copy of each; a compiled block makes one when it is needed.
    """
    if not kernels.half or kernels.fp8:
        return 0
    return BF16 * (counts.largest_matrix if kernels.compiled else counts.layers)


def _buffer_bytes(model: ModelConfig) -> int:
    """Count the tables of cosines and sines."""
    if isinstance(model, GPT2Config):
        return 0
    return 2 * FP32 * model.max_sequence_length * model.head_size


def _evaluation_bytes(
    config: TrainConfig, world_size: int, counts: ParameterCounts, kernels: Kernels, *, casts: bool
) -> int:
    """Count a held-out batch: its last layer beside all 16-bit weights, or its chunked loss.

    It is never computed in FP8. A sharded model may need most before its first block.
    """
    batch, model = config.batch, config.model
    share = max(1, batch.sequences // world_size)
    sequences = config.validation.micro_batch or batch.micro_batch or share
    tokens = sequences * batch.sequence_length
    kernels, half = replace(kernels, fp8=""), kernels.half
    _, gathered = layers.Gathered.of(config, counts, world_size, half=half, trains=False)
    copies = casts * _passing_copies(kernels, counts)
    # A layer that keeps nothing, as if it were to be recomputed.
    in_model = (
        gathered.between
        + copies
        + tokens * (FP32 * model.hidden_size + layers.forward_bytes(model, kernels, "block"))
    )
    head = _head_size(model, kernels, tokens)
    hidden = head.width * tokens * model.hidden_size
    batch_bytes = max(in_model, hidden + LossConfig().no_grad_bytes(head))
    return max(gathered.at_the_start, gathered.kept + batch_bytes)


def not_counted(config: TrainConfig) -> list[str]:
    """List what the formulas leave out for this config; each text begins with its field.

    With ``device: auto`` the plan is one for CUDA.
    """
    config = config.on("cpu" if config.device == "cpu" else "cuda")
    found = []
    if config.compile.scope == "model":
        found.append(
            "compile.scope: model is planned as if each block were compiled by itself; in traces "
            "of small models the peak was within 3 %, and a phase took up to 3 % less or 12 % "
            "more. --trace shows this model's own"
        )
    if config.compile.cuda_graphs and config.device != "cpu":
        found.append(
            f"compile.mode: {config.compile.mode} keeps the memory of its CUDA graphs between "
            "steps, where the loss and the update cannot use it; a published run reserved 5.7 GB "
            "more than its allocated peak"
        )
    if config.precision.fp8.recipe == "te_delayed":
        found.append(
            "precision.fp8.recipe: te_delayed is planned as bf16; Transformer Engine's FP8 copies "
            "of weights and inputs, and its histories, cannot be traced and are not known"
        )
    return found
