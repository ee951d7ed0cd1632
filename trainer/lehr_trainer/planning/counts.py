"""Counts from a config alone: parameters, FLOPs, checkpoints, the first loss. No torch needed."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import lcm

from lehr_trainer.configs.shapes import head_std, output_multiplier
from lehr_trainer.configs.sizes import BF16, FP32, ParameterCounts
from lehr_trainer.configs.stages import CourseStage
from lehr_trainer.configs.train import GPT2Config, LlamaConfig, ModelConfig, TrainConfig


def parameter_counts(model: ModelConfig) -> ParameterCounts:
    counts = _gpt2_counts(model) if isinstance(model, GPT2Config) else _llama_counts(model)
    if model.stable_embedding:  # its LayerNorm
        counts = replace(counts, norms=counts.norms + 2 * model.hidden_size)
    return counts


def _gpt2_counts(model: GPT2Config) -> ParameterCounts:
    d, f, layers = model.hidden_size, model.mlp_size, model.num_hidden_layers
    return ParameterCounts(
        embedding=(model.vocab_size + model.max_sequence_length) * d,
        head=0 if model.tie_embeddings else model.vocab_size * d,
        attention=layers * (4 * d * d + 4 * d),
        mlp=layers * (2 * d * f + f + d),
        norms=(2 * layers + 1) * 2 * d,
        matrices=_by_shape([(d, d)] * 4 + [(f, d), (d, f)], layers),
    )


def _llama_counts(model: LlamaConfig) -> ParameterCounts:
    hidden, layers = model.hidden_size, model.num_hidden_layers
    # Each key-value head has the size of a query head, however many query heads share it.
    kv_heads, heads = model.num_key_value_heads, model.num_attention_heads
    q_size, kv_size = heads * model.head_size, kv_heads * model.head_size
    attention = 2 * hidden * (q_size + kv_size)
    if model.attention_bias:
        attention += q_size + hidden + 2 * kv_size
    wide = 2 if model.mlp == "swiglu" else 1
    mlp = (wide + 1) * hidden * model.mlp_size
    if model.mlp_bias:
        mlp += wide * model.mlp_size + hidden
    of_queries_and_keys = {"none": 0, "head": 2 * model.head_size, "whole": q_size + kv_size}
    return ParameterCounts(
        embedding=model.vocab_size * hidden,
        head=0 if model.tie_embeddings else model.vocab_size * hidden,
        attention=layers * attention,
        mlp=layers * mlp,
        norms=(block_norms(model) * layers + 1) * hidden
        + layers * of_queries_and_keys[model.qk_norm],
        matrices=_by_shape(
            [(q_size, hidden), (hidden, q_size)]
            + [(kv_size, hidden)] * 2
            + [(model.mlp_size, hidden)] * wide
            + [(hidden, model.mlp_size)],
            layers,
        ),
    )


def block_norms(model: ModelConfig) -> int:
    """Return the number of norms of a block over the whole width."""
    return 4 if model.norm == "peri" else 2


def _by_shape(of_a_layer: list[tuple[int, int]], layers: int) -> tuple[tuple[int, int, int], ...]:
    return tuple((*shape, layers * of_a_layer.count(shape)) for shape in dict.fromkeys(of_a_layer))


def flops_per_token(model: ModelConfig, sequence_length: int) -> float:
    """Count the FLOPs to train on one token: forward and backward, with full attention.

    6 for each weight that a token is multiplied with (2 forward, 4 backward), the head included,
    the embedding look-up not; 12 x heads x head size x length for the scores and the weighted sums
    of a layer, where a window in the place of a longer length counts. Full attention is the
    convention of PaLM's MFU, although a causal kernel does half of it. Recomputed activations do
    not count.
    """
    counts = parameter_counts(model)
    multiplied = counts.non_embedding + model.vocab_size * model.hidden_size
    seen = sum(min(window or sequence_length, sequence_length) for window in model.windows)
    attention = 12 * model.num_attention_heads * model.head_size * seen
    return float(6 * multiplied + attention)


EMBEDDING_STD = 0.02
"""Standard deviation of the initial embeddings."""


def predicted_first_loss(model: ModelConfig) -> float:
    """Estimate the mean cross entropy in nats of freshly initialised weights, on any text.

    The last norm leaves a vector of root mean square 1, so logits are normal with variance
    ``hidden_size * std^2`` of the head's weights (under muP times (base / width)^2, and a tied
    head has the first weights of an untied one); for such
    logits the expected cross entropy is ln(vocabulary) + variance / 2. The 1.2B Llama run of
    docs/reference-runs.md started at 12.26; this gives 12.19, and ln(V) alone 11.78. A tied
    ``stable_embedding`` over a few hundred tokens starts up to 0.4 higher: the current token has a
    large logit of its own, which matters only in a small vocabulary.
    """
    std: float
    if not model.tie_embeddings or model.parametrization == "mup":
        std = head_std(model)
    elif model.stable_embedding:  # Xavier's
        std = math.sqrt(2 / (model.vocab_size + model.hidden_size))
    else:
        std = EMBEDDING_STD
    std *= output_multiplier(model)
    variance = model.hidden_size * std**2
    if cap := model.logit_softcap:  # The mean of exp(logit) over a normal distribution, in numbers.
        points = [(step + 0.5) / 50 for step in range(-300, 300)]
        weights = [math.exp(-point * point / 2) for point in points]
        capped = (cap * math.tanh(math.sqrt(variance) * point / cap) for point in points)
        mean = sum(w * math.exp(c) for w, c in zip(weights, capped, strict=True)) / sum(weights)
        return math.log(model.vocab_size) + math.log(mean)
    return math.log(model.vocab_size) + variance / 2


@dataclass(frozen=True)
class CheckpointPlan:
    size_bytes: int
    """Of one: the weights in fp32, the optimizer's state and averages. Its JSON is small."""
    saves: int
    """At the interval and after each stage; orders and stops save more."""
    kept: int
    """Of these, after the run's end; until an old one is removed there is one more."""
    keeps_best: bool
    """One before the last is at an evaluated step, so it can be kept as the best."""


def checkpoint_bytes(config: TrainConfig, counts: ParameterCounts) -> int:
    averages = 0 if config.average is None else config.average.checkpoint_bytes(counts.total)
    return FP32 * counts.total + config.optimizer.state_bytes(counts) + averages


def checkpoint_plan(config: TrainConfig) -> CheckpointPlan:
    """Plan the checkpoints of a run; the best is assumed to be an early one.

    They are counted, not listed: there may be millions.
    """
    policy, steps, every = config.checkpoint, config.steps, config.checkpoint.every
    stages = config.course
    ends = [span.last for span, _ in stages[:-1]]

    def saved(step: int) -> int:
        between = sum(end <= step and (not every or end % every > 0) for end in ends)
        return between + (step // every if every else 0)

    saves = saved(steps) + (policy.save_last and (not every or steps % every > 0))
    # The newest that is not kept for its age.
    old = saves - policy.keep_last
    oldest = bisect_left(range(steps + 1), old, key=saved) if old > 0 else 0
    regular = lcm(every, policy.keep_every)
    by_rule = oldest // regular if regular else 0
    by_rule += sum(end <= oldest and (not regular or end % regular > 0) for end in ends)
    best = _first_saved_when_evaluated(stages, every) if policy.keep_best else 0
    is_kept_by_rule = best in ends or (policy.keep_every > 0 and best % policy.keep_every == 0)
    counts = parameter_counts(config.model)
    return CheckpointPlan(
        size_bytes=checkpoint_bytes(config, counts),
        saves=saves,
        kept=min(saves, policy.keep_last) + by_rule + (0 < best <= oldest and not is_kept_by_rule),
        keeps_best=bool(policy.keep_best)
        and any(0 < saved(step) < saves for step in (best, *ends)),
    )


def _judged_every(config: TrainConfig) -> int:
    """Return after how many steps there is a value by which ``keep_best`` chooses; 0 for none."""
    metric = config.checkpoint.keep_best
    if not isinstance(metric, str):
        return config.validation.every
    named = [task for task in config.evals if metric.startswith(f"task/{task.name}/")]
    return lcm(*(task.every for task in named or config.evals))


def _first_saved_when_evaluated(stages: Sequence[CourseStage], every: int) -> int:
    """Return the first step of the interval that is evaluated; 0 if none is."""
    for span, config in stages:
        both = lcm(every, _judged_every(config))
        step = both * (span.first // both + 1) if both else 0
        if 0 < step <= span.last:
            return step
    return 0


def bytes_between_nodes(config: TrainConfig, *, nodes: int, ranks: int) -> int:
    """Count the bytes that each node sends to the others in a step, at the least: its ranks first
    add up, and share what they get. ``ranks``: of all nodes.
    """
    counts, shard = parameter_counts(config.model), config.parallel.shard
    gradients = (FP32 if config.parallel.compression == "none" else BF16) * counts.total
    compute = config.precision.compute
    half = compute in {"bf16", "fp16"} or (compute == "auto" and config.device != "cpu")
    layers = config.gathered_width(half=half) * counts.layers
    weights = layers + FP32 * (counts.total - counts.layers)
    share = max(1, config.batch.sequences // ranks)
    micro_steps = -(-share // (config.batch.micro_batch or share))
    sent = 2 * gradients  # One sum over nodes, there and back.
    if shard == "optimizer":
        sent = weights + micro_steps * gradients
    elif shard == "all":  # Blocks are gathered for the forward and for the backward pass.
        sent = micro_steps * (weights + layers + gradients)
    return round(sent * (nodes - 1) / nodes)
