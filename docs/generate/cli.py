"""docs/cli.md: every command, its options and the shape of its JSON, from Typer's own tables."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import typer

from lehr.faces.cli import main
from lehr_trainer.configs.fields import alternatives

_EXIT_CODES = {
    0: "Done. Also after Ctrl-C in a watch, which stops no run.",
    1: "A watched run failed, a check found a problem, or Lehr itself failed.",
    2: "The input is wrong: the message names what, where, and what is valid. "
    "Nothing was recorded.",
    3: "The plan shows that it cannot work, e.g. it does not fit in the GPU's memory.",
    4: "No server answers, or it refuses the token.",
    130: "Ctrl-C; what was recorded, and what goes on, is printed.",
}
_ENVIRONMENT = {
    "LEHR_HOME": "Folder of everything that Lehr stores. Default: `~/.lehr`. Needs a local disk.",
    "LEHR_SERVER": "Address of the server, like `--server`.",
    "LEHR_TOKEN": "Token of the server. Default: the file `token` in the home.",
    "LEHR_RUNS": "Folder of run directories. Default: `runs` in the home. May be shared storage.",
    "LEHR_DATA": "Folder of the prepared corpora. Default: `data` in the home.",
    "NO_COLOR": "Set to anything to switch off colours.",
}
_INTRODUCTION = """\
# The command line

Generated from the commands themselves by `python docs/generate`; do not edit.

```console
$ lehr [--server URL] COMMAND [ARGUMENTS] [--json]
$ lehr COMMAND --help
```

A run, sweep or rollout is given by id, by a unique prefix of an id
(four letters or more), or by name: the newest of that name. Commands that act on a run, and
`compare`, take the one whose state allows it; if several do, they list them and do nothing.
Results go to stdout, everything else (questions, progress, errors) to stderr. A terminal gets
colours and live progress, a pipe gets plain text that is never cut, and `--json` prints one JSON
document. Ctrl-C ends `--watch` and `lehr watch`, but not the run. Elsewhere it prints what was
recorded and what goes on."""
_JSON = """\
## JSON

Every command takes `--json`; its entry below describes the output. A name such as `RunDetail` is
a schema of the REST API ([api.md](api.md), the modules of `lehr.schemas` in Python). Times are
seconds since the epoch, sizes are bytes, unknown values are `null`, non-finite numbers are `"NaN"`,
`"Infinity"`, `"-Infinity"`. With `--json` no command asks for confirmation, and an error is a JSON
document too:

```json
{"error": {"code": "not_found", "message": "...", "hint": "Did you mean one?", "problems": []}}
```

Codes: [errors.md](errors.md). For an invalid spec, `problems` lists each mistake with `path`,
`message`, `hint`, `line`, `column` and `source`. Later versions may add fields, but
not remove them."""
_COMPLETION = """\
## Completion

Commands, options, and names of runs and sweeps, in bash, zsh and fish:

```console
$ lehr --install-completion           # of this shell (bash, zsh, fish), for new terminals
$ lehr --show-completion              # the script, to put it where you like
```"""


def page() -> str:
    lines = [*_INTRODUCTION.splitlines(), ""]
    for heading, group in main.COMMANDS.items():
        lines.append(f"- **{heading}**: {', '.join(_link(name) for name in group)}")
    lines += ["", "## Exit codes", "", "| code | |", "|---|---|"]
    lines += [f"| {code} | {text} |" for code, text in _EXIT_CODES.items()]
    lines += ["", "## Environment", "", "| variable | |", "|---|---|"]
    lines += [f"| `{name}` | {text} |" for name, text in _ENVIRONMENT.items()]
    lines += ["", *_JSON.splitlines(), "", *_COMPLETION.splitlines(), ""]
    lines += ["## For every command", "", "| | |", "|---|---|"]
    for one in typer.main.get_command(main.root).params:
        if one.param_type_name == "option" and "--help" not in one.opts:
            lines.append(f"| {_option(one, str)} | {_cell(one.help)} |")
    lines.append("")
    for heading, group in main.COMMANDS.items():
        lines += [f"## {heading}", ""]
        for name, (module, _) in group.items():
            app = importlib.import_module(f"lehr.faces.cli.{module}").app
            lines += _command(f"lehr {name}", typer.main.get_group(app).commands[name])
    return "\n".join(lines).rstrip() + "\n"


def _link(name: str) -> str:
    return f"[`{name}`](#lehr-{name})"


def _command(name: str, command: Any) -> list[str]:
    inner = getattr(command, "commands", {})
    if inner:
        lines = [f"### {name}", "", _prose(command.help or ""), ""]
        for inner_name, one in inner.items():
            lines += _command(f"{name} {inner_name}", one)
        return lines
    hints = get_type_hints(command.callback)
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option"]
    usage = " ".join([name, *(_argument(one) for one in arguments), "[OPTIONS]"])
    lines = [f"### {name}", "", "```console", f"$ {usage}", "```", "", *_help(command)]
    lines += ["| | |", "|---|---|"]
    lines += [f"| `{_argument(one)}` | {_cell(one.help)} |" for one in arguments if one.help]
    for one in options:
        if "--help" in one.opts:
            continue
        shown = _option(one, hints.get(one.name))
        lines.append(f"| {shown} | {_cell(one.help)}{_default(one)} |")
    return [*lines, ""]


def _help(command: Any) -> list[str]:
    """Return a command's help in paragraphs; the one about JSON last."""
    text = inspect.cleandoc(command.help or "")
    own = inspect.cleandoc(command.callback.__doc__ or "")
    if "JSON" not in text and own not in text:
        text = f"{text}\n\n{own}"
    # Show the shape of the answer as code, up to the last brace.
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n") if part.strip()]
    lines = []
    for paragraph in paragraphs:
        before, mark, after = paragraph.partition("JSON: ")
        if mark and after.startswith(("{", "[")):
            lines += [
                *([before.strip(), ""] if before.strip() else []),
                f"JSON: {_code(after)}",
                "",
            ]
        else:
            lines += [_prose(paragraph), ""]
    return lines


def _code(text: str) -> str:
    """Format text in braces as code."""
    shown, depth = [], 0
    for letter in text:
        if letter == "{":
            shown.append("`{" if not depth else "{")
            depth += 1
        elif letter == "}":
            depth -= 1
            shown.append("}`" if not depth else "}")
        else:
            shown.append(letter)
    return "".join(shown)


def _argument(one: Any) -> str:
    shown = one.metavar or one.name.upper()
    shown = re.sub(r"^\{|\}$", "", shown)
    return shown if one.required or shown.startswith("[") else f"[{shown}]"


def _option(one: Any, annotation: Any) -> str:
    names = ", ".join(f"`{name}`" for name in [*one.opts, *one.secondary_opts])
    return names if one.is_flag else f"{names} {one.metavar or _kind(annotation)}"


def _kind(annotation: Any) -> str:
    kinds = [kind for kind in alternatives(annotation) if kind is not list]
    first = kinds[0]
    if get_origin(first) is Literal:
        return " \\| ".join(map(str, get_args(first)))
    if get_origin(first) is list:
        return _kind(get_args(first)[0])
    return {int: "N", float: "NUMBER", str: "TEXT", Path: "PATH"}.get(first, first.__name__.upper())


def _default(one: Any) -> str:
    value = one.default
    if one.required:
        return " **required**"
    if value in {None, False, ""} or callable(value) or isinstance(value, tuple | list):
        return ""
    return "" if one.is_flag else f" Default: `{getattr(value, 'value', value)}`."


def _cell(text: str | None) -> str:
    return " ".join((text or "").replace("|", "\\|").split())


def _prose(text: str) -> str:
    return " ".join(text.split())
