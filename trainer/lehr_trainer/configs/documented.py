"""Models whose fields are described by the text below each field, read only when it is asked for.

Pydantic's ``use_attribute_docstrings`` parses the source of each class when the class is made: a
third of the time that ``lehr`` took to start, for texts that only schemas and help need.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any

from pydantic import BaseModel, GetJsonSchemaHandler
from pydantic_core import CoreSchema


class Documented(BaseModel):
    """A model whose JSON schema describes each field by the text below it."""

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
            case (
                ast.AnnAssign(target=ast.Name(name)),
                ast.Expr(ast.Constant(str(text))),
            ):
                found[name] = inspect.cleandoc(text)
    return found
