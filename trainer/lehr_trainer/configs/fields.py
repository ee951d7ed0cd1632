"""What may stand where in a config: its dotted paths, read off the Pydantic classes."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from lehr_trainer.configs.base import field_text


@dataclass(frozen=True)
class FieldPath:
    """Where a path leads: the types that may stand there and the models that own its last name."""

    annotations: tuple[Any, ...]
    owners: tuple[type[BaseModel], ...]


def join(path: str, key: str | int) -> str:
    return f"{path}.{key}" if path else str(key)


def alternatives(annotation: Any) -> tuple[Any, ...]:
    """Return the types that an annotation allows, without ``Annotated``, unions and None."""
    if hasattr(annotation, "__value__"):  # a PEP 695 alias
        return alternatives(annotation.__value__)
    origin = get_origin(annotation)
    if origin is Annotated:
        return alternatives(get_args(annotation)[0])
    if origin is Union or origin is types.UnionType:
        return tuple(kind for arm in get_args(annotation) for kind in alternatives(arm))
    return () if annotation is type(None) else (annotation,)


def is_model(annotation: Any) -> typing.TypeGuard[type[BaseModel]]:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def models(annotations: tuple[Any, ...]) -> tuple[type[BaseModel], ...]:
    return tuple(kind for kind in annotations if is_model(kind))


def field_names(owners: tuple[type[BaseModel], ...]) -> list[str]:
    """Return the fields of these models, each once, in their order."""
    return list(dict.fromkeys(name for owner in owners for name in owner.model_fields))


def description(owners: tuple[type[BaseModel], ...], name: str) -> str | None:
    for owner in owners:
        if text := field_text(owner, name):
            return " ".join(text.replace("``", "").split())
    return None


def step(annotations: tuple[Any, ...], name: str) -> tuple[Any, ...] | None:
    """Return the types of the field ``name``; None if there can be no such field here."""
    found: list[Any] = []
    known = False
    for kind in annotations:
        if is_model(kind):
            if name in kind.model_fields:
                known = True
                found += _of_field(kind, name)
        elif get_origin(kind) is dict:
            known = True
            found += alternatives(get_args(kind)[1])
        elif get_origin(kind) in {list, tuple} and name.isdigit():
            known = True
            found += alternatives(get_args(kind)[0])
        elif kind is Any:
            known = True
            found.append(Any)
    return tuple(found) if known else None


@cache
def _of_field(model: type[BaseModel], name: str) -> tuple[Any, ...]:
    return alternatives(model.model_fields[name].annotation)


def place(root: type[BaseModel], path: str) -> FieldPath | None:
    """Where a dotted path leads, or None when it leads nowhere."""
    annotations: tuple[Any, ...] = (root,)
    owners: tuple[type[BaseModel], ...] = ()
    for name in path.split("."):
        owners = models(annotations)
        further = step(annotations, name)
        if further is None:
            return None
        annotations = further
    return FieldPath(annotations, owners)


def locate(root: type[BaseModel], location: tuple[str | int, ...]) -> tuple[str, FieldPath]:
    """Return the dotted path that a Pydantic error location means.

    Pydantic puts the tag of a tagged union, and marks such as ``[key]``, among the names.
    """
    annotations: tuple[Any, ...] = (root,)
    owners: tuple[type[BaseModel], ...] = ()
    path = ""
    for part in location:
        further = step(annotations, str(part))
        arms = tuple(kind for kind in models(annotations) if part in (*_tags(kind), kind.__name__))
        if arms and (further is None or len(models(annotations)) > 1):
            annotations = arms
        elif part != "[key]":
            path = join(path, part)
            owners = models(annotations)
            annotations = further or ()
    return path, FieldPath(annotations, owners)


@cache
def leaf_paths(root: type[BaseModel]) -> tuple[str, ...]:
    """Every dotted path of a field under ``root``, groups included, in the order of the classes."""
    return tuple(dict.fromkeys(_walk((root,), "")))


def _walk(annotations: tuple[Any, ...], path: str) -> Iterator[str]:
    for model in models(annotations):
        for name, field in model.model_fields.items():
            here = join(path, name)
            yield here
            yield from _walk(alternatives(field.annotation), here)


def _tags(model: type[BaseModel]) -> tuple[Any, ...]:
    """Return the tags of a model in a tagged union: the literals of its ``kind`` or ``name``."""
    return tuple(
        value
        for field in model.model_fields.values()
        if get_origin(field.annotation) is Literal
        for value in get_args(field.annotation)
    )
