"""docs/specs.md: every field of a run's, sweep's and rollout's file, from their classes."""

from __future__ import annotations

import re
import typing
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from lehr.specs import RolloutSpec, RunSpec, SweepSpec
from lehr.specs.rollout import CpuStage, LastStage, Stage, Stages, TwoGpuStage
from lehr_trainer.configs.base import field_text
from lehr_trainer.configs.fields import alternatives, is_model, models
from lehr_trainer.configs.presets import MODEL_PRESETS

_UNITS = {
    # Keyed by the end of the path; the first match is used.
    "batch.sequences": "sequences a step",
    "batch.micro_batch": "sequences a pass",
    "validation.micro_batch": "sequences a pass",
    "sequence_length": "tokens",
    "max_tokens": "tokens",
    "train.tokens": "tokens",
    "validation.tokens": "tokens",
    "sample.tokens": "tokens",
    "max_sequence_length": "tokens",
    "original_max_sequence_length": "tokens",
    "vocab_size": "tokens",
    "hidden_size": "features",
    "intermediate_size": "features",
    "checkpoint.every": "steps",
    "validation.every": "steps",
    "sample.every": "steps",
    "log_every": "steps",
    "parts_every": "steps",
    "quality_every": "steps",
    "keep_every": "steps",
    "keep_last": "checkpoints",
    "activation_checkpointing.every": "layers",
    "train.steps": "steps",
    "min_steps": "steps",
    "warmup_steps": "steps",
    "decay_steps": "steps",
    "starts_after": "steps",
    "growth_interval": "steps",
    "skip_step.window": "steps",
    "exact_resume.steps": "steps",
    "cpu.steps": "steps",
    "one_gpu.steps": "steps",
    "two_gpus.steps": "steps",
    "judge_after": "steps",
    "first_loss.within": "nats",
    "falling_loss.by": "share",
    "memory.of_card": "share",
    "memory.over_plan": "share",
    "mfu.at_least": "share",
    "at_most_gb": "GB",
    "stages.after": "share of steps",
    "profile.wait": "steps",
    "profile.warmup": "steps",
    "profile.active": "steps",
    "newton_schulz_steps": "iterations",
    "qkv_heads": "heads",
    "sigmas": "standard deviations",
    "temperature": "",
    "grad_clip": "gradient norm",
    "prefetch": "batches",
    "workers": "threads",
    "threads": "threads",
    "gpus": "GPUs",
    "nodes": "nodes",
    "retries.user": "attempts",
    "retries.infrastructure": "attempts",
    "retries.preemption": "attempts",
    "trials": "points",
    "startup_trials": "trials",
    "max_concurrent": "runs",
    "max_failed": "trials",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "num_key_value_heads": "heads",
    "optimizer.lr": "a step",
    "embedding_lr": "a step",
    "head_lr": "a step",
    "weight_decay": "a step, times LR",
}
_BY_ENDING = {"_s": "s", "_mb": "MiB", "_bytes": "bytes", "_ratio": "share", "share": "share"}


def page() -> str:
    lines = [
        "# Specs: every field",
        "",
        "Generated from the classes that read them by `python docs/generate`; do not edit.",
        "",
        "A spec is YAML, JSON or a dict: `lehr spec schema run` (`sweep`, `rollout`) prints its",
        "JSON Schema, for editors. A field that is not listed is an error that names the nearest.",
        "On the command line and in the client any field is set by its dotted path:",
        "`lehr submit run.yaml train.optimizer.lr=3e-4`. What is not given keeps its default;",
        "**required** has none. `null` means that nothing is given.",
        "",
        "What each switch of the trainer does, with its YAML: [trainer.md](trainer.md). Corpora",
        "and tokenizers: [data.md](data.md).",
        "",
        "- [A run](#a-run)",
        "- [A sweep](#a-sweep)",
        "- [A rollout](#a-rollout)",
        "- [Model presets](#model-presets)",
        "",
        "## A run",
        "",
        *_sections(RunSpec, ""),
        "## A sweep",
        "",
        "The keys are those of a W&B sweep file. `run` is a run as above; its `name` need not be",
        "given.",
        "",
        *_sections(SweepSpec, "", skip={"run"}),
        *_rollout(),
        *_presets(),
    ]
    return "\n".join(lines) + "\n"


def _rollout() -> list[str]:
    """Merge the shared fields of the first stages and of all gates, so that each is described
    once.
    """
    return [
        "## A rollout",
        "",
        "A run brought up in stages: [rollout.md](rollout.md). `run` is a run as above; its `name`",
        "need not be given. The gates of `stages.one_gpu` are those of the other stages too.",
        "",
        *_table(RolloutSpec, ""),
        "### `stages`",
        "",
        _prose(Stages.__doc__ or ""),
        "",
        *_table(Stages, "stages"),
        "### `stages.cpu`",
        "",
        *_table(CpuStage, "stages.cpu"),
        "### `stages.one_gpu`",
        "",
        *_sections(Stage, "stages.one_gpu"),
        "### `stages.two_gpus`",
        "",
        *_table(TwoGpuStage, "stages.two_gpus"),
        "### `stages.all`",
        "",
        _prose(LastStage.__doc__ or ""),
        "",
        *_table(LastStage, "stages.all"),
    ]


def _sections(
    root: type[BaseModel], path: str, skip: frozenset[str] | set[str] = frozenset()
) -> list[str]:
    """Return a table for ``root``, then one for each model under it, in the classes' order."""
    lines = _table(root, path)
    for name, field in root.model_fields.items():
        if name in skip:
            continue
        here = f"{path}.{name}" if path else name
        arms = _inner(field.annotation)
        for arm in arms:
            lines += [f"### `{_titled(here, field, arm, arms)}`", ""]
            about = _prose(arm.__doc__ or "")
            lines += [about, ""] if about else []
            lines += _sections(arm, here)
    return lines


def _inner(annotation: Any) -> list[type[BaseModel]]:
    """Return the models that a field contains: directly, in a list or in a mapping."""
    found: list[type[BaseModel]] = []
    for kind in alternatives(annotation):
        if is_model(kind):
            found.append(kind)
        elif get_origin(kind) in {list, dict}:
            for argument in get_args(kind):
                found += models(alternatives(argument))
    return found


def _titled(path: str, field: FieldInfo, arm: type[BaseModel], arms: list[type[BaseModel]]) -> str:
    kinds = {get_origin(kind) for kind in alternatives(field.annotation)}
    suffix = "[]" if list in kinds else ".<path>" if dict in kinds else ""
    tags = next(
        (
            f"{name}: {' | '.join(map(str, get_args(one.annotation)))}"
            for name in ("kind", "name")
            if len(arms) > 1
            and (one := arm.model_fields.get(name)) is not None
            and get_origin(one.annotation) is Literal
        ),
        arm.__name__.lower() if len(arms) > 1 else "",
    )
    return f"{path}{suffix}{f' ({tags})' if tags else ''}"


def _table(model: type[BaseModel], path: str) -> list[str]:
    if not model.model_fields:
        return []
    lines = ["| field | type | default | unit | meaning |", "|---|---|---|---|---|"]
    for name, field in model.model_fields.items():
        here = f"{path}.{name}" if path else name
        trials = [f"`{name}`", _type(field), _default(field), _unit(here), meaning(model, name)]
        lines.append(f"| {' | '.join(trials)} |")
    return [*lines, ""]


def meaning(model: type[BaseModel], name: str) -> str:
    """Return a field's description; for a group of fields that of its class, for a tag that of
    its tag.
    """
    field = model.model_fields[name]
    if text := field_text(model, name):
        return _trial(_prose(text))
    if get_origin(field.annotation) is Literal and name in {"kind", "name"}:
        return "Tells which of these it is."
    for kind in _inner(field.annotation):
        if kind.__doc__:
            first = re.split(r"(?<!al)[.] (?=[A-Z])", _prose(kind.__doc__))[0].rstrip(".")
            arms = len(_inner(field.annotation))
            return "One of those below, by `kind` or `name`." if arms > 1 else _trial(f"{first}.")
    if _inner(field.annotation):
        return "A group of fields, below."
    raise ValueError(f"{model.__name__}.{name} has no description")


def _unit(path: str) -> str:
    for ending, unit in _UNITS.items():
        if path == ending or path.endswith(f".{ending}"):
            return unit
    for ending, unit in _BY_ENDING.items():
        if path.endswith(ending):
            return unit
    return ""


def _type(field: FieldInfo) -> str:
    kinds = [_kind(kind) for kind in alternatives(field.annotation)]
    bounds = _bounds(field.metadata) or _bounds_within(field.annotation)
    text = " or ".join(dict.fromkeys(kinds))
    return _trial(f"{text}{f', {bounds}' if bounds else ''}")


def _kind(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kind))
    if is_model(kind):
        return "mapping"
    origin = get_origin(kind)
    if origin is list:
        inner = [_kind(one) for one in alternatives(get_args(kind)[0])]
        return f"list of {' or '.join(dict.fromkeys(inner))}"
    if origin is tuple:
        return f"list of {len(get_args(kind))} {_kind(alternatives(get_args(kind)[0])[0])}s"
    if origin is dict:
        return "mapping"
    names = {
        int: "whole number",
        float: "number",
        str: "text",
        bool: "true or false",
        Any: "any value",
    }
    return names.get(kind, getattr(kind, "__name__", str(kind)))


def _bounds(metadata: list[Any]) -> str:
    bounds = []
    for one in metadata:
        for name, words in (
            ("ge", "at least {}"),
            ("gt", "above {}"),
            ("le", "at most {}"),
            ("lt", "below {}"),
        ):
            value = getattr(one, name, None)
            if value is not None:
                bounds.append(
                    words.format(f"{value:g}" if isinstance(value, float) else f"{value:,}")
                )
    return ", ".join(bounds)


def _bounds_within(annotation: Any) -> str:
    """Return the bounds of an optional number: they are one level down in its annotation."""
    for one in get_args(annotation):
        if get_origin(one) is typing.Annotated:
            metadata: list[Any] = []
            for part in get_args(one)[1:]:
                metadata += part.metadata if isinstance(part, FieldInfo) else [part]
            return _bounds(metadata)
    return ""


def _default(field: FieldInfo) -> str:
    value = (
        field.get_default(call_default_factory=True)
        if not field.is_required()
        else PydanticUndefined
    )
    if value is PydanticUndefined:
        return "**required**"
    if value is None:
        return "null"
    if isinstance(value, BaseModel):
        return "its defaults"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int) and value >= 10_000:
        return f"`{value:,}`"
    if isinstance(value, tuple):
        return f"`[{', '.join(f'{one:g}' for one in value)}]`"
    if isinstance(value, float):
        return f"`{value:g}`"
    return f"`{value}`" if value not in ("", [], {}) else {"": '`""`'}.get(str(value), f"`{value}`")


def _presets() -> list[str]:
    lines = [
        "## Model presets",
        "",
        "`model: NAME`, or `model: {preset: NAME, ...}` to change a part.",
        "",
    ]
    lines += ["| preset | what it is |", "|---|---|"]
    lines += [f"| `{name}` | {_trial(preset.summary)} |" for name, preset in MODEL_PRESETS.items()]
    return [*lines, "", "`lehr spec presets` adds their parameter counts and FLOPs a token."]


def _prose(text: str) -> str:
    return re.sub(r"\bNone\b", "null", " ".join(text.replace("``", "`").split()))


def _trial(text: str) -> str:
    return text.replace("|", "\\|")
