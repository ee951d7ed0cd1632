"""State that a checkpoint holds of a run, and its restoration.

It has model, optimizer, schedule, data, every random generator, step, best loss, config and
versions. The schedule is a function of the step; the position in the data counts tokens.
"""

from __future__ import annotations

import base64
import json
import math
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lehr_trainer.checkpointing import checkpoint, optimizer_state
from lehr_trainer.configs.optimizer import optimizer_kind
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.data.position import DataPosition
from lehr_trainer.data.token_dataset import PreparedData
from lehr_trainer.errors import BadCheckpoint
from lehr_trainer.models.fp8 import fp8_state, load_fp8_state
from lehr_trainer.runtime import sharding
from lehr_trainer.update_step import UpdateStep


@dataclass
class TrainProgress:
    """Progress of a run."""

    step: int = 0
    """Optimizer steps taken; it numbers updates, and says nothing about the data."""
    tokens: int = 0
    """Trained on, those of the runs before a fork included."""
    position: DataPosition = field(default_factory=DataPosition)
    """In the data, at the last start or save."""
    best_val_loss: float | None = None
    scores: dict[int, float] = field(default_factory=dict)
    """The last value of the task that ``checkpoint.keep_best`` names, by its step."""

    def remember_best(self, val_loss: float | None) -> None:
        """Remember the loss of an evaluation, if it is the lowest so far."""
        best = self.best_val_loss
        # A NaN would be the best for ever: no loss is lower.
        if val_loss is not None and math.isfinite(val_loss) and (best is None or val_loss < best):
            self.best_val_loss = val_loss


def describe(
    progress: TrainProgress,
    config: TrainConfig,
    data: PreparedData,
    scored: PreparedData,
    versions: dict[str, str],
    generators: list[str],
) -> dict[str, Any]:
    """Make the JSON part of a checkpoint.

    ``data`` is that of the last step, ``scored`` the data whose held-out set gives ``val/loss``;
    ``generators`` has one state for each rank.
    """
    return {
        "format": 1,
        "step": progress.step,
        "tokens": progress.tokens,
        "best_val_loss": progress.best_val_loss,
        "schedule": {**config.schedule.model_dump(), "steps_taken": progress.step},
        "data": {
            "position": progress.position.model_dump(mode="json"),
            "seed": config.seed,
            "digest": data.digest,
            "validation_digest": scored.validation_digest,
            "tokens": data.tokens,
            "validation_tokens": scored.validation_tokens,
            "tokenizer": {"vocab_size": data.vocab_size, "eos_id": data.eos_id},
        },
        "generators": [json.loads(one) for one in generators],
        "config": config.model_dump(mode="json"),
        "versions": versions,
    }


def restore(
    directory: Path,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    update_step: UpdateStep | None = None,
    rank: int,
    config: TrainConfig | None = None,
    fresh_optimizer: bool = False,
) -> tuple[TrainProgress, dict[str, Any]]:
    """Put a verified checkpoint's state into ``model``, ``optimizer`` and the generators.

    ``config`` is this run's; with ``fresh_optimizer`` the optimizer stays as it was built.

    Returns:
        How far it had come, and its JSON part.

    Raises:
        BadCheckpoint: it belongs to another model or optimizer.
    """
    manifest = checkpoint.read_manifest(directory)
    document = checkpoint.read_document(directory, "state")
    try:
        progress = TrainProgress(
            step=int(document["step"]),
            tokens=int(document["tokens"]),
            best_val_loss=document["best_val_loss"],
        )
        saved_optimizer, generators = document["optimizer"], document["generators"]
    except (KeyError, TypeError, ValueError) as error:
        raise BadCheckpoint(f"{directory}/state.json lacks a valid {error}") from error
    _load_model(directory, model, checkpoint.read_tensors(directory, manifest, "model"))
    if not fresh_optimizer:
        if config is not None:
            _require_same_optimizer(directory, document, config)
        held = checkpoint.read_tensors(directory, manifest, "optimizer")
        optimizer_state.restore(directory, model, optimizer, saved_optimizer, held)
    if "fp8.safetensors" in manifest.files:
        load_fp8_state(model, checkpoint.read_tensors(directory, manifest, "fp8"))
    if update_step is not None and "updates.safetensors" in manifest.files:
        update_step.load(checkpoint.read_tensors(directory, manifest, "updates"))
    # A rank that did not exist at the save keeps the generators made from its seed.
    if rank < len(generators):
        restore_generators(generators[rank])
    return progress, document


def _require_same_optimizer(directory: Path, document: dict[str, Any], config: TrainConfig) -> None:
    saved, own = optimizer_kind(document["config"]), optimizer_kind(config.model_dump())
    if saved != own:
        raise BadCheckpoint(
            f"{directory} holds the state of the optimizer {saved}, and this run's is {own}: fork "
            "it with optimizer_state: fresh, or keep the optimizer"
        )


def data_position(document: dict[str, Any]) -> DataPosition:
    """Return where a checkpoint lies in the data, from its JSON part.

    Raises:
        BadCheckpoint: it does not say.
    """
    try:
        return DataPosition(**document["data"]["position"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadCheckpoint(f"state.json holds no valid position in the data: {error}") from error


def all_tensors(
    model: nn.Module, optimizer: torch.optim.Optimizer, update_step: UpdateStep
) -> dict[str, dict[str, Tensor]]:
    """Collect every tensor that a rank holds for a checkpoint, by kind and name; not copied."""
    tensors = {
        "model": sharding.own_part(model, model_tensors(model)),
        "optimizer": optimizer_state.capture(model, optimizer)[1],
        "updates": update_step.state(),
    }
    fp8 = fp8_state(model)
    return {**tensors, "fp8": fp8} if fp8 else tensors


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Collect weights and buffers by name, without Transformer Engine's pickled extras."""
    return {
        name: value
        for name, value in model.state_dict().items()
        if not name.endswith("._extra_state")
    }


def _load_model(directory: Path, model: nn.Module, saved: checkpoint.SavedTensors) -> None:
    state = model_tensors(model)
    _require_same_names(directory, "model", set(state), set(saved))
    shards = sharding.shards_of(model)
    rows = {} if shards is None else shards.rows
    for name, own in sharding.own_part(model, state).items():
        if tuple(state[name].shape) != saved.shape(name):
            raise BadCheckpoint(
                f"{directory} belongs to another model: its {name} has shape "
                f"{saved.shape(name)}, this model's has {tuple(state[name].shape)}"
            )
        own.detach().copy_(saved.rows(name, rows.get(name)))


def _require_same_names(directory: Path, kind: str, own: set[str], saved: set[str]) -> None:
    if own == saved:
        return
    missing, unknown = sorted(own - saved), sorted(saved - own)
    raise BadCheckpoint(
        f"{directory} does not fit this run's {kind}: "
        f"missing tensors: {_some(missing)}; unexpected: {_some(unknown)}"
    )


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3]) or "nothing"
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown


# --- random generators ---------------------------------------------------------------------


def save_generators() -> str:
    """Save every random generator of this process, as JSON."""
    version, numbers, gauss = random.getstate()
    legacy: Any = np.random.get_state()  # noqa: NPY002 - a checkpoint keeps numpy's global generator
    kind, keys, position, has_gauss, cached = legacy
    # This rank's device only: reading the others would open a context on each of them.
    cuda = [torch.cuda.get_rng_state()] if torch.cuda.is_available() else []
    return json.dumps(
        {
            "python": [version, list(numbers), gauss],
            "numpy": [kind, keys.tolist(), position, has_gauss, cached],
            "torch": _to_text(torch.get_rng_state()),
            "cuda": [_to_text(state) for state in cuda],
        }
    )


def restore_generators(saved: dict[str, Any]) -> None:
    version, numbers, gauss = saved["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, position, has_gauss, cached = saved["numpy"]
    np.random.set_state(  # noqa: NPY002 - the generator that get_state reads
        (kind, np.asarray(keys, dtype=np.uint32), position, has_gauss, cached)
    )
    torch.set_rng_state(_from_text(saved["torch"]))
    if torch.cuda.is_available() and saved["cuda"]:
        torch.cuda.set_rng_state(_from_text(saved["cuda"][0]))


def _to_text(state: Tensor) -> str:
    return base64.b64encode(state.cpu().numpy().tobytes()).decode()


def _from_text(text: str) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
