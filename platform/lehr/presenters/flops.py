"""FLOPs per token of a run, so that curves can be drawn over FLOPs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter

from lehr_trainer.configs.train import ModelConfig
from lehr_trainer.planning import counts

_model: TypeAdapter[Any] = TypeAdapter(ModelConfig)


def flops_per_token(train: Mapping[str, Any]) -> float | None:
    """Return them from a run's train config; None when its sequence length changes during the
    run, or when its model is not Lehr's.
    """
    batch = train["batch"]
    if (train.get("parts") or {}).get("model"):
        return None
    if batch.get("stages"):
        return None
    return _flops(json.dumps(train["model"], sort_keys=True), batch["sequence_length"])


@lru_cache(maxsize=1024)
def _flops(model: str, sequence_length: int) -> float:
    return counts.flops_per_token(_model.validate_json(model), sequence_length)
