"""JSON Schema of spec files, for editors."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from lehr.specs.rollout import RolloutSpec
from lehr.specs.run import RunSpec
from lehr.specs.sweep import SweepSpec
from lehr_trainer.configs.base import Config
from lehr_trainer.configs.fields import leaf_paths
from lehr_trainer.configs.presets import MODEL_PRESETS

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


_WITH_SECTIONS = ("TrainConfig", "PrecisionConfig")
_MODELS: dict[str, type[BaseModel]] = {"run": RunSpec, "sweep": SweepSpec, "rollout": RolloutSpec}


def json_schema(kind: Literal["run", "sweep", "rollout"]) -> dict[str, Any]:
    """Return the schema of a kind of file, with descriptions, presets and the paths that vary."""
    schema = _MODELS[kind].model_json_schema(mode="validation")
    definitions = schema["$defs"]
    _allow_presets(definitions)
    _allow_shorthands(definitions)
    if kind != "run":
        # The run is named after its sweep or rollout.
        run = definitions["RunSpec"]
        run["required"] = [name for name in run["required"] if name != "name"]
    if kind == "sweep":
        _name_swept_paths(schema, definitions)
    if kind == "rollout":
        _name_set_paths(definitions)
    return {
        "$schema": _DIALECT,
        "title": f"Lehr {kind}",
        **{key: value for key, value in schema.items() if key != "title"},
    }


def _allow_presets(definitions: dict[str, Any]) -> None:
    """Allow a preset's name, a preset with changes, or a complete model config."""
    model = definitions["TrainConfig"]["properties"]["model"]
    about = model.pop("description", "")
    shape = dict(model)
    model.clear()
    name = {
        "enum": sorted(MODEL_PRESETS),
        "description": "; ".join(f"{key}: {MODEL_PRESETS[key].summary}" for key in MODEL_PRESETS),
    }
    changed = {
        "type": "object",
        "description": "A preset with changes.",
        "properties": {
            "preset": name,
            **{
                field: value
                for definition in definitions.values()
                if "num_hidden_layers" in definition.get("properties", {})
                for field, value in definition["properties"].items()
            },
        },
        "required": ["preset"],
        "additionalProperties": False,
    }
    model.update({"description": about, "anyOf": [name, changed, shape]})


def _allow_shorthands(definitions: dict[str, Any]) -> None:
    """Allow a plain value where a section declares what it means, and an optimizer's name."""
    sections = {f"#/$defs/{one.__name__}": one for one in Config.__subclasses__() if one.shorthand}
    train, precision = (definitions[name]["properties"] for name in _WITH_SECTIONS)
    for field in [*train.values(), *precision.values()]:
        section = sections.get(field.get("$ref"))
        if section is not None:
            inner = definitions[section.__name__]["properties"][section.shorthand]
            plain = [*inner["enum"], *([True, False] if section.switch else [])]
            field["anyOf"] = [{"enum": plain}, {"$ref": field.pop("$ref")}]
    names = list(train["optimizer"]["discriminator"]["mapping"])
    train["optimizer"]["anyOf"] = [{"enum": names}, {"oneOf": train["optimizer"].pop("oneOf")}]


def _name_swept_paths(schema: dict[str, Any], definitions: dict[str, Any]) -> None:
    definitions["Parameter"] = {
        "anyOf": [
            {"$ref": "#/$defs/Values"},
            {"$ref": "#/$defs/Range"},
            {
                "type": "object",
                "description": "A constant.",
                "properties": {"value": {}},
                "required": ["value"],
                "additionalProperties": False,
            },
        ]
    }
    parameters = schema["properties"]["parameters"]
    parameters["properties"] = {path: {"$ref": "#/$defs/Parameter"} for path in _varied_paths()}
    parameters["additionalProperties"] = {"type": "object"}


def _name_set_paths(definitions: dict[str, Any]) -> None:
    for definition in definitions.values():
        values = definition.get("properties", {}).get("set")
        if values is not None:
            values["properties"] = {path: {} for path in _varied_paths()}


def _varied_paths() -> list[str]:
    return [p for p in leaf_paths(RunSpec) if p.startswith(("train.", "resources.", "retries."))]
