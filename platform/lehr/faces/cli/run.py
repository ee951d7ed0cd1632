"""``lehr run -- python train.py --lr 1e-3``: make a command a run."""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lehr.base.names import is_rate
from lehr.errors import LehrError, UserError
from lehr.faces.cli.launch import DryRunOption, WatchOption, launch_run
from lehr.faces.cli.output import JsonOption, escaped, notes, print_result, warn

if TYPE_CHECKING:
    from lehr.specs import RunSpec

app = typer.Typer(rich_markup_mode=None)
_TAIL = 65_536
"""Bytes of the output in which the reason of a failure is searched for."""
_PYTHON = re.compile(r"python(3(\.\d+)?)?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,199}")
_HYDRA = re.compile(rf"{_NAME.pattern}=[\w.+-]*")
_WHOLE = re.compile(r"-?(0|[1-9]\d{0,17})")
_NUMBER = re.compile(r"-?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


@app.command("run", context_settings={"allow_interspersed_args": False})
def run(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="-- COMMAND...",
            help="python SCRIPT.py, python -m MODULE, torchrun ..., bash train.sh, ./train.",
        ),
    ],
    name: Annotated[
        str | None, typer.Option(help="Name of the run. Default: that of the script.")
    ] = None,
    project: Annotated[str, typer.Option(help="Project of the run.")] = "default",
    here: Annotated[
        bool,
        typer.Option(
            "--here",
            help="Start it here and now, and record what it prints or logs by lehr_log or wandb. "
            "Without a server it is kept on disk, for `lehr sync`.",
        ),
    ] = False,
    gpus: Annotated[
        int | None, typer.Option(help="GPUs, with one process each; 0: the CPU. Default: 1.")
    ] = None,
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

    Its options become `trainer.args`, which sweeps and forks can vary.

    JSON: {run: RunDetail}; with --dry-run the JSON of `lehr plan --json`; with --here {run: {id,
    name, folder, outcome, reason}}, and the output of the command on standard error.
    """
    from lehr.code.script_spec import read_script, run_name, steps_of
    from lehr.specs import RunSpec, load_spec
    from lehr.specs.program import COMMAND

    trainer = program(command)
    args, module = trainer.get("args", {}), trainer.get("module")
    entry = _head(command)[-1] if module == COMMAND else str(trainer.get("script", module))
    # As nanoGPT's --wandb_log=True, which imports it only then.
    logs = any(value for name, value in args.items() if "wandb" in name)
    if prints is None and not logs and entry.endswith(".py") and Path(entry).is_file():
        prints = read_script(Path.cwd(), entry).prints
        if prints:
            notes().print(f"Reads its lines: {', '.join(prints)}", markup=False)
    # A module of the project needs its files; those of a script are found by its imports.
    path = Path((module or "?").replace(".", "/"))
    whole = module == COMMAND or path.with_suffix(".py").is_file() or path.is_dir()
    fields = {
        "kind": "run",
        "name": name or run_name(entry),
        "project": project,
        "resources": None if gpus is None else {"gpus": gpus},
        "trainer": trainer
        | {"steps_arg": steps_of(args), "prints": prints or [], "data": data or []},
        "time_limit_s": time_limit,
        "code": {"include": ["."]} if whole else None,
    }
    spec = load_spec({field: value for field, value in fields.items() if value is not None})
    assert isinstance(spec, RunSpec)
    if not here:
        return launch_run(spec, dry_run=dry_run, watch=watch, as_json=as_json)
    queued = {"--gpus": gpus, "--time-limit": time_limit, "--data": data}
    queued |= {"--dry-run": dry_run or None, "--watch": watch or None}
    if more := [option for option, value in queued.items() if value is not None]:
        raise UserError(
            f"--here starts the command as it is, and takes no {', '.join(more)}.",
            hint="Without --here it is queued, and the options hold.",
        )
    raise typer.Exit(_run_here(command, spec, as_json=as_json))


def _run_here(command: list[str], spec: RunSpec, *, as_json: bool) -> int:
    """Run the command and record it as `lehr_log.init` does; return an exit code of `lehr`."""
    import lehr_log
    from lehr.analysis.curve_files.printed import ProgramOutput
    from lehr.control.error_patterns import exit_reason
    from lehr_log.run import LOG, STOP, Outcome
    from lehr_trainer.contract import layout

    trainer = spec.trainer
    assert trainer is not None
    if shutil.which(command[0]) is None:
        raise UserError(f"{command[0]}: there is no such command.")
    run = lehr_log.init(spec.project, spec.name, trainer.args, steps=spec.steps)
    if run.folder is None:
        raise LehrError("The run cannot be recorded here, so it was not started.")
    package, modules = Path(lehr_log.__file__).parent, run.folder / "modules"
    modules.mkdir()
    (modules / "lehr_log").symlink_to(package)  # Its Python may be of another environment.
    paths = [str(package / "as_wandb"), str(modules), os.environ.get("PYTHONPATH", "")]
    own = {
        "LEHR_STOP": str(run.folder / STOP),
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        # As in a launch, the output is all if it is read.
        **({} if trainer.prints else {"LEHR_LOG": str(run.folder / LOG)}),
    }
    path = layout.rank_log(run.folder, 0)
    printed, tail = ProgramOutput(path, trainer.prints), b""
    # Ctrl-C is for the command, whose end decides.
    signal.signal(signal.SIGINT, lambda *_: None)
    process = subprocess.Popen(
        command, env=os.environ | own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    shown = (sys.stderr if as_json else sys.stdout).buffer
    with path.open("wb") as log, process:
        assert process.stdout is not None
        while output := os.read(process.stdout.fileno(), 1 << 16):
            for stream in (shown, log):
                with suppress(OSError):  # A full disk or a closed terminal stops no training.
                    stream.write(output)
                    stream.flush()
            tail = (tail + output)[-_TAIL:]
            for row in printed.values(printed.file.split(output)):
                run.log(row.values, row.step)
    code, reason = process.returncode, None
    outcome: Outcome = "completed"
    if code in {-signal.SIGINT, 130}:
        outcome, reason = "stopped", "interrupted by Ctrl-C"
    elif code != 0:
        text = tail.decode("utf-8", "replace")
        outcome, reason = "failed", exit_reason(trainer.entry, code, text, f"lehr logs {run.id}")
    elif problem := printed.unmatched():
        warn(problem, on=notes())
    run.finish(outcome, reason)
    about = {"id": run.id, "name": spec.name, "folder": str(run.folder), "outcome": outcome}
    sent = (run.folder / "delivered").exists()
    then = f"lehr show {run.id}" if sent else f"lehr sync {run.folder}"
    text = escaped(f"{spec.name}  {run.id}  {reason or outcome}\n  Next: {then}")
    print_result({"run": about | {"reason": reason}}, text, as_json=as_json)
    return {"completed": 0, "failed": 1, "stopped": 130}[outcome]


def program(words: list[str]) -> dict[str, Any]:
    """Return the fields of ``trainer`` for a command.

    Raises:
        UserError: its script is outside of the current folder.
    """
    from lehr.specs.program import COMMAND

    rest = list(words)
    if _PYTHON.fullmatch(Path(rest[0]).name) or rest[0] == sys.executable:
        del rest[0]
        while rest and rest[0] == "-u":  # Output is never held back.
            del rest[0]
        if rest[:1] == ["-m"] and rest[1:]:
            return {"module": rest[1], **arguments(rest[2:])}
    if not rest or not rest[0].endswith(".py"):
        head = _head(words)
        fields = arguments(words[len(head) :])
        return {"module": COMMAND, **fields, "argv": [*head, *fields.get("argv", [])]}
    path, here = Path(rest[0]).expanduser().absolute(), Path.cwd()
    if not path.is_relative_to(here):
        raise UserError(
            f"{rest[0]} is outside of the current folder, which is the project.",
            hint=f"cd {path.parent}",
        )
    return {"script": path.relative_to(here).as_posix(), **arguments(rest[1:])}


def _head(words: list[str]) -> list[str]:
    """Return the words through the first one that is a file, such as a script; all if none is."""
    ends = (number for number, word in enumerate(words, 1) if Path(word).is_file())
    return words[: next(ends, len(words))]


def arguments(words: list[str]) -> dict[str, Any]:
    """Return the fields of ``trainer`` that pass these words, named where they have a name.

    A word without a name, a short option, and an option that is repeated are passed first, as they
    are.
    """
    if "--" in words:
        return {"argv": words}
    named = dict(word.split("=", 1) for word in words if _HYDRA.fullmatch(word))
    if words and len(named) == len(words):
        return {"style": "hydra", "args": {key: _typed(key, named[key]) for key in named}}
    groups: list[list[str]] = [[]]
    for word in words:
        if word.startswith("-") and not _NUMBER.fullmatch(word):
            groups.append([])
        groups[-1].append(word)
    argv = groups.pop(0)
    options = Counter(group[0].partition("=")[0] for group in groups)
    args: dict[str, Any] = {}
    flags, style = [], {}
    for word, *values in groups:
        option, equals, value = word.partition("=")
        key = option.removeprefix("--")
        if option == key or not _NAME.fullmatch(key) or options[option] > 1:
            argv += [word, *values]
        elif equals:
            args[key] = _typed(key, value)
            argv += values
        elif values:
            typed = [_typed(key, value) for value in values]
            args[key], style = typed[0] if len(typed) == 1 else typed, {"style": "space"}
        else:
            args[key] = True
            flags.append(key)
    fields = {"args": args, "flags": flags, "argv": argv}
    return style | {name: value for name, value in fields.items() if value}


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
