"""What ``submit``, ``sweep`` and ``rollout`` have in common: read, confirm, record, show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from lehr.errors import LehrError, PlanRefused, ServerUnavailable, SpecError, UserError
from lehr.faces.cli.connect import connect
from lehr.faces.cli.output import after_ctrl_c, console, notes, say, warn
from lehr.faces.cli.plan import of_another_kind, read_spec
from lehr.faces.cli.run_actions import confirm

if TYPE_CHECKING:
    from lehr.faces.client import Client, Rollout, Run, Sweep
    from lehr.specs import RunSpec, Spec

    L = TypeVar("L", Run, Sweep, Rollout)

WatchOption = Annotated[
    bool, typer.Option("--watch", "-w", help="Show its progress until it ends.")
]
DRY_RUN = (
    "Only check and plan it: what the server would refuse is refused. Without a server, what only "
    "a server knows is not checked."
)
S = TypeVar("S")


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
        raise of_another_kind(file, spec, name)
    return spec


def confirmed(
    show_plan: Callable[[], None],
    runs: Callable[[], Iterable[RunSpec]],
    *,
    yes: bool,
    as_json: bool,
) -> Client:
    """Connect, show the plan and ask for confirmation; with ``as_json`` only connect.

    Args:
        show_plan: prints it, and refuses what cannot work.
        runs: returns the runs to refuse instead, with ``as_json``.
        yes: do not ask.
        as_json: print nothing but the result.

    Raises:
        PlanRefused: a run does not fit.
    """
    client = connect()
    client.health()
    if as_json:
        refuse(runs(), client)
    else:
        show_plan()
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
            "the run, and its projects, secrets and webhooks.",
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


def print_next(launched: Sweep | Rollout, *, watch: bool) -> None:
    """Print the address, and the commands that are useful next."""
    out = console()
    out.print(f"  {launched.url}", style="dim")
    if not watch:
        ref = launched.id  # Others may have its name.
        out.print(f"  Watch it: lehr watch {ref}        Stop it: lehr cancel {ref}", style="dim")


def nothing_recorded(error: LehrError) -> LehrError:
    """Return the same error with a note that nothing was recorded."""
    if isinstance(error, SpecError):
        return NothingRecorded(error.problems)
    hint = f"{error.hint}\nNothing was recorded." if error.hint else "Nothing was recorded."
    return type(error)(error.message, hint=hint)


class NothingRecorded(SpecError):
    def __str__(self) -> str:
        return f"{super().__str__()}\nNothing was recorded."
