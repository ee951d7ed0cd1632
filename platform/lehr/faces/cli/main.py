"""``lehr``: the table of commands, and the one place where errors become exit codes.

Exit codes: 0 done; 1 something failed (a watched run, or Lehr itself); 2 the input is wrong; 3 the
plan cannot work; 4 no server answers, or it rejects the token; 130 Ctrl-C.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from lehr import __version__
from lehr.errors import LehrError, UserError, nearest, not_installed
from lehr.faces.cli import output

COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    # heading: {name: (module of this package, line of --help)}
    "Start": {
        "demo": ("demo", "Train eight small models on real text, rank their learning rates"),
        "up": ("server", "Start the server on this machine, or show its address"),
        "down": ("shutdown", "Stop the server, its trainings and Ray"),
        "status": ("status", "Show the server, its GPUs, active runs and the queue"),
        "doctor": ("doctor", "Check this machine and suggest fixes"),
    },
    "Launch": {
        "plan": ("plan", "Estimate memory, time and cost, without launching"),
        "run": ("run", "Run a command of yours: lehr run -- python train.py --lr 1e-3"),
        "submit": ("launch", "Submit one run"),
        "sweep": ("launch", "Show the plan of a sweep, then launch it"),
        "campaign": ("launch", "From a budget to the plan of a large run: try smaller ones"),
        "rollout": ("launch", "Launch a run in stages, each with gates that must pass"),
    },
    "Inspect": {
        "ls": ("ls", "List runs, newest first"),
        "show": ("show", "Show all details of a run, sweep or rollout"),
        "watch": ("watch", "Show live progress of a run, sweep or rollout until it ends"),
        "compare": ("compare", "Compare configs and metrics of runs, at equal step or tokens"),
        "judge": ("compare", "Judge claims: keep, reject or undecided, by pairs of seeds"),
        "transfer": ("transfer", "Transfer the best learning rate of a sweep to larger runs"),
        "law": ("law", "Predict loss and learning rate of a larger run from finished runs"),
        "diagnose": ("diagnose", "Find problems in the curves of a run or of a file"),
        "logs": ("logs", "Print the output of a run; -f follows it"),
        "checkpoints": ("checkpoints", "List, verify, download or delete checkpoints of a run"),
        "eval": ("checkpoints", "Evaluate a checkpoint on tasks, and add the values to its run"),
        "export": ("export", "Export metrics of a run as JSON lines, CSV or Parquet"),
        "report": ("export", "Write a report of a run, sweep or rollout: one HTML file"),
        "open": ("bundle", "Bring the runs of a report NAME.lehr.html into the server"),
        "verify": ("bundle", "Train the first steps of such a report here, and compare them"),
        "code": ("code", "Show, compare and check out the code of runs"),
        "queue": ("status", "List queued runs and why they wait, or move one"),
    },
    "Manage": {
        "cancel": ("run_actions", "Stop a run, sweep or rollout for good, without saving"),
        "pause": ("run_actions", "Save a run and free its GPUs"),
        "resume": ("run_actions", "Queue a paused run again, from its checkpoint"),
        "retry": ("run_actions", "Queue a failed run, or a sweep's failed trials, again"),
        "extend": ("run_actions", "Add values, points or trials to a sweep"),
        "seeds": ("fork", "Repeat a run with other seeds, to measure the noise"),
        "fork": ("fork", "Start a new run from a checkpoint of another, with changes"),
        "cooldown": ("fork", "Decay the learning rate of a run over so many tokens, as a fork"),
        "import": ("imports", "Import the runs of W&B, MLflow, TensorBoard, Trackio, or CSV files"),
        "sync": (
            "run_actions",
            "Send what scripts have logged by lehr_log.init and could not send",
        ),
        "mcp": ("mcp", "Let agents use Lehr, within a budget"),
        "skills": ("mcp", "Give coding agents the skill of using Lehr"),
        "note": ("run_actions", "Show or replace the note of a run, sweep or rollout"),
        "tag": ("run_actions", "Add or remove tags of a run or sweep"),
        "archive": ("run_actions", "Hide an ended run, sweep or rollout, or show it again"),
        "delete": ("run_actions", "Delete the files of an ended run or sweep"),
    },
    "Prepare": {
        "spec": ("spec", "Write a spec to begin with, list presets, print schemas"),
        "data": ("data", "Prepare token shards of a corpus before training"),
        "bench": ("bench", "Measure training steps on this machine"),
    },
    "Maintain": {
        "node": ("node", "List, add, exclude and readmit nodes; join or leave a cluster"),
        "slurm": ("slurm", "Submit a Slurm job whose nodes join this machine's server"),
        "admin": ("admin", "Manage tokens, quotas and secrets; list who did what"),
        "db": ("db", "Check, back up, restore and rebuild the databases"),
    },
}
_WRONG_USE: Any = typer.BadParameter.__base__  # Of click, or of the click in newer Typers.
MODULES = {name: module for group in COMMANDS.values() for name, (module, _) in group.items()}


class LazyGroup(TyperGroup):
    """A command group that imports the module of a command only when it is called."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - Typer's signature
        return list(MODULES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - Typer's signature
        if cmd_name not in MODULES:
            return None
        if cmd_name in COMMANDS["Launch"]:
            output.after_ctrl_c("Nothing was recorded.")
        module = importlib.import_module(f"lehr.faces.cli.{MODULES[cmd_name]}")
        group = typer.main.get_group(module.app)
        return group.commands[cmd_name]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if (verb := args[0]) not in MODULES and not ctx.resilient_parsing:
            parents = [name for name in MODULES if verb in self._commands_of(ctx, name)]
            names = [f"{parent} {verb}" for parent in parents]
            near = " or lehr ".join(names) or nearest(verb, MODULES)
            hint = f"Did you mean lehr {near}?   " if near else ""
            raise UserError(
                f"lehr has no command {verb!r}.", hint=f"{hint}All of them: lehr --help"
            )
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except _WRONG_USE as error:
            error.message = error.message.replace("Value error, ", "")  # Pydantic's words.
            known = error.ctx.command.params if hasattr(error, "possibilities") else ()
            if any(parameter.name == "overrides" for parameter in known):
                error.message += ". A field is set by its path, such as train.optimizer.lr=1e-3"
                error.possibilities = [one for one in error.possibilities or () if one != "--help"]
            raise

    def _commands_of(self, ctx: Any, name: str) -> Any:
        return getattr(self.get_command(ctx, name), "commands", ())

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - Typer's signature
        """List commands from the table above, so that ``--help`` imports none of them."""
        width = max(map(len, MODULES))
        formatter.write_paragraph()
        for heading, group in COMMANDS.items():
            formatter.write_heading(heading)
            for name, (_, about) in group.items():
                formatter.write(f"  {name:{width}}  {about}\n")


root = typer.Typer(
    cls=LazyGroup,
    name="lehr",
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Run pretraining experiments; every run is recorded, none is lost.",
    epilog="Runs: id, unique prefix of an id, or name. All commands have --json. Try: lehr demo",
)


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"lehr {__version__}")
        raise typer.Exit


@root.callback()
def options(
    server: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The server. Default: LEHR_SERVER, or this machine's."),
    ] = None,
    ca: Annotated[
        str | None,
        typer.Option(metavar="FILE", envvar="LEHR_CA", help="Authority of its TLS, a PEM file."),
    ] = None,
    version: Annotated[  # noqa: ARG001 - acts by its callback
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    if server is not None:
        os.environ["LEHR_SERVER"] = server
    if ca is not None:
        path = os.path.abspath(os.path.expanduser(ca))  # noqa: PTH100, PTH111 - pathlib is slow here
        if not os.path.isfile(path):  # noqa: PTH113
            raise UserError(f"--ca {ca}: no such file.")
        # The variable of OpenSSL: a server that is started trusts it, and so do its workers.
        os.environ["SSL_CERT_FILE"] = os.environ["LEHR_CA"] = path


def run() -> None:
    """Run the ``lehr`` command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal without dashes and bars shows question marks instead of failing.
            stream.reconfigure(errors="replace")
    try:
        typer.main.get_command(root).main(prog_name="lehr")
    except (LehrError, ModuleNotFoundError) as error:
        failure = error if isinstance(error, LehrError) else not_installed(error)
        output.print_error(failure, as_json="--json" in sys.argv)
        sys.exit(failure.exit_code)
    except SystemExit as end:
        if end.code == 130 and output.goes_on_after_ctrl_c:
            output.say(f"\n{output.goes_on_after_ctrl_c}")
        raise
    except BrokenPipeError:
        # `lehr ls | head` closes the pipe early. Python would report it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


if __name__ == "__main__":
    run()
