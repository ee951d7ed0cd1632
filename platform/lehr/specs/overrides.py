"""Overrides of a spec by dotted path: ``train.optimizer.lr=1e-3``."""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from lehr.errors import SpecError, SpecProblem
from lehr.specs.yaml12 import dump_yaml, parse_value
from lehr_trainer.configs.base import Config
from lehr_trainer.configs.fields import models, place
from lehr_trainer.configs.train import TrainConfig

Overrides = Mapping[str, Any] | Sequence[str]
MOST = 1_000
"""Overrides of one spec: each is laid over it on its own."""
DEEPEST = 32
"""Names in a path: each step looks for every key that the rest of the path may be."""
_STAGE = re.compile(r"((?:run\.)?train\.stages)\.([^.]+)(.*)")


def parse_overrides(overrides: Overrides) -> list[tuple[str, Any, str]]:
    """Parse each override into (path, value, text).

    Raises:
        SpecError: one has no ``=``, no path, or a value that is not YAML; or there are too many.
    """
    if len(overrides) > MOST:
        message = f"overrides: {len(overrides):,} given; at most {MOST:,} are allowed."
        raise SpecError([SpecProblem(path="overrides", message=message)])
    if isinstance(overrides, Mapping):
        return [(path, value, f"{path}={_written(value)}") for path, value in overrides.items()]
    found: list[tuple[str, Any, str]] = []
    problems: list[SpecProblem] = []
    for text in overrides:
        path, equals, value = text.partition("=")
        path = path.strip()
        if not equals:
            problems.append(
                SpecProblem(
                    path="",
                    message=f"{text!r} is not an override.",
                    hint="Write it as path=value, e.g. train.optimizer.lr=1e-3",
                )
            )
            continue
        try:
            found.append((path, parse_value(value), text))
        except SpecError as error:
            problems += [
                SpecProblem(path=path, message=problem.message, source=f"override {text}")
                for problem in error.problems
            ]
    if problems:
        raise SpecError(problems)
    return found


def numbered(data: Mapping[str, Any], path: str) -> str:
    """Return the path with the number of the stage of ``train.stages`` that it names.

    Raises:
        ValueError: ``data`` has no such stage.
    """
    named = _STAGE.fullmatch(path)
    if named is None:
        return path
    before, name, rest = named.groups()
    stages: Any = data
    for key in before.split("."):
        stages = stages.get(key) if isinstance(stages, Mapping) else None
    stages = stages if isinstance(stages, list) else []
    names = [one.get("name") if isinstance(one, dict) else None for one in stages]
    if name not in names and not (name.isdigit() and int(name) < len(stages)):
        shown = ", ".join(f"{n} ({one})" if one else f"{n}" for n, one in enumerate(names))
        raise ValueError(f"{before} has no stage {name}; it has {shown or 'none'}")
    number = names.index(name) if name in names else int(name)
    return f"{before}.{number}{rest}"


def set_path(data: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at a dotted path, creating mappings on the way.

    An item of a list is its number, from 0, and a stage of ``train.stages`` also its name. A key
    may contain dots (``parameters.train.optimizer.lr.values``): the longest existing key wins. A
    plain value that means a mapping (a preset's name, ``optimizer: muon``) becomes that mapping
    when a part of it is set.

    Raises:
        ValueError: the path is empty, or leads through a value without fields.
    """
    names = numbered(data, path).split(".")
    if not all(names):
        raise ValueError(f"{path[:100]!r} is not a path; separate names with dots")
    if len(names) > DEEPEST:
        raise ValueError(f"a path of {len(names):,} names; at most {DEEPEST} are allowed")
    here: Any = data
    done: list[str] = []
    while True:
        ends = range(len(names), 0, -1)
        used = next((n for n in ends if ".".join(names[:n]) in here), 1)
        key: Any = int(names[0]) if isinstance(here, list) else ".".join(names[:used])
        done += names[:used]
        names = names[used:]
        if not names:
            here[key] = value
            return
        inner = here[key] if isinstance(here, list) else here.get(key)
        items = enumerate(inner) if isinstance(inner, list) else ()
        if names[0] in [str(number) for number, item in items if isinstance(item, dict)]:
            here = inner
            continue
        if inner is None:
            inner = {}
        elif isinstance(inner, str) and key == "model":
            inner = {"preset": inner}
        elif not isinstance(inner, dict):
            inner = _spelled_out(".".join(done), inner)
        here[key] = inner
        here = inner


def _spelled_out(path: str, value: Any) -> dict[str, Any]:
    """Return the mapping that a plain value at ``path`` means.

    Raises:
        ValueError: it means none.
    """
    section = place(TrainConfig, path.rpartition("train.")[2])
    for kind in models(section.annotations) if section else ():
        meant = kind.spelled_out(value) if issubclass(kind, Config) else value
        if isinstance(meant, dict):
            return meant
    what = "is a list; set it whole" if isinstance(value, list) else "has no fields"
    raise ValueError(f"{path} {what}")


LENGTHS = ("train.steps", "train.tokens", "train.tokens_per_parameter")
"""Paths that each set how long a run trains. Of the spec that is changed, the other ones go.
``train.stages`` do so too, but they are more than a length: no other one removes them."""


def replace_length(data: dict[str, Any], paths: Collection[str]) -> None:
    """Remove a run's length from ``data`` if one of ``paths`` sets it in another way.

    If ``paths`` has several, these are left to contradict each other.
    """
    train = data.get("train")
    given = [path for path in LENGTHS if path in paths]
    staged = any(path.startswith("train.stages") for path in paths)
    if isinstance(train, dict) and (given or staged):
        for path in LENGTHS:
            if path not in given:
                train.pop(path.rpartition(".")[2], None)


def with_changes(data: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain values of a run with these values by dotted path, ``data`` itself."""
    replace_length(data, changes)
    for path in sorted(changes, key=lambda path: path.count(".")):  # A part after the whole.
        set_path(data, path, copy.deepcopy(changes[path]))
    return data


def name_the_run(data: Any) -> Any:
    """Name the run of a sweep, rollout or campaign after it, so that its name is optional."""
    for field in ("run", "target") if isinstance(data, dict) and "name" in data else ():
        if isinstance(data.get(field), dict):
            data = {**data, field: {"name": data["name"], **data[field]}}
    return data


def _written(value: Any) -> str:
    if isinstance(value, str | int | float | bool) or value is None:
        return dump_yaml(value).removesuffix("\n...\n").strip()
    return repr(value)
