"""``lehr submit``, ``sweep`` and ``rollout``: read a spec, plan it, confirm, launch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from lehr.base import formats
from lehr.errors import LehrError, PlanRefused, ServerUnavailable, SpecError, UserError
from lehr.faces.cli.connect import connect
from lehr.faces.cli.output import (
    JsonOption,
    YesOption,
    after_ctrl_c,
    confirm,
    console,
    escaped,
    notes,
    print_json,
    say,
    state_text,
    warn,
)
from lehr.faces.cli.plan import OverridesArgument, Price, SpecFile, read_spec, runs_of, show_plan
from lehr.faces.cli.watch import watch_until_end

if TYPE_CHECKING:
    from lehr.faces.client import Client, Rollout, Run, Sweep
    from lehr.specs import RolloutSpec, RunSpec, Spec, SweepSpec

    L = TypeVar("L", Run, Sweep, Rollout)

app = typer.Typer(rich_markup_mode=None)
S = TypeVar("S")
_TIMEOUT_S = 1.0

WatchOption = Annotated[
    bool, typer.Option("--watch", "-w", help="Show its progress until it ends.")
]
DryRunOption = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Only check and plan it: what the server would refuse is refused. Without a server, "
        "what only a server knows is not checked.",
    ),
]


@app.command("submit")
def submit(
    file: SpecFile,
    overrides: OverridesArgument = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the run, instead of the file's.")
    ] = None,
    dry_run: DryRunOption = False,
    watch: WatchOption = False,
    as_json: JsonOption = False,
) -> None:
    """Submit one run. It is recorded and queued when this command returns.

    JSON: {run: RunDetail}; with --dry-run the JSON of `lehr plan --json`.
    """
    from lehr.specs import RunSpec

    changes = [*(overrides or []), *([f"name={name}"] if name else [])]
    spec = read_to_launch(file, changes, RunSpec, "run")
    launch_run(spec, dry_run=dry_run, watch=watch, as_json=as_json)


def launch_run(spec: RunSpec, *, dry_run: bool, watch: bool, as_json: bool) -> None:
    """Submit a run, or only check it, and print what became of it."""
    if dry_run:
        show_plan(spec, as_json=as_json, check=check)
        return
    client = connect()
    refuse([spec], client)
    run = launch(client, client.submit, spec)
    if not as_json:
        _first_word(run)
    about = state_text(run.state, run.view.pending_reason)
    then = f"Output: lehr logs -f {run.id}"
    show_launched(client, run, about, run.detail.warnings, then=then, watch=watch, as_json=as_json)


@app.command("campaign")
@app.command("sweep")
def sweep(
    file: SpecFile,
    overrides: OverridesArgument = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    watch: WatchOption = False,
    price: Price = None,
    as_json: JsonOption = False,
) -> None:
    """Show the plan of a sweep or a campaign, ask for confirmation, launch it.

    A campaign tries smaller versions of a large run within a budget, to find its best values.

    JSON: {sweep: SweepDetail}; with --dry-run the JSON of `lehr plan --json`. --json skips the
    confirmation.
    """
    from lehr.specs import SweepSpec

    spec = read_to_launch(file, overrides, SweepSpec, "sweep")
    if dry_run:
        show_plan(spec, price=price, as_json=as_json, each_trial=True, check=check)
        return
    client = _confirmed(spec, price, yes=yes, as_json=as_json)
    made = launch(client, client.sweep, spec)
    about = f"{formats.counted(sum(made.view.counts.values()), 'run')} queued"
    then = f"Stop it: lehr cancel {made.id}"
    show_launched(
        client, made, about, made.detail.warnings, then=then, watch=watch, as_json=as_json
    )


@app.command("rollout")
def rollout(
    file: SpecFile,
    overrides: OverridesArgument = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    watch: WatchOption = False,
    price: Price = None,
    as_json: JsonOption = False,
) -> None:
    """Show the plan of a rollout, ask for confirmation, launch it.

    The stages are a tiny model on a CPU, one GPU, two GPUs, and the run itself. A stage starts only
    after all gates of the previous stage have passed.

    JSON: {rollout: RolloutDetail}; with --dry-run the JSON of `lehr plan --json`. --json skips the
    confirmation.
    """
    from lehr.specs import RolloutSpec

    spec = read_to_launch(file, overrides, RolloutSpec, "rollout")
    if dry_run:
        show_plan(spec, price=price, as_json=as_json, check=check)
        return
    client = _confirmed(spec, price, yes=yes, as_json=as_json)
    made = launch(client, client.rollout, spec)
    about = f"{len(made.stages)} stages, beginning with {made.stages[0].name}"
    then = f"Stop it: lehr cancel {made.id}"
    show_launched(client, made, about, then=then, watch=watch, as_json=as_json)


def show_launched(
    client: Client,
    made: Run | Sweep | Rollout,
    about: str,
    warnings: Iterable[str] = (),
    *,
    lines: Sequence[str] = (),
    then: str = "",
    watch: bool,
    as_json: bool,
) -> None:
    """Print what was recorded, and with ``watch`` its progress until it ends. Exit code 1 if
    something failed. ``then``: a command that is useful next, beside `lehr watch`.
    """
    if as_json:
        print_json({made.noun: made.detail})
    else:
        out = console()
        out.print(f"[bold]{escaped(made.name)}[/]  {made.id}  {about}")
        for line in lines:
            out.print(f"  {line}")
        for warning in warnings:
            warn(warning)
        out.print(f"  {made.url}", style="dim")
        if not watch:
            # By its id: others may have its name.
            out.print(f"  Watch it: lehr watch {made.id}        {then}".rstrip(), style="dim")
    if watch and not watch_until_end(client, made, as_json=as_json):
        raise typer.Exit(1)


def read_to_launch(file: str, overrides: list[str] | None, kind: type[S], name: str) -> S:
    """Read a spec of one kind; ``name`` is that of the kind.

    Raises:
        UserError: the file is not valid, or of another kind. Nothing was recorded.
    """
    try:
        spec = read_spec(file, overrides)
    except SpecError as error:
        raise nothing_recorded(error) from None
    if not isinstance(spec, kind):
        verb = "submit" if spec.kind == "run" else spec.kind
        raise UserError(
            f"{file} is a {spec.kind}, not a {name}.", hint=f"Launch it with: lehr {verb} {file}"
        )
    return spec


def _confirmed(
    spec: SweepSpec | RolloutSpec, price: float | None, *, yes: bool, as_json: bool
) -> Client:
    """Connect, show the plan and ask for confirmation; with ``as_json`` print nothing.

    Raises:
        PlanRefused: a run does not fit.
    """
    client = connect()
    client.health()
    if as_json:
        refuse(runs_of(spec), client)
    else:
        show_plan(spec, price=price)
        if not yes:
            confirm("Launch?")
    return client


def refuse(runs: Iterable[RunSpec], client: Client) -> None:
    """Fail if a run's plan cannot work, before anything is recorded.

    Raises:
        PlanRefused: it does not fit in the kind of GPU that it names, or else in the only one of
            the cluster.
    """
    from lehr.analysis.plan import plan_run
    from lehr.faces.client.plan_server import PlanServer

    server = PlanServer(lambda: client)
    own = [spec for spec in runs if spec.trainer is None]
    try:
        server.refuse([(spec, plan_run(server.on_this_cluster(spec))) for spec in own])
    except PlanRefused as error:
        raise nothing_recorded(error) from None


def check(spec: Spec) -> list[str]:
    """Have the server check the spec as it does before it records it; return its warnings.

    Without a server a note says so.

    Raises:
        UserError: the submission would be refused, with this error.
    """
    try:
        with recording():
            return connect().check(spec).warnings
    except ServerUnavailable:
        warn(
            "No server answers, so this is not checked: whether its cluster can hold and resume "
            "the run, and its projects and secrets.",
            on=notes(),
        )
        return []


@contextmanager
def recording() -> Iterator[None]:
    """Add to the server's refusal that nothing was recorded."""
    try:
        yield
    except UserError as error:
        raise nothing_recorded(error) from None
    except KeyboardInterrupt as stop:
        if stop.args:  # It came too late: the client knows what was recorded.
            after_ctrl_c(str(stop))
        raise


def recorded(record: Callable[[], L]) -> L:
    """Record an object; from then on Ctrl-C says that it goes on."""
    from lehr.faces.client.server_object import goes_on

    with recording():
        made = record()
    after_ctrl_c(goes_on(made.name, made.id))
    return made


def launch(client: Client, record: Callable[[S], L], spec: S) -> L:
    """Record a run, sweep or rollout, and note which others have its name."""
    made = recorded(lambda: record(spec))
    with suppress(LehrError):  # It is recorded: this must not look like a rejection.
        others = [one for one in client.named(made.name) if one.id != made.id]
        if others:
            first, more = others[0], f" and {len(others) - 1} more" if others[1:] else ""
            say(
                f"Another {made.name} exists: {first.id} ({first.described}){more}. "
                f"This one is {made.id}."
            )
    return made


def _first_word(run: Run) -> None:
    """Wait briefly for the dispatcher to place the run, or to report why it waits."""
    deadline = time.monotonic() + _TIMEOUT_S
    while run.state == "queued" and not run.view.pending_reason and time.monotonic() < deadline:
        time.sleep(0.05)
        try:
            run.refresh()
        except LehrError:  # Already recorded: this must not look like a rejection.
            return


def nothing_recorded(error: LehrError) -> LehrError:
    """Return the same error with a note that nothing was recorded."""
    if isinstance(error, SpecError):
        return NothingRecorded(error.problems)
    hint = f"{error.hint}\nNothing was recorded." if error.hint else "Nothing was recorded."
    return type(error)(error.message, hint=hint)


class NothingRecorded(SpecError):
    def __str__(self) -> str:
        return f"{super().__str__()}\nNothing was recorded."
