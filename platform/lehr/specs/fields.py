"""What may stand where in a spec: its dotted paths, read off the Pydantic classes."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from lehr.errors import nearest
from lehr.specs.synonyms import candidates
from lehr.specs.yaml12 import join


@dataclass(frozen=True)
class SpecPath:
    """Where a path leads: the types that may stand there and the models that own its last name."""

    annotations: tuple[Any, ...]
    owners: tuple[type[BaseModel], ...]


def alternatives(annotation: Any) -> tuple[Any, ...]:
    """The types that an annotation allows, without ``Annotated``, unions and None."""
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
    """The fields of these models, each once, in their order."""
    return list(dict.fromkeys(name for owner in owners for name in owner.model_fields))


def description(owners: tuple[type[BaseModel], ...], name: str) -> str | None:
    for owner in owners:
        found = owner.model_fields.get(name)
        if found is not None and found.description:
            return " ".join(found.description.replace("``", "").split())
    return None


def step(annotations: tuple[Any, ...], name: str) -> tuple[Any, ...] | None:
    """The types of what ``name`` leads to from here; None if nothing of that name can be here."""
    found: list[Any] = []
    known = False
    for kind in annotations:
        if is_model(kind):
            field = kind.model_fields.get(name)
            if field is not None:
                known = True
                found += alternatives(field.annotation)
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


def place(root: type[BaseModel], path: str) -> SpecPath | None:
    """Where a dotted path leads, or None when it leads nowhere."""
    annotations: tuple[Any, ...] = (root,)
    owners: tuple[type[BaseModel], ...] = ()
    for name in path.split("."):
        owners = models(annotations)
        further = step(annotations, name)
        if further is None:
            return None
        annotations = further
    return SpecPath(annotations, owners)


def locate(root: type[BaseModel], location: tuple[str | int, ...]) -> tuple[str, SpecPath]:
    """The dotted path that a Pydantic error location means.

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
    return path, SpecPath(annotations, owners)


@cache
def leaf_paths(root: type[BaseModel]) -> tuple[str, ...]:
    """Every dotted path of a field under ``root``, groups included, in the order of the classes."""
    return tuple(dict.fromkeys(_walk((root,), "")))


def synonym(root: type[BaseModel], name: str) -> str | None:
    """The path under ``root`` of what other tools call ``name``, if any does."""
    return next((path for path in candidates(name) if place(root, path)), None)


def nearest_path(root: type[BaseModel], path: str) -> str | None:
    """The path under ``root`` that was probably meant."""
    known = leaf_paths(root)
    # Right but for the beginning: optimizer.lr, lr.
    ends = [candidate for candidate in known if candidate.endswith(f".{path}")]
    if ends:
        return min(ends, key=lambda candidate: candidate.count("."))
    other = synonym(root, path.rpartition(".")[2])
    if other is not None:
        return other
    # Right up to a name, and wrong in that one.
    annotations: tuple[Any, ...] = (root,)
    done = ""
    names = path.split(".")
    for index, name in enumerate(names):
        further = step(annotations, name)
        if further is None:
            close = nearest(name, field_names(models(annotations)))
            if close is not None:
                guess = ".".join(filter(None, [done, close, *names[index + 1 :]]))
                return guess if place(root, guess) else join(done, close)
            break
        annotations, done = further, join(done, name)
    # Its last name, or one like it, elsewhere; the shallowest first.
    by_name: dict[str, str] = {}
    for candidate in sorted(known, key=lambda candidate: candidate.count(".")):
        by_name.setdefault(candidate.rpartition(".")[2], candidate)
    close = nearest(names[-1], by_name)
    if close is not None:
        return by_name[close]
    return nearest(path, known)


def _walk(annotations: tuple[Any, ...], path: str) -> Iterator[str]:
    for model in models(annotations):
        for name, field in model.model_fields.items():
            here = join(path, name)
            yield here
            yield from _walk(alternatives(field.annotation), here)


def _tags(model: type[BaseModel]) -> tuple[Any, ...]:
    """What a tagged union may call this model: the literals of its ``kind`` or ``name``."""
    return tuple(
        value
        for field in model.model_fields.values()
        if get_origin(field.annotation) is Literal
        for value in get_args(field.annotation)
    )
