"""``lehr run -- python train.py --lr 1e-3``: make a command a run."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from lehr.base.names import is_rate
from lehr.errors import UserError
from lehr.faces.cli.launch import DryRunOption, WatchOption, launch_run
from lehr.faces.cli.output import JsonOption, notes

app = typer.Typer(rich_markup_mode=None)
_PYTHON = re.compile(r"python(3(\.\d+)?)?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,199}")
_WHOLE = re.compile(r"-?(0|[1-9]\d{0,17})")
_NUMBER = re.compile(r"-?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


@app.command("run", context_settings={"allow_interspersed_args": False})
def run(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="-- COMMAND...",
            help="python SCRIPT.py or python -m MODULE, with its arguments.",
        ),
    ],
    name: Annotated[
        str | None, typer.Option(help="Name of the run. Default: that of the script.")
    ] = None,
    project: Annotated[str, typer.Option(help="Project of the run.")] = "default",
    gpus: Annotated[int, typer.Option(help="GPUs, with one process each; 0 uses the CPU.")] = 1,
    time_limit: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Stop it after so long.")
    ] = None,
    prints: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help='Read printed lines: "iter {step}: loss {train/loss}". Repeatable. '
            "Default: what the source of a script prints that imports no logger.",
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="Link this file or folder, which is not sent. Repeatable. Each node needs it at "
            "the same path.",
        ),
    ] = None,
    dry_run: DryRunOption = False,
    watch: WatchOption = False,
    as_json: JsonOption = False,
) -> None:
    """Submit a command as a run, with the code of the current folder.

    Its options become `trainer.args`, so that sweeps and forks can vary them:
    lehr fork RUN trainer.args.lr=3e-4

    JSON: {run: RunDetail}; with --dry-run the JSON of `lehr plan --json`.
    """
    from lehr.code.script_spec import read_script, run_name
    from lehr.specs import RunSpec, load_spec

    trainer = program(command)
    if prints is None and "script" in trainer and Path(trainer["script"]).is_file():
        prints = read_script(Path.cwd(), trainer["script"]).prints
        if prints:
            notes().print(f"Reads its lines: {', '.join(prints)}", markup=False)
    trainer |= {"prints": prints or [], "data": data or []}
    fields = {
        "kind": "run",
        "name": name or run_name(trainer.get("script") or trainer["module"]),
        "project": project,
        "resources": {"gpus": gpus},
        "trainer": trainer,
        **({"time_limit_s": time_limit} if time_limit is not None else {}),
        # A module of the project needs its files; those of a script are found by its imports.
        **({"code": {"include": ["."]}} if _is_here(trainer.get("module")) else {}),
    }
    spec = load_spec(fields)
    assert isinstance(spec, RunSpec)
    launch_run(spec, dry_run=dry_run, watch=watch, as_json=as_json)


def _is_here(module: str | None) -> bool:
    path = Path(*(module or "").split("."))
    return module is not None and (path.with_suffix(".py").is_file() or path.is_dir())


def program(words: list[str]) -> dict[str, Any]:
    """Return the fields of ``trainer`` for a command.

    Raises:
        UserError: it is no script or module of Python.
    """
    rest = list(words)
    if _PYTHON.fullmatch(Path(rest[0]).name) or rest[0] == sys.executable:
        del rest[0]
        while rest and rest[0] == "-u":  # Output is never held back.
            del rest[0]
        if rest[:1] == ["-m"] and rest[1:]:
            return {"module": rest[1], **arguments(rest[2:])}
    if not rest or not rest[0].endswith(".py"):
        torchrun = Path(words[0]).name in {"torchrun", "accelerate"}
        raise UserError(
            f"{' '.join(words[:3])}: not a script or a module of Python.",
            hint="Lehr starts a process on each GPU itself: lehr run --gpus 2 -- python train.py"
            if torchrun
            else "lehr run -- python train.py --lr 1e-3, or python -m package.train",
        )
    path, here = Path(rest[0]).expanduser().absolute(), Path.cwd()
    if not path.is_relative_to(here):
        raise UserError(
            f"{rest[0]} is outside of the current folder, which is the project.",
            hint=f"cd {path.parent}",
        )
    return {"script": path.relative_to(here).as_posix(), **arguments(rest[1:])}


def arguments(words: list[str]) -> dict[str, Any]:
    """Return the fields of ``trainer`` that pass these words, named where they have a name.

    A word without a name, a short option, and an option that is repeated are passed first, as they
    are.
    """
    if "--" in words:
        return {"argv": words}
    if words and all(re.fullmatch(rf"{_NAME.pattern}=[\w.+-]*", word) for word in words):
        named = dict(word.split("=", 1) for word in words)
        if len(named) == len(words):
            return {"style": "hydra", "args": {key: _typed(key, named[key]) for key in named}}
    groups: list[list[str]] = [[]]
    for word in words:
        if word.startswith("-") and not _NUMBER.fullmatch(word):
            groups.append([])
        groups[-1].append(word)
    argv = groups.pop(0)
    names = [group[0].partition("=")[0] for group in groups]
    args: dict[str, Any] = {}
    flags, style = [], "equals"
    for name, (option, *values) in zip(names, groups, strict=True):
        key = name.removeprefix("--")
        if not name.startswith("--") or not _NAME.fullmatch(key) or names.count(name) > 1:
            argv += [option, *values]
        elif "=" in option:
            args[key] = _typed(key, option.partition("=")[2])
            argv += values
        elif values:
            typed = [_typed(key, value) for value in values]
            args[key], style = typed[0] if len(typed) == 1 else typed, "space"
        else:
            args[key] = True
            flags.append(key)
    fields = {"style": style, "args": args, "flags": flags, "argv": argv}
    return {name: value for name, value in fields.items() if value and value != "equals"}


def _typed(name: str, text: str) -> Any:
    """Return a number or a truth value where the script gets the same text, or the same rate."""
    if text in {"True", "False"}:
        return text == "True"
    if _WHOLE.fullmatch(text) and text != "-0":
        return int(text)
    if _NUMBER.fullmatch(text) and math.isfinite(float(text)):
        same = str(float(text)) == text or "e" in text.lower() or is_rate(name)
        return float(text) if same else text
    return text
