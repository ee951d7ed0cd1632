"""``lehr watch``: show a run, a sweep or a rollout live until it ends. Ctrl-C only detaches."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import typer

from lehr.base import formats
from lehr.errors import ServerUnavailable
from lehr.faces.cli.connect import Ref, connect
from lehr.faces.cli.group_table import (
    SPARE,
    gates_table,
    headline,
    rollout_headline,
    stages_table,
    sweep_eta,
    trials_table,
    why,
)
from lehr.faces.cli.live import LiveState, bar, gpu_map, reason, run_frame, sweep_frame
from lehr.faces.cli.output import (
    JsonOption,
    console,
    escaped,
    fitting,
    is_terminal,
    notes,
    state_text,
    to_jsonable,
    unicode_safe,
    warn,
    without_controls,
)

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
            _watch_sweep(client, found)
        elif isinstance(found, Rollout):
            _watch_rollout(client, found)
        else:
            _watch_run(client, found)
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


def _watch_sweep(client: Client, sweep: Sweep) -> None:
    if is_terminal():
        _live(client, sweep.wait, _sweep_frame)
    else:
        sweep.wait(progress=SweepLines())
    print_result(sweep)


def _sweep_frame(view: SweepDetail, seen: LiveState) -> RenderableType:
    size = console().size
    return sweep_frame(view, seen, height=size.height, width=size.width, now=time.time())


def print_result(sweep: Sweep) -> None:
    """Print how a sweep ended: the ranked table, then its notes."""
    out = console()
    view = sweep.detail
    out.print(headline(view))
    if view.held_out_note:
        warn(view.held_out_note)
    out.print()
    out.print(fitting(trials_table(view), out, fold="state", spare=SPARE))
    for note in view.notes:
        if note != view.held_out_note:
            out.print(f"  {note}", style="dim", markup=False)
    out.print(f"  {sweep.url}", style="dim")


def _watch_rollout(client: Client, rollout: Rollout) -> None:
    if is_terminal():
        _live(client, rollout.wait, rollout_frame)
    else:
        rollout.wait(progress=RolloutLines())
    view = rollout.detail
    out = console()
    out.print(rollout_headline(view))
    if view.reason is not None:
        out.print(f"  {view.reason}", markup=False)
    out.print()
    out.print(gates_table(view, begun_only=True))
    for note in view.notes:
        out.print(f"  {note}", style="dim", markup=False)
    out.print(f"  {rollout.url}", style="dim")


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
        stages_table(view),
        "",
        gates,
        "",
        *gpu_map(seen.cluster, own),
    )


def _watch_run(client: Client, run: Run) -> None:
    if is_terminal():
        _live(client, run.wait, lambda view, seen: run_frame(view, seen, now=time.time()))
    else:
        run.wait(progress=RunLines())
    console().print(run_lines(run.view))
    console().print(f"  {run.url}", style="dim")


def run_lines(run: RunView) -> str:
    """Return a run as three lines of markup."""
    latest = {name: value.value for name, value in run.latest.items()}
    step = run.step or 0
    lines = [f"[bold]{run.name}[/]  [dim]{run.id}[/]   {state_text(run.state, reason(run))}"]
    eta = f"   ETA {formats.duration(run.eta_s)}" if run.eta_s and not run.ended_at else ""
    whole = f"/{run.total_steps:,}" if run.total_steps else ""
    done = f"{bar(step / run.total_steps, 24)}  " if run.total_steps else ""
    lines.append(f"  {done}step {step:,}{whole}{eta}")
    figures = [
        f"loss {formats.loss(latest.get('train/loss'))}",
        f"val {formats.loss(latest.get('val/loss'))}",
        *([f"last {formats.si(latest['tokens_per_s'])} tok/s"] if "tokens_per_s" in latest else []),
        *([f"MFU {formats.share(latest['mfu'])}"] if "mfu" in latest else []),
        *([f"epoch {latest['data/epoch']:.3g}"] if "data/epoch" in latest else []),
    ]
    spark = formats.sparkline(run.trend, 24, unicode=unicode_safe())
    lines.append(f"  {spark}  {'   '.join(figures)}" if latest else "")
    return "\n".join(line for line in lines if line)


def _live(
    client: Client,
    wait: Callable[..., Any],
    render: Callable[[Any, LiveState], RenderableType],
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
    """Fetch what the display shows beside the view: the cluster, and a run's events."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.seen = LiveState()

    def beside(self, view: SweepDetail | RolloutDetail | RunView) -> None:
        from lehr.schemas.runs import RunView

        # If a fetch fails, the old data stay on display; the view itself has arrived.
        with suppress(ServerUnavailable):
            self.seen.cluster = self._client.cluster()
            if isinstance(view, RunView):
                self.seen.events = self._client.run(view.id).events()
        self.seen.heard_at = time.time()


class RunLines:
    """Lines of a run for a pipe: one per change of state, and one per tenth of its steps.

    Where their number is not known: one each time that the step has doubled.
    """

    def __init__(self) -> None:
        self._state = ""
        self._tenth = 0

    def __call__(self, view: RunView) -> None:
        state = _words(view)
        if state not in {"queued", self._state}:
            _note(f"{view.name}: {state}")
        self._state = state
        step, total = view.step or 0, view.total_steps
        tenth = 10 * step // total if total else step.bit_length()
        if tenth > self._tenth and view.ended_at is None:
            loss = formats.loss(_newest(view, "train/loss"))
            eta = "" if view.eta_s is None else f", ETA {formats.duration(view.eta_s)}"
            of = f"/{total:,}" if total else ""
            _note(f"{view.name}: step {step:,}{of}, loss {loss}{eta}")
        self._tenth = max(tenth, self._tenth)


class SweepLines:
    """Lines of a sweep for a pipe: one per change of a trial's state, and one per tenth of all
    steps.
    """

    def __init__(self) -> None:
        self._states: dict[str, str] = {}
        self._tenth = 0

    def __call__(self, view: SweepDetail) -> None:
        for trial in view.trials:
            state = _words(trial.run)
            if state not in {"queued", self._states.get(trial.run.id)}:
                _note(f"{trial.run.name}: {state}")
            self._states[trial.run.id] = state
        whole = max(view.steps_total, 1)
        tenth = 10 * view.steps_made // whole if view.steps_total else 0
        if tenth > self._tenth and view.state != "finished":
            best = "" if view.best_value is None else f", best {formats.loss(view.best_value)}"
            eta = sweep_eta(view)
            left = "" if eta is None else f", ETA {formats.duration(eta)}"
            _note(f"{view.name}: {view.steps_made / whole * 100:.0f} % of all steps{best}{left}")
        self._tenth = max(tenth, self._tenth)


class RolloutLines:
    """Lines of a rollout for a pipe: one per change of a stage, and one per judged gate."""

    def __init__(self) -> None:
        self._states: dict[str, str] = {}
        self._judged: set[tuple[str, str]] = set()

    def __call__(self, view: RolloutDetail) -> None:
        for stage in view.stages:
            for gate in stage.gates:
                judged = gate.state in {"passed", "failed", "not_judged"}
                if judged and (stage.name, gate.name) not in self._judged:
                    verdict = gate.state.replace("_", " ")
                    _note(f"{stage.name}: {gate.title} {verdict}: {gate.seen}")
                    self._judged.add((stage.name, gate.name))
            if stage.state not in {"waiting", self._states.get(stage.name)}:
                _note(f"{stage.name}: {stage.state}")
            self._states[stage.name] = stage.state


def _note(text: str) -> None:
    notes().print(without_controls(text), markup=False)


def _newest(view: RunView, name: str) -> float | None:
    found = view.latest.get(name)
    return None if found is None else found.value


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
