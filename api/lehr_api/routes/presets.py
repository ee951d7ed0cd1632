"""The model presets and the config's defaults."""

from __future__ import annotations

from functools import cache
from typing import Any

from fastapi import APIRouter
from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

from lehr_api.problems import problem_responses
from lehr_api.tagged_route import TaggedRoute
from lehr_trainer.configs.documented import Documented
from lehr_trainer.configs.presets import MODEL_PRESETS
from lehr_trainer.configs.train import TrainConfig

router = APIRouter(tags=["specs"], route_class=TaggedRoute)


class Presets(Documented):
    """The defaults of a training config."""

    models: dict[str, dict[str, Any]]
    """By name: every field of the model."""
    summaries: dict[str, str]
    defaults: dict[str, Any]
    """Of the fields of ``train`` that have one."""


@router.get("/presets", responses=problem_responses())
def presets() -> Presets:
    return _presets()


@cache
def _presets() -> Presets:
    fields = TrainConfig.model_fields
    shape = _adapter(fields["model"])
    models = {
        name: shape.validate_python(preset.values).model_dump(mode="json")
        for name, preset in MODEL_PRESETS.items()
    }
    defaults = {
        name: _adapter(field).dump_python(
            field.get_default(call_default_factory=True, validated_data={}), mode="json"
        )
        for name, field in fields.items()
        if not field.is_required()
    }
    summaries = {name: preset.summary for name, preset in MODEL_PRESETS.items()}
    return Presets(models=models, summaries=summaries, defaults=defaults)


def _adapter(field: FieldInfo) -> TypeAdapter[Any]:
    kind: Any = field.annotation
    return TypeAdapter(kind)
