"""Generate ``types.d.ts`` of the dashboard: the answers of the API that its modules name.

A module names a type in JSDoc, by ``@import { RunView } from "../types.js"``. The class of that
name in ``lehr.schemas`` is written, and each class that it contains. Only ``tsc`` reads it.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import types
import typing
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from lehr import schemas
from lehr.schemas.base import NON_FINITE, View

TYPES = "../api/lehr_api/dashboard/static/js/types.d.ts"
JAVASCRIPT = Path(__file__).parents[2] / "api/lehr_api/dashboard/static/js"
_PLAIN = {
    str: "string",
    bool: "boolean",
    int: "number",
    float: "number",
    Any: "any",
    type(None): "null",
}
_HEAD = """\
// What the API answers, from platform/lehr/schemas/. Written by `make docs`: do not edit.
// Times are seconds since the epoch; numbers that are not finite travel as strings.

export type WireNumber = number | "NaN" | "Infinity" | "-Infinity";
"""


def page() -> str:
    """Return the file: the types that the dashboard names, with their parts, by module."""
    classes = {one.__name__: one for one in _views()}
    wanted = [classes[name] for name in _named() - {"WireNumber"}]
    found: set[type[BaseModel]] = set()
    while wanted:
        one = wanted.pop()
        if one not in found:
            found.add(one)
            wanted += _parts(one)
    return _HEAD + "".join(declaration(one) for one in _views() if one in found)


def declaration(view: type[BaseModel]) -> str:
    """Return the declaration of a class. Each field is there, since answers leave none out."""
    fields = [f"  {name}: {typed(hint)};" for name, hint in _fields(view).items()]
    return "\n".join(["", f"export interface {view.__name__} {{", *fields, "}", ""])


def typed(hint: Any) -> str:
    """Return the type of a Python type hint, as TypeScript writes it."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint in _PLAIN:
        return _PLAIN[hint]
    if origin is typing.Annotated:
        return "WireNumber" if NON_FINITE in inner else typed(inner[0])
    if origin is Literal:
        return " | ".join(json.dumps(value) for value in inner)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(typed(one) for one in inner)
    if origin is list:
        item = typed(inner[0])
        return f"({item})[]" if " | " in item else f"{item}[]"
    if origin is tuple:
        return f"[{', '.join(typed(one) for one in inner)}]"
    if origin is dict:
        return f"Record<string, {typed(inner[1])}>"
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return hint.__name__
    raise TypeError(f"no JavaScript type for {hint}: add it to docs/generate/js_types.py")


def _views() -> list[type[View]]:
    modules = [
        importlib.import_module(f"{schemas.__name__}.{found.name}")
        for found in pkgutil.iter_modules(schemas.__path__)
    ]
    return [
        one
        for module in modules
        for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, View) and one.__module__ == module.__name__
    ]


def _named() -> set[str]:
    texts = [path.read_text(encoding="utf-8") for path in JAVASCRIPT.rglob("*.js")]
    imported = re.findall(r'@import \{([^}]*)\} from "[./]*types\.js"', "\n".join(texts))
    alone = re.findall(r"types\.js\"\)\.(\w+)", "\n".join(texts))
    return {*alone, *re.findall(r"\w+", " ".join(imported))}


def _fields(view: type[BaseModel]) -> dict[str, Any]:
    hints = typing.get_type_hints(view, include_extras=True)
    computed = {name: one.return_type for name, one in view.model_computed_fields.items()}
    return {name: hints[name] for name in view.model_fields} | computed


def _parts(view: type[BaseModel]) -> list[type[BaseModel]]:
    found: list[type[BaseModel]] = []
    hints = [*_fields(view).values()]
    while hints:
        hint = hints.pop()
        hints += typing.get_args(hint)
        if isinstance(hint, type) and issubclass(hint, BaseModel):
            found.append(hint)
    return found
