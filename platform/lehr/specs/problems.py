"""Translate Pydantic's errors into problems of a spec: what is wrong, where, what is right."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from lehr.errors import MOST_PROBLEMS, SpecError, SpecProblem, nearest
from lehr.specs.synonyms import meant_value, nearest_path, synonym
from lehr.specs.yaml12 import INT64, MAX_DEPTH, MAX_VALUES, YamlDocument
from lehr_trainer.configs.fields import (
    FieldPath,
    description,
    field_names,
    is_model,
    join,
    leaf_paths,
    locate,
    models,
    place,
    step,
)
from lehr_trainer.errors import UnknownPreset

_NEEDED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number of 64 bits",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping of names to values",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "none_required": "null",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "at least {}"),
    "greater_than": ("gt", "greater than {}"),
    "less_than_equal": ("le", "at most {}"),
    "less_than": ("lt", "less than {}"),
    "multiple_of": ("multiple_of", "a multiple of {}"),
}
_NAME_RULE = "Letters, digits, dots, dashes and underscores; at most 100; first a letter or digit."


@dataclass
class Origin:
    """Where the values of a spec came from: a document, and the overrides laid over it."""

    document: YamlDocument
    overrides: dict[str, str] = field(default_factory=dict)
    """Dotted path -> the override as it was written."""

    def problem(
        self, path: str, message: str, hint: str | None = None, *, at_key: bool = False
    ) -> SpecProblem:
        written = self._override(path)
        if written is not None:
            source = f"override {written if len(written) <= 60 else f'{written[:57]}...'}"
            return SpecProblem(path=path, message=message, hint=hint, source=source)
        return self.document.problem(path, message, hint, at_key=at_key)

    def _override(self, path: str) -> str | None:
        for overridden, written in reversed(self.overrides.items()):
            if path == overridden or path.startswith(f"{overridden}."):
                return written
        if path and path not in self.document.values:
            for overridden, written in reversed(self.overrides.items()):
                if overridden.startswith(f"{path}."):
                    return written
        return None


def translate(error: ValidationError, root: type[BaseModel], origin: Origin) -> list[SpecProblem]:
    """Translate every problem that Pydantic found, in the file's order."""
    # Each one takes a comparison with all names of its section.
    details = error.errors(include_url=False)[:MOST_PROBLEMS]
    # `step: 5` is one mistake, not "step is not a field" and "steps is missing".
    meant: set[str] = set()
    for detail in details:
        if detail["type"] == "extra_forbidden":
            path, where = locate(root, detail["loc"])
            close = nearest(path.rpartition(".")[2], field_names(where.owners))
            if close is not None:
                meant.add(join(path.rpartition(".")[0], close))
    found: list[SpecProblem] = []
    for detail in details:
        path, where = locate(root, detail["loc"])
        if detail["type"] == "missing" and path in meant:
            continue
        found.append(_translate(detail, path, where, root, origin))
    return sorted(
        dict.fromkeys(found), key=lambda problem: (problem.line or 0, problem.column or 0)
    )


def _translate(
    detail: ErrorDetails, path: str, where: FieldPath, root: type[BaseModel], origin: Origin
) -> SpecProblem:
    kind = detail["type"]
    context: Mapping[str, Any] = detail.get("ctx", {})
    value = detail["input"]
    name = path.rpartition(".")[2]

    def problem(
        message: str, hint: str | None = None, *, at: str = path, key: bool = False
    ) -> SpecProblem:
        return origin.problem(at, message, hint, at_key=key)

    shown = show_path(path)
    about = description(where.owners, name)
    if kind == "extra_forbidden":
        return problem(f"{shown} is not a field.", _instead(path, where, root), key=True)
    if kind == "missing":
        return problem(f"{shown} is missing.", about)
    if kind == "literal_error" and detail["loc"][-1] == "[key]":
        # The annotation at this path is the value's; the message has the valid names.
        names = re.findall(r"'([^']*)'", context["expected"])
        message = f"{shown}: {name!r} is not a name here; it must be {_one_of(names)}."
        return problem(message, _meant(name, names), key=True)
    if kind == "literal_error":
        valid = [show(literal) for kind_ in where.annotations for literal in get_args(kind_)]
        return problem(
            f"{shown} is {show(value)}; it must be {_one_of(valid)}.", _meant(value, valid)
        )
    if kind in {"union_tag_invalid", "union_tag_not_found"}:
        tag = str(context["discriminator"]).strip("'")
        valid = _tags(where, tag)
        at = join(path, tag)
        if kind == "union_tag_not_found":
            return problem(f"{shown}.{tag} is missing; it must be {_one_of(valid)}.", at=at)
        given = show(value.get(tag)) if isinstance(value, dict) else show(context["tag"])
        return problem(
            f"{shown}.{tag} is {given}; it must be {_one_of(valid)}.",
            _meant(context["tag"], valid),
            at=at,
        )
    if kind in {"model_type", "model_attributes_type"}:
        return problem(
            f"{shown or 'a spec'} is {show(value)}; it must be a mapping.", _shape(value, where)
        )
    if kind in _BOUNDS:
        key, phrase = _BOUNDS[kind]
        return problem(
            f"{shown} is {show(value)}; it must be {phrase.format(_number(context[key]))}.", about
        )
    if kind in _NEEDED:
        return problem(f"{shown} is {show(value)}; it must be {_NEEDED[kind]}.", about)
    if kind == "too_short":
        least = context["min_length"]
        size = "empty" if not context["actual_length"] else f"{context['actual_length']} long"
        return problem(
            f"{shown} is {size}; give at least {least} {'value' if least == 1 else 'values'}."
        )
    if kind == "too_long":
        return problem(
            f"{shown} has {context['actual_length']} values; at most {context['max_length']}."
        )
    if kind == "string_pattern_mismatch":
        return problem(
            f"{shown} is {show(value)}; that is not a name."
            if name in {"name", "project"}
            else f"{shown} is {show(value)}; it must match {context['pattern']}.",
            _NAME_RULE if name in {"name", "project"} else about,
        )
    cause = context.get("error")
    if isinstance(cause, UnknownPreset):
        close = nearest(cause.name, cause.valid)
        hint = f"Presets: {', '.join(cause.valid)}"
        return problem(
            f"{shown}: there is no preset {show(cause.name)}.",
            f"Did you mean {close}?   {hint}" if close else hint,
        )
    message = detail["msg"].removeprefix("Value error, ")
    section, at = _named_in(message, path, root)
    place_ = f"{show_path(section)}: " if section else ""
    return problem(f"{place_}{message}{'' if message.endswith('.') else '.'}", at=at)


def the_cause(path: str, values: Iterable[str]) -> str | None:
    """Return the path of the only value that a problem at ``path`` can come from, if it is one."""
    related = [
        value
        for value in values
        if value == path or path.startswith(f"{value}.") or value.startswith(f"{path}.")
    ]
    if path in related:
        return path
    return related[0] if len(related) == 1 else None


def check_plain(data: Any, root: type[BaseModel], origin: Origin) -> list[SpecProblem]:
    """Find values that Pydantic accepts and Lehr refuses.

    These are: true as a number, numbers past 64 bits, too deep nesting, text that is not Unicode.
    """
    found: list[SpecProblem] = []
    todo: list[tuple[Any, str, tuple[Any, ...], int]] = [(data, "", (root,), 0)]
    count = 0
    while todo:
        value, path, kinds, depth = todo.pop()
        count += 1
        # Before they are looked at one by one, which takes seconds for the largest body.
        inside = len(value) if isinstance(value, dict | list | tuple) else 0
        if depth > MAX_DEPTH or count + len(todo) + inside > MAX_VALUES:
            limit = f"nested more than {MAX_DEPTH} deep" if depth > MAX_DEPTH else "too many values"
            raise SpecError([origin.problem(path, f"{show_path(path)}: {limit}.")])
        wrong = None
        if isinstance(value, bool):
            if kinds and bool not in kinds and (int in kinds or float in kinds):
                wrong = f" is {show(value)}; it must be a number."
        elif isinstance(value, int):
            if not -INT64 <= value < INT64:
                wrong = " does not fit in 64 bits."
        elif isinstance(value, str):
            if any("\ud800" <= letter <= "\udfff" for letter in value):
                wrong = " is not Unicode text."
        elif isinstance(value, dict):
            for key, item in value.items():
                if isinstance(key, str):
                    todo.append((item, join(path, key), step(kinds, key) or (), depth + 1))
                else:
                    wrong = f": the key {key!r} is not text."
        elif isinstance(value, list | tuple):
            # All items of a list have the same types.
            inner = step(kinds, "0") or ()
            todo.extend(
                (item, join(path, index), inner, depth + 1) for index, item in enumerate(value)
            )
        if wrong is not None:
            found.append(origin.problem(path, f"{show_path(path)}{wrong}"))
    return found


def show(value: Any) -> str:
    """Format a value as a person would write it, cut to a line."""
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w./-]{0,39}", value):
        return value
    try:
        text = json.dumps(value, ensure_ascii=False, default=repr)
    except (ValueError, TypeError, RecursionError):
        text = f"a {type(value).__name__}"
    text = (
        text.replace("NaN", "nan").replace("Infinity", "inf") if isinstance(value, float) else text
    )
    return text if len(text) <= 60 else f"{text[:57]}..."


def show_path(path: str) -> str:
    """Format a path: ``a.values.2`` as ``a.values[2]``."""
    return re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", path)


def _instead(path: str, where: FieldPath, root: type[BaseModel]) -> str:
    parent, _, name = path.rpartition(".")
    valid = field_names(where.owners)
    meant = nearest_path(root, name)
    if meant is None or (meant.rpartition(".")[2] != name and synonym(root, name) is None):
        # No field anywhere has this name, so look for a similar one, but only here.
        # Elsewhere only its initials count: train.learning_rate is train.optimizer.lr.
        # At the top also those of `train`, which most changes are about: stpes is train.steps.
        train = None if parent else place(root, "train")
        below = field_names(models(train.annotations)) if train else []
        close = nearest(name, [*valid, *below])
        if close in below and close not in valid:
            parent = "train"
        meant = join(parent, close) if close else _initialism(root, name)
    fields = f"Fields here: {', '.join(valid)}" if valid else "No fields are known here."
    if meant == path:
        # The field is right, but for another kind than the one that is given.
        return f"{_goes_with(path, root)}   {fields}"
    return f"Did you mean {meant}?   {fields}" if meant else fields


def _goes_with(path: str, root: type[BaseModel]) -> str:
    """Name the kinds of a section that have the field of this path."""
    parent, _, name = path.rpartition(".")
    section = place(root, parent)
    found = models(section.annotations) if section else ()
    having = tuple(kind for kind in found if name in kind.model_fields)
    tag = "kind" if all("kind" in kind.model_fields for kind in having) else "name"
    return f"{name} goes with {tag}: {', '.join(_tags(FieldPath(having, ()), tag))}."


def _initialism(root: type[BaseModel], name: str) -> str | None:
    words = [word for word in name.split("_") if word]
    short = "".join(word[0] for word in words)
    known = any(path.rpartition(".")[2] == short for path in leaf_paths(root))
    return nearest_path(root, short) if len(words) > 1 and known else None


def _shape(value: Any, where: FieldPath) -> str | None:
    for kind in where.annotations:
        if not is_model(kind):
            continue
        if list(kind.model_fields) == ["values"]:
            items = value if isinstance(value, list) else [value]
            return f"Write it as values: {show(items)}"
        if "kind" in kind.model_fields and value in get_args(kind.model_fields["kind"].annotation):
            return f"Write it as {{kind: {show(value)}}}"
    names = field_names(tuple(kind for kind in where.annotations if is_model(kind)))
    return f"Fields here: {', '.join(names)}" if names else None


def _tags(where: FieldPath, tag: str) -> list[str]:
    return list(
        dict.fromkeys(
            show(value)
            for kind in where.annotations
            if is_model(kind) and tag in kind.model_fields
            for value in get_args(kind.model_fields[tag].annotation)
        )
    )


def _named_in(message: str, path: str, root: type[BaseModel]) -> tuple[str, str]:
    """Return the section and the field that a check is about: the field begins its message.

    It is below ``path``, or beside it: the steps that follow from stages can be wrong by a stage.
    """
    first = message.split(" ", 1)[0].strip("'\":;,")
    beside = path.rpartition(".")[0]
    for section in (path, beside) if "." in first else (path,):
        if place(root, join(section, first)):
            return section, join(section, first)
    return path, path


def _one_of(valid: Sequence[str]) -> str:
    return valid[0] if len(valid) == 1 else f"one of {', '.join(valid)}"


def _meant(value: Any, valid: Sequence[str]) -> str | None:
    close = meant_value(str(value), valid) or nearest(str(value), valid)
    return f"Did you mean {close}?" if close else None


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
