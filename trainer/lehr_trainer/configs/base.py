"""Base class, types and helpers of every part of the config."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema


class Documented(BaseModel):
    """A model whose JSON schema describes each field by the text below it.

    Pydantic's ``use_attribute_docstrings`` parses the source of each class when the class is made:
    a third of the time that ``lehr`` took to start, for texts that only schemas and help need.
    """

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler, /
    ) -> dict[str, Any]:
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for name, field in cls.model_fields.items():
            if (text := field_text(cls, name)) is not None:
                properties.get(field.alias or name, {}).setdefault("description", text)
        return schema


def field_text(model: type[BaseModel], name: str) -> str | None:
    """Return what describes a field: its ``description``, or else the text below it."""
    field = model.model_fields.get(name)
    if field is None or field.description:
        return field.description if field else None
    for owner in model.__mro__:
        if name in (texts := _module_texts(owner.__module__).get(owner.__qualname__, {})):
            return texts[name]
        if name in inspect.get_annotations(owner):
            return None  # Declared anew, without a text: that of a base is about another field.
    return None


@cache
def _module_texts(module: str) -> dict[str, dict[str, str]]:
    """Return the texts below the fields of each class of a module, by the class's full name."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError, KeyError):  # Built in, or without its source.
        return {}
    return dict(_classes(tree, ""))


def _classes(tree: ast.AST, path: str) -> Iterator[tuple[str, dict[str, str]]]:
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.ClassDef():
                yield path + node.name, _texts(node)
                yield from _classes(node, f"{path}{node.name}.")
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from _classes(node, f"{path}{node.name}.<locals>.")
            case _:
                yield from _classes(node, path)


def _texts(owner: ast.ClassDef) -> dict[str, str]:
    found = {}
    for field, below in pairwise(owner.body):
        match field, below:
            case (ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text)))):
                found[name] = inspect.cleandoc(text)
    return found


PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
T = TypeVar("T")
OrNone = Annotated[T | None, Field(exclude_if=lambda value: value is None)]
"""Left out of a config without it, which trainers of older capsules read as well."""


class Config(Documented):
    """A frozen model with strict names: a misspelt field is an error, never ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    shorthand: ClassVar[str] = ""
    """The field that a plain value in place of this mapping sets; empty if there is none."""
    switch: ClassVar[tuple[str, str] | None] = None
    """What false and true mean there."""

    @model_validator(mode="before")
    @classmethod
    def _accept_shorthand(cls, raw: Any) -> Any:
        return cls.spelled_out(raw)

    @classmethod
    def spelled_out(cls, raw: Any) -> Any:
        """Return the mapping that a plain value means; anything else as it is."""
        if not cls.shorthand or not isinstance(raw, str | bool):
            return raw
        return {cls.shorthand: cls.switch[raw] if cls.switch and isinstance(raw, bool) else raw}


def tagged(tag: str, default: str) -> Callable[[Any], Any]:
    """Make a validator for a union with a discriminator; a missing one means ``default``,
    and a text alone is the tag.
    """

    def with_tag(raw: Any) -> Any:
        if isinstance(raw, str):
            return {tag: raw}
        return {tag: default, **raw} if isinstance(raw, dict) else raw

    return with_tag


def must_name(tag: str) -> Callable[[dict[str, Any]], None]:
    """Make a schema change that requires ``tag``, so that exactly one member of a union matches."""

    def require(schema: dict[str, Any]) -> None:
        schema["required"] = [tag, *schema.get("required", [])]

    return require
