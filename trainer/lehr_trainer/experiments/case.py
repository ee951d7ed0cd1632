"""Plain data of what one process measures: a row of a table before it has figures."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.experiments.sizes import Size

Batches = Literal["random", "naive_memmap", "naive_preload", "stack", "loader"]
"""Source of a training's batches: drawn on the device, or a way of batch_makers.py."""
CaseKind = Literal["training", "loss", "batches", "parts"]


@dataclass(frozen=True)
class Case:
    name: str
    kind: CaseKind
    config: dict[str, Any]
    """A whole ``TrainConfig`` as JSON."""
    batches: Batches = "random"
    extra: dict[str, Any] = field(default_factory=dict)
    """Further settings for this kind of worker."""
    note: str = ""
    slow: bool = False
    """Take a single step, in the first turn only: it is emulated here, at seconds a step."""
    ranks: int = 1
    """On how many GPUs, or gloo processes of a CPU, it trains; its batch is shared among them."""
    skip: str = ""
    """Reason why it cannot be measured here; then no process is started."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def config(size: Size, device: str, **changes: Any) -> dict[str, Any]:
    """Make the config of a training of that size, with no technique but those in ``changes``.

    Raises:
        pydantic.ValidationError: they do not go together.
    """
    values: dict[str, Any] = {
        "model": size.model,
        "data": {
            "corpus": {"kind": "stdlib"},
            "tokenizer": "byte",
            "max_tokens": 2_000_000,
            "workers": 1,
        },
        "batch": {"sequences": size.sequences, "sequence_length": size.sequence_length},
        "steps": 1_000_000,
        "validation": {"tokens": 4096, "every": 0},
        "schedule": {"name": "constant", "warmup_steps": 0},
        "precision": {"compute": "fp32", "tf32": False},
        "compile": {"scope": "none"},
        "device": device,
    }
    for key, change in changes.items():
        before = values.get(key)
        both = isinstance(change, dict) and isinstance(before, dict) and key != "model"
        values[key] = {**before, **change} if both else change  # type: ignore[dict-item]
    return TrainConfig.model_validate(values).model_dump(mode="json")
