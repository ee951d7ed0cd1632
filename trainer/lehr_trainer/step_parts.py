"""The parts of a step, built from a config: the same for a run, a benchmark and a memory trace."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.losses.variants import Loss, build_loss
from lehr_trainer.models import build_model_of
from lehr_trainer.models.activation_checkpointing import recompute_activations
from lehr_trainer.models.module_map import Decoder
from lehr_trainer.optim import build_optimizer
from lehr_trainer.parts import replaced_loss, replaced_optimizer
from lehr_trainer.runtime.compiling import Accumulation, compile_model
from lehr_trainer.runtime.distributed import Ranks
from lehr_trainer.runtime.precision import Precision
from lehr_trainer.update_step import UpdateStep


@dataclass(frozen=True)
class StepParts:
    model: Decoder
    optimizer: torch.optim.Optimizer
    update_step: UpdateStep
    loss: Loss


def build_parts(config: TrainConfig, ranks: Ranks, precision: Precision) -> StepParts:
    """Build the parts that a checkpoint is restored into. ``config`` is resolved for the device.

    Raises:
        BadConfig: this machine cannot run one of them.
    """
    model = build_model_of(config, device=ranks.device)
    return StepParts(
        model=model,
        optimizer=_optimizer(model, config),
        update_step=UpdateStep(
            ranks.device,
            loss_scale=config.precision.loss_scale if precision.scales_loss else None,
            skip_step=config.skip_step,
        ),
        loss=_loss(config, precision, ranks.device),
    )


def _optimizer(model: Decoder, config: TrainConfig) -> torch.optim.Optimizer:
    if config.parts is None or config.parts.optimizer is None:
        return build_optimizer(model, config.optimizer)
    return replaced_optimizer(config.parts.optimizer, model, config.optimizer)


def _loss(config: TrainConfig, precision: Precision, device: torch.device) -> Loss:
    if config.parts is None or config.parts.loss is None:
        return build_loss(config.loss, precision.operands, device)
    return replaced_loss(config.parts.loss)


def accumulates(config: TrainConfig, ranks: Ranks) -> bool:
    """Return whether a step has several micro-batches on each rank."""
    return config.batch.most_micro_steps(config.steps, ranks.world_size) > 1


def prepare_model(model: Decoder, config: TrainConfig, ranks: Ranks) -> Accumulation:
    """Make the model recompute and compile as in the config, in place, before DDP wraps it.

    The order matters: layers are converted, then checkpointed, then compiled. DDP comes last: it
    must wrap the weights on which all ranks agree.
    """
    recompute_activations(model, config.activation_checkpointing)
    compile_model(model, config.compile)
    in_buckets = ranks.world_size > 1 and accumulates(config, ranks)
    return Accumulation(model, config.compile, in_buckets=in_buckets)
