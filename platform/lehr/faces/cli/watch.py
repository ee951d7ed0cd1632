"""``lehr watch``: show a run, a sweep or a rollout live until it ends. Ctrl-C only detaches."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import typer

from lehr.base import formats
from lehr.errors import ServerUnavailable
from lehr.faces.cli.connect import Ref, connect
from lehr.faces.cli.group_table import gates_table, rollout_headline, stages_table, sweep_eta, why
from lehr.faces.cli.live import LiveState, gpu_map, run_frame, run_lines, sweep_frame
from lehr.faces.cli.output import (
    JsonOption,
    console,
    escaped,
    is_terminal,
    notes,
    to_jsonable,
    without_controls,
)
from lehr.faces.cli.show import print_rollout, print_sweep

if TYPE_CHECKING:
    from rich.console import RenderableType

    from lehr.faces.client import Client, Rollout, Run, Sweep
    from lehr.schemas.rollouts import RolloutDetail
    from lehr.schemas.runs import RunView
    from lehr.schemas.sweeps import SweepDetail

app = typer.Typer(rich_markup_mode=None)
_NOT_LIVE = frozenset({"spec", "provenance", "attempts"})
"""Long parts of a RunDetail, as requested; `lehr show --json` has them."""


@app.command("watch")
def watch(ref: Ref, as_json: JsonOption = False) -> None:
    """Show live progress of a run, sweep or rollout until it ends. Ctrl-C leaves it running.

    Exit code 1 if a run failed, or the rollout did not pass. JSON: a SweepDetail, RolloutDetail or
    RunView, one line for each change; the last line is the final state.
    """
    client = connect()
    found = client.find_any(ref)
    if not watch_until_end(client, found, as_json=as_json):
        raise typer.Exit(1)


def watch_until_end(
    client: Client, found: Run | Sweep | Rollout, *, as_json: bool = False, quiet: bool = False
) -> bool:
    """Show progress until it ends or Ctrl-C. Return False if it ended and something failed.

    In a sweep, a loss that became NaN is a result of its trial, not a failure.
    """
    from lehr.faces.client import Rollout, Sweep

    try:
        if quiet:
            found.wait(progress=lambda _: None)
        elif as_json:
            found.wait(progress=_json_lines())
        elif isinstance(found, Sweep):
            _watch(client, found, _sweep_frame, sweep_states, sweep_progress)
            print_sweep(found)
        elif isinstance(found, Rollout):
            _watch(client, found, rollout_frame, rollout_states, lambda _: (0, ""))
            print_rollout(found)
        else:
            _watch(client, found, _run_frame, run_states, run_progress)
            for line in (*run_lines(found.view, time.time()), f"  [dim]{found.url}[/]"):
                console().print(line)
    except KeyboardInterrupt:
        notes().print(
            f"\nDetached. Nothing was stopped.\n"
            f"  Watch again: lehr watch {found.id}        Stop it: lehr cancel {found.id}"
        )
        raise typer.Exit(0) from None
    if isinstance(found, Sweep):
        failed = [trial.run for trial in found.trials if trial.run.state == "failed"]
        return all(run.cause == "nan_loss" for run in failed)
    if isinstance(found, Rollout):
        return found.state == "passed"
    return found.state != "failed"


def _sweep_frame(view: SweepDetail, seen: LiveState) -> RenderableType:
    return sweep_frame(view, seen, console(), now=time.time())


def rollout_frame(view: RolloutDetail, seen: LiveState) -> RenderableType:
    """Draw the stages, the gates of those that have begun, and the GPUs."""
    from rich.console import Group

    own = {one.run.id: str(stage.number) for stage in view.stages for one in stage.runs}
    doing = why(view)
    lines = [f"  [dim]{escaped(doing)}[/]"] if doing else []
    gates = gates_table(view, begun_only=True)
    return Group(
        rollout_headline(view),
        *lines,
        "",
        stages_table(view, console()),
        "",
        gates,
        "",
        *gpu_map(seen.cluster, own),
    )


def _run_frame(view: RunView, seen: LiveState) -> RenderableType:
    return run_frame(view, seen, now=time.time())


def _watch(
    client: Client,
    watched: Run | Sweep | Rollout,
    render: Callable[[Any, LiveState], RenderableType],
    states: Callable[[Any], Iterable[tuple[str, str]]],
    progress: Callable[[Any], tuple[int, str]],
) -> None:
    """Show a live display on a terminal, else lines."""
    if is_terminal():
        _live(client, watched.wait, render)
    else:
        watched.wait(progress=PipeLines(states, progress))


def _live(
    client: Client, wait: Callable[..., Any], render: Callable[[Any, LiveState], RenderableType]
) -> None:
    """Redraw in place twice a second, and clear at the end, before the result is printed."""
    from rich.live import Live

    look = WatchFeed(client)
    newest: Any = None

    def on_view(view: Any) -> None:
        nonlocal newest
        look.beside(view)
        newest = view

    # The display has its own line for a slow server.
    judged, client.transport.on_silence = client.transport.on_silence, None
    try:
        with Live(
            get_renderable=lambda: "" if newest is None else render(newest, look.seen),
            console=console(),
            refresh_per_second=2,
            transient=True,
            vertical_overflow="crop",
        ):
            wait(progress=on_view)
    finally:
        client.transport.on_silence = judged


class WatchFeed:
    """Fetch what the display shows beside the view: the cluster, a run's events and its loss."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.seen = LiveState()

    def beside(self, view: SweepDetail | RolloutDetail | RunView) -> None:
        from lehr.schemas.runs import RunView

        # If a fetch fails, the old data stay on display; the view itself has arrived.
        with suppress(ServerUnavailable):
            self.seen.cluster = self._client.cluster()
            if isinstance(view, RunView):
                run = self._client.run(view.id)
                self.seen.events = run.events()
                if "train/loss" in view.latest:
                    [loss] = run.series("train/loss", points=112)
                    self.seen.curve = list(zip(loss.x, loss.y, strict=True))
        self.seen.heard_at = time.time()


class PipeLines:
    """Lines for a pipe: one per change of a state, and one whenever the progress is larger.

    ``states`` gives names with their states, and ``progress`` a number and a line, of a view.
    """

    def __init__(
        self,
        states: Callable[[Any], Iterable[tuple[str, str]]],
        progress: Callable[[Any], tuple[int, str]],
    ) -> None:
        self._states = states
        self._progress = progress
        self._seen: dict[str, str] = {}
        self._most = 0

    def __call__(self, view: Any) -> None:
        for name, state in self._states(view):
            if state not in {"queued", "waiting", self._seen.get(name)}:
                _note(f"{name}: {state}")
            self._seen[name] = state
        number, line = self._progress(view)
        if number > self._most:
            _note(f"{view.name}: {line}")
        self._most = max(number, self._most)


def run_states(view: RunView) -> Iterable[tuple[str, str]]:
    yield view.name, _words(view)


def run_progress(view: RunView) -> tuple[int, str]:
    """Return the tenth of the steps; if their number is not known, how often the step doubled."""
    if view.ended_at is not None:
        return 0, ""
    step, total = view.step or 0, view.total_steps
    loss = view.latest.get("train/loss")
    eta = "" if view.eta_s is None else f", ETA {formats.duration(view.eta_s)}"
    of = f"/{total:,}" if total else ""
    line = f"step {step:,}{of}, loss {formats.loss(None if loss is None else loss.value)}{eta}"
    return 10 * step // total if total else step.bit_length(), line


def sweep_states(view: SweepDetail) -> Iterable[tuple[str, str]]:
    for trial in view.trials:
        yield trial.run.name, _words(trial.run)


def sweep_progress(view: SweepDetail) -> tuple[int, str]:
    if not view.steps_total or view.state == "finished":
        return 0, ""
    best = "" if view.best_value is None else f", best now {formats.loss(view.best_value)}"
    eta = sweep_eta(view)
    left = "" if eta is None else f", ETA {formats.duration(eta)}"
    share = view.steps_made / view.steps_total
    return int(10 * share), f"{share * 100:.0f} % of all steps{best}{left}"


def rollout_states(view: RolloutDetail) -> Iterable[tuple[str, str]]:
    for stage in view.stages:
        for gate in stage.gates:
            if gate.state in {"passed", "failed", "not_judged"}:
                verdict = gate.state.replace("_", " ")
                yield f"{stage.name}: {gate.title}", f"{verdict}: {gate.seen}"
        yield stage.name, stage.state


def _note(text: str) -> None:
    notes().print(without_controls(text), markup=False)


def _words(run: RunView) -> str:
    """Return state and reason, without parts that change every second."""
    if run.state in {"starting", "running", "completed"}:
        return run.state
    if run.state == "queued":
        why = (run.pending_reason or "").partition(";")[0].partition(" (")[0]
    else:
        why = run.reason or ""
    return f"{run.state}: {why}" if why else run.state


def _json_lines() -> Callable[[Any], None]:
    before = ""

    def report(view: Any) -> None:
        nonlocal before
        line = json.dumps({k: v for k, v in to_jsonable(view).items() if k not in _NOT_LIVE})
        if line != before:
            typer.echo(line)
        before = line

    return report
