"""What a script's source shows of it: arguments, printed lines, and a spec to begin with."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from lehr.analysis.curve_files.names import metric_of
from lehr.analysis.curve_files.printed import propose, source_lines
from lehr.base.formats import listed
from lehr.base.names import is_rate
from lehr.code.project_files import imported
from lehr.errors import UserError
from lehr.specs import dump_yaml
from lehr.specs.prints import pattern

_LOGGERS = {"wandb", "lehr_log", "tensorboard", "tensorboardX", "lightning", "pytorch_lightning"}
_STEPS = re.compile(r"((max|num|n|total)[-_])?(train(ing)?[-_])?(steps|iters|iterations)")
_GRID = (0.1, 0.3, 1, 3, 10)
"""Factors of the default: half a decade apart, as wide as an untuned rate is usually wrong."""
_SHOWN = 60


class Script(NamedTuple):
    arguments: dict[str, Any]
    """Defaults by name; None where there is none, or where it is computed."""
    flags: list[str]  # Arguments without a value.
    prints: list[str]  # Proposed patterns of what it prints; none if it imports a module that logs.
    metrics: set[str]  # Standard metrics that it names.


def read_script(root: Path, script: str, log: Sequence[str] | None = None) -> Script:
    """Read a script and the modules that it imports from its project. Nothing is run.

    ``log``: lines that it has printed; patterns are proposed for these.

    Raises:
        UserError: there is no such script, or it is no Python.
    """
    texts, trees = [], []
    for name in sorted(imported(root, script), key=lambda name: name != script):
        try:
            texts.append((root / name).read_bytes().decode("utf-8", "replace"))
            trees.append(ast.parse(texts[-1]))
        except OSError as error:
            raise UserError(f"{name} cannot be read: {error.strerror}.") from None
        except (SyntaxError, ValueError, RecursionError) as error:
            raise UserError(f"{name} is no Python: {error}.") from None
    nodes = [node for tree in trees for node in ast.walk(tree)]
    declared: dict[str, tuple[Any, bool]] = {}
    for name, value, is_flag in filter(None, map(_argument, nodes)):
        declared.setdefault(name, (value, is_flag))
    flags = [name for name, (_, is_flag) in declared.items() if is_flag]
    arguments = {name: value for name, (value, _) in declared.items()}
    if not arguments and re.search(r"sys\.argv|configurator", texts[0]):
        arguments = dict(_globals(trees[0]))
    prints = propose(source_lines(texts[0]) if log is None else log)
    if log is None:
        # Its own lines first: those of a module may be of another script.
        imports = (
            ast.unparse(node) for tree in trees for node in tree.body if "Import" in str(node)
        )
        logs = any(_LOGGERS & {*re.split(r"\W+", line)} for line in imports)
        prints = [] if logs else prints or propose(chain(*map(source_lines, texts)))
    fields = [name for text in prints for name in pattern(text).names]
    metrics = {meant[0] for word in fields or _words(nodes) if (meant := metric_of(word))}
    return Script(arguments, flags, prints, metrics)


def _words(nodes: Iterable[ast.AST]) -> list[str]:
    constants = (node.value for node in nodes if isinstance(node, ast.Constant))
    return [value for value in constants if isinstance(value, str)]


def _argument(node: ast.AST) -> tuple[str, Any, bool] | None:
    """Return name, default and whether it is a flag of an argument of argparse, click or absl."""
    if not isinstance(node, ast.Call):
        return None
    words, function = _words(node.args), ast.unparse(node.func).rpartition(".")[2]
    if function.startswith("DEFINE_") and words and len(node.args) > 1:
        return words[0], _value(node.args[1]), False
    option = next((word[2:] for word in words if re.fullmatch(r"--[A-Za-z][\w.-]*", word)), None)
    if function not in {"add_argument", "option"} or option is None:
        return None
    settings = {keyword.arg: keyword.value for keyword in node.keywords}
    action = ast.unparse(settings["action"]) if "action" in settings else ""
    is_flag = "store_" in action or "Boolean" in action or "is_flag" in settings
    return option, False if is_flag else _value(settings.get("default")), is_flag


def _globals(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """Yield the globals of a module as nanoGPT's configurator overrides them."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, value = node.targets[0].id, _value(node.value)
            if not name.startswith("_") and isinstance(value, bool | int | float | str):
                yield name, value


def _value(node: ast.expr | None) -> Any:
    try:
        return None if node is None else ast.literal_eval(node)
    except ValueError:
        return None


def spec_text(kind: str, name: str, root: str, source: Script) -> str:
    """Return a run or a sweep of the learning rate of the script ``name``, as YAML.

    Raises:
        UserError: a sweep, but no argument is a learning rate.
    """
    arguments, steps = source.arguments, steps_of(source.arguments)
    numbers = (
        key for key, value in arguments.items() if isinstance(value, int | float) and value > 0
    )
    rate = next(filter(is_rate, numbers), None)
    named = {key: arguments[key] for key in (steps, rate if kind == "run" else None) if key}
    trainer: dict[str, Any] = {"script": name, "args": named, "flags": source.flags}
    trainer |= {"steps_arg": steps, "prints": source.prints}
    run: dict[str, Any] = {"resources": {"gpus": 1}, "code": {"root": root}}
    if root == ".":
        del run["code"]
    run["trainer"] = {key: value for key, value in trainer.items() if value}
    spec: dict[str, Any] = {"kind": kind, "name": run_name(name) + "-lr" * (kind == "sweep")}
    if kind == "sweep":
        if rate is None:
            raise UserError(
                f"{name}: no argument with a number is a learning rate; it has "
                f"{listed([*arguments], 20) or 'no arguments that its source shows'}.",
                hint="Write a run (lehr spec new run --script), and name what to vary: "
                "parameters: {trainer.args.NAME: {values: [...]}}",
            )
        values = [float(f"{arguments[rate] * factor:.3g}") for factor in _GRID]
        spec["metric"] = {"name": "val/loss" if "val/loss" in source.metrics else "train/loss"}
        spec["parameters"] = {f"trainer.args.{rate}": {"values": values}}
        run = {"run": run}
    others = [f"{key}={value!r}"[:_SHOWN] for key, value in arguments.items() if key not in named]
    comment = f"# Arguments of {name}, by default: {listed(others, 20)}\n" if others else ""
    return comment + dump_yaml(spec | run)


def steps_of(arguments: Mapping[str, Any]) -> str | None:
    """Return the argument that is the number of steps."""
    counts = (key for key, value in arguments.items() if type(value) is int and value > 0)
    return next(filter(_STEPS.fullmatch, counts), None)


def run_name(script: str) -> str:
    name = Path(script).name.removesuffix(".py")
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip("._-") or "run"
