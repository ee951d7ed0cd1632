"""``lehr``: the table of commands, and the one place where errors become exit codes.

Exit codes: 0 done; 1 something failed (a run that was watched, or Lehr itself); 2 the input is
wrong; 3 the plan says it cannot work; 4 no server answers, or it refuses the token; 130 Ctrl-C.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from lehr.errors import LehrError, UserError, nearest

COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    # heading: {name: (module of this package, what --help says)}
    "Start": {
        "demo": ("demo", "Eight learning rates on real text, from nothing to a ranked table"),
        "up": ("server", "Start the server on this machine, or say where it stands"),
        "down": ("server", "Stop what `up` started, and only that"),
        "status": ("status", "The server, its GPUs, what runs and what waits"),
        "doctor": ("doctor", "What is wrong with this machine, and how to mend it"),
    },
    "Launch": {
        "plan": ("plan", "Memory, time and cost of a run, sweep or rollout, without launching it"),
        "submit": ("submit", "Submit one run"),
        "sweep": ("sweep", "Plan a sweep, ask, launch it"),
        "rollout": ("rollout", "Bring a run up in stages, each behind gates; plan, ask, launch"),
    },
    "Look": {
        "ls": ("ls", "Runs, newest first"),
        "show": ("show", "One run, sweep or rollout in full"),
        "watch": ("watch", "A run, sweep or rollout, live, until it ends"),
        "compare": ("compare", "Runs side by side: what differs, at equal step, tokens or time"),
        "logs": ("logs", "What a run prints; -f follows it"),
        "checkpoints": ("checkpoints", "What a run has saved: list, verify, download, delete"),
        "export": ("export", "A run's metrics as JSON lines or Parquet"),
        "queue": ("queue", "What waits, in order, and for what"),
    },
    "Act": {
        "cancel": ("act", "Stop a run, a sweep or a rollout for good, without saving"),
        "pause": ("act", "Save a run, then free its GPUs"),
        "resume": ("act", "Queue a paused run again, from its checkpoint"),
        "retry": ("act", "Queue a failed run, or a sweep's failed cells, again"),
        "extend": ("act", "Add values, cells or trials to a sweep"),
        "fork": ("fork", "A new run from a checkpoint of another, with something changed"),
        "wandb": ("wandb", "Mirror a run or a sweep in Weights & Biases, also afterwards"),
        "tag": ("tag", "Add or remove words to find a run by"),
        "archive": ("putting_away", "Put an ended run out of sight"),
        "unarchive": ("putting_away", "Put it back"),
        "delete": ("putting_away", "Delete an ended run's files; says first what that frees"),
    },
    "Prepare": {
        "data": ("data", "Turn a corpus into token shards ahead of training"),
        "schema": ("schema", "JSON Schema of a run's, sweep's or rollout's file, for editors"),
        "presets": ("presets", "Model presets and their sizes"),
        "bench": ("bench", "Repeat a published training experiment on this machine"),
    },
    "Care": {
        "cluster": ("cluster", "The machines: take one out of use, take it back in"),
        "db": ("db", "Check, back up, restore, rebuild and upgrade the databases"),
    },
}
MODULES = {name: module for group in COMMANDS.values() for name, (module, _) in group.items()}


class LazyGroup(TyperGroup):
    """Knows its commands by name, and imports the module of the one that is called."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - Typer's signature
        return list(MODULES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - Typer's signature
        if cmd_name not in MODULES:
            return None
        module = importlib.import_module(f"lehr.cli.{MODULES[cmd_name]}")
        group = typer.main.get_group(module.app)
        return group.commands[cmd_name]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in MODULES and not ctx.resilient_parsing:
            near = nearest(args[0], MODULES)
            raise UserError(
                f"lehr has no command {args[0]!r}.",
                hint=f"Did you mean lehr {near}?   All of them: lehr --help"
                if near
                else "All of them: lehr --help",
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - Typer's signature
        """From the table above, so that ``--help`` imports none of them."""
        for heading, group in COMMANDS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, about) for name, (_, about) in group.items()])


root = typer.Typer(
    cls=LazyGroup,
    name="lehr",
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
    help="Pretraining experiments: every run recorded, none lost, none started twice.",
    epilog="Ids may be shortened; names work too. Every command has --json. First time: lehr demo",
)


def _version(asked: bool) -> None:
    if asked:
        from lehr import __version__

        typer.echo(f"lehr {__version__}")
        raise typer.Exit


def _show_completion(shell: str | None) -> None:
    if shell is not None:
        from lehr.cli.completion import show

        show(shell)


def _install_completion(shell: str | None) -> None:
    if shell is not None:
        from lehr.cli.completion import install

        install(shell)


@root.callback()
def options(
    server: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Another server than this machine's (or LEHR_SERVER)."),
    ] = None,
    version: Annotated[  # noqa: ARG001 - acts by its callback
        bool, typer.Option("--version", callback=_version, is_eager=True, help="And exit.")
    ] = False,
    show_completion: Annotated[  # noqa: ARG001 - acts by its callback
        str | None,
        typer.Option(
            metavar="SHELL",
            callback=_show_completion,
            is_eager=True,
            help="Print the completion script of bash, zsh or fish.",
        ),
    ] = None,
    install_completion: Annotated[  # noqa: ARG001 - acts by its callback
        str | None,
        typer.Option(
            metavar="SHELL",
            callback=_install_completion,
            is_eager=True,
            help="Let bash, zsh or fish complete lehr's commands and names from now on.",
        ),
    ] = None,
) -> None:
    if server is not None:
        os.environ["LEHR_SERVER"] = server


def run() -> None:
    """The entry point of the ``lehr`` command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a dash or a bar gets a question mark, not a traceback.
            stream.reconfigure(errors="replace")
    if "_LEHR_COMPLETE" in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()
    try:
        typer.main.get_command(root).main(prog_name="lehr")
    except LehrError as error:
        from lehr.cli.output import print_error

        print_error(error, as_json="--json" in sys.argv)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # `lehr ls | head`: nobody reads on. Python would complain again as it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


if __name__ == "__main__":
    run()
