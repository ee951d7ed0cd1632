"""``lehr down``: stop what ``lehr up`` started (server, trainings, Ray)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from lehr.base import home, procfs
from lehr.cluster import ray_head
from lehr.errors import Conflict
from lehr.faces.cli import last_start
from lehr.faces.cli.daemon import one_at_a_time, running_server
from lehr.faces.cli.output import JsonOption, console, notes, print_json, warn
from lehr.node.stop import StoppedTrainings, count_trainings, stop_all

app = typer.Typer(rich_markup_mode=None)
SERVER_TIMEOUT_S = 120.0
"""A healthy server ends within seconds, but on a busy machine it has taken over 20."""


@app.command("down")
def down(
    keep_runs: Annotated[
        bool, typer.Option("--keep-runs", help="Leave runs training. The next `up` adopts them.")
    ] = False,
    timeout_s: Annotated[
        float,
        typer.Option(
            "--timeout", min=1, help="Seconds to wait for runs to save and for copies to finish."
        ),
    ] = 120.0,
    as_json: JsonOption = False,
) -> None:
    """Stop only what `up` started: trainings of this machine (saved first), server, Ray.

    After the next `up`, stopped trainings resume from where they were saved. Runs that use only
    other machines continue, and the next `up` adopts them. If the server was started with options,
    the command that starts it again is printed. Pending copies of checkpoints are finished first,
    unless their storage fails. Unfinished copies are listed, and continue after the next `up`.

    JSON: {stopped: [names], runs: {saved, unsaved, over, killed, kept}, uncopied: {location:
    checkpoints}}. over: completed, failed, paused or cancelled meanwhile.
    """
    with notes().status("Stopping"):
        report = take_down(home.home(), keep_runs=keep_runs, timeout_s=timeout_s)
    if not report.anything:
        _refuse_joined(home.home())
    trainings = report.trainings
    if as_json:
        print_json(
            {
                "stopped": report.stopped,
                "runs": {**trainings.counts, "kept": report.kept},
                "uncopied": {place: number for place, (number, _) in trainings.uncopied.items()},
            }
        )
        return
    out = console()
    if not report.anything:
        out.print("Lehr is not running.")
        return
    out.print(f"Stopped: {', '.join(report.stopped) or 'nothing'}.")
    show_ends(trainings.counts, then="The next lehr up")
    if report.kept:
        kept = "1 training was" if report.kept == 1 else f"{report.kept} trainings were"
        out.print(f"  {kept} left running, for the next lehr up to adopt.")
    for place, (number, why) in trainings.uncopied.items():
        points = "1 checkpoint is" if number == 1 else f"{number} checkpoints are"
        warn(
            f"{points} not copied to {place} yet{f' ({why})' if why else ''}: "
            "the next lehr up continues copying. Keep this machine's disk until then."
        )
    if (start := last_start.read(home.home())) is not None and start.non_default:
        out.print("To start it again as it was:")
        out.print(f"    {start.command}", markup=False, soft_wrap=True)


def _refuse_joined(where: Path) -> None:
    """Say how a machine that has joined, and so runs no server, leaves the cluster."""
    from lehr.faces.join import record

    joined = record.read(where)
    if joined is not None:
        raise Conflict(
            f"this machine runs no server: it is node {joined.node} of {joined.server_url}.",
            hint="To take it out of the cluster: lehr node leave",
        )


@dataclass
class ShutdownReport:
    stopped: list[str] = field(default_factory=list)
    trainings: StoppedTrainings = field(default_factory=StoppedTrainings)
    kept: int = 0

    @property
    def anything(self) -> bool:
        return bool(self.stopped or self.trainings.ends or self.kept)


def take_down(where: Path, *, keep_runs: bool, timeout_s: float) -> ShutdownReport:
    """Stop all; skip what is not running.

    Raises:
        Conflict: the server was not started by ``lehr up``.
    """
    report = ShutdownReport()
    if not where.is_dir():
        return report
    with one_at_a_time(where):
        server = running_server(where)
        if server is not None and server.start is None:
            raise Conflict(
                f"the server, process {server.pid}, was not started by lehr up.",
                hint="Stop it as it was started, e.g. systemctl stop lehr. Then lehr down stops "
                "the trainings and Ray that it left running.",
            )
        # A server whose `lehr up` was killed may have no address yet, but it holds the lock.
        start = last_start.read(where)
        if start is not None and start.pid == home.lock_holder(where):
            killed = procfs.end(start.pid, SERVER_TIMEOUT_S)
            late = f" (killed: it did not end within {SERVER_TIMEOUT_S:.0f} s)" * killed
            report.stopped.append(f"the server{late}")
        if ray_head.recorded(where) is not None:
            # Only trainings on Lehr's own Ray belong to this machine.
            if keep_runs:
                report.kept = count_trainings(where)
            else:
                report.trainings = stop_all(where, command="lehr down", timeout_s=timeout_s)
            if ray_head.stop(where):
                report.stopped.append("Ray")
    return report


def show_ends(counts: Mapping[str, int], *, then: str) -> None:
    """Print how many ended in which way. ``then`` has those resume that are to: a subject."""
    out = console()
    if saved := counts["saved"]:
        out.print(f"  {_were(saved)} saved. {then} resumes {_it(saved)}.")
    if unsaved := counts["unsaved"]:
        out.print(
            f"  {_were(unsaved)} stopped without a report of a save. {then} resumes {_it(unsaved)} "
            "from the last checkpoint."
        )
    if over := counts["over"]:
        out.print(f"  {_were(over)} over: completed, failed, paused or cancelled.")
    if killed := counts["killed"]:
        warn(
            f"{_were(killed)} killed: saving took too long. {then} resumes {_it(killed)} from the "
            "last checkpoint."
        )


def _were(number: int) -> str:
    return f"{number} training was" if number == 1 else f"{number} trainings were"


def _it(number: int) -> str:
    return "it" if number == 1 else "them"
