"""The help of each command, and whether an answer has the keys that the help lists."""

from __future__ import annotations

import contextlib
import json
import re
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import typer
from pydantic import ValidationError

from lehr import schemas
from lehr.faces.cli import main
from lehr.schemas.base import View


@cache
def documented() -> dict[str, dict[str, Any]]:
    """Return help and options of every command; for groups under names such as ``data prepare``."""
    found: dict[str, dict[str, Any]] = {}

    def add(name: str, command: Any) -> None:
        for inner_name, inner in getattr(command, "commands", {}).items():
            add(f"{name} {inner_name}", inner)
        if not getattr(command, "commands", None):
            options = [text for one in command.params for text in one.opts]
            about = f"{command.help or ''}\n{command.callback.__doc__ or ''}"
            found[name] = {"help": about, "options": options}

    for name, module in main.MODULES.items():
        app = import_module(f"lehr.faces.cli.{module}").app
        add(name, typer.main.get_group(app).commands[name])
    return found


def command_of(args: list[str]) -> str:
    """Return the command of an argument list; for groups a name such as ``data prepare``."""
    verb = " ".join(args[:2])
    return verb if verb in documented() else args[0]


def as_documented(args: list[str], found: dict[str, Any]) -> None:
    """The help of a command lists the keys of its answer, and views follow their schemas."""
    known, name = documented(), command_of(args)
    text = " ".join(known[name]["help"].partition("JSON")[2].split())
    if "lehr plan --json" in text and "--dry-run" in args:
        text = " ".join(known["plan"]["help"].partition("JSON")[2].split())
    if "{" not in text:
        assert follows(found, _views(text.partition(".")[0])), f"lehr {name}"
        return
    for key, value in found.items():
        assert re.search(rf"\b{key}\b", text), f"lehr {name}: {key!r} is not in its help: {text}"
        views = _views(" ".join(re.findall(rf"\b{key}: \[?([A-Z]\w+)", text)))
        for one in value if isinstance(value, list) else [value]:
            if views and isinstance(one, dict):
                assert follows(one, views), f"lehr {name}: {key}"


def _views(text: str) -> list[type[View]]:
    """The schemas that a text names."""
    modules = [import_module(one.name) for one in iter_modules(schemas.__path__, "lehr.schemas.")]
    found = [getattr(m, word, None) for word in re.findall(r"[A-Z]\w+", text) for m in modules]
    return [one for one in found if isinstance(one, type) and issubclass(one, View)]


def follows(value: dict[str, Any], views: list[type[View]]) -> bool:
    """Whether it matches one of these schemas exactly: no more, no fewer, no differently typed fields."""
    for view in views:
        with contextlib.suppress(ValidationError):
            if json.loads(view.model_validate(value).model_dump_json()) == value:
                return True
    return False
