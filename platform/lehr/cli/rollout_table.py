"""A rollout as text: its stages in one line, then each gate with its evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lehr import formats
from lehr.cli.output import escaped, table, unicode_safe

if TYPE_CHECKING:
    from rich.table import Table

    from lehr.schemas.rollouts import GateView, RolloutDetail, RolloutView, StageView

_STYLES = {
    "passed": "green",
    "failed": "red",
    "running": "bold",
    "cancelled": "yellow",
    "waiting": "dim",
    "skipped": "dim",
    "off": "dim",
    "not_judged": "yellow",
}


def styled(state: str) -> str:
    """Return the state of a stage or gate in its colour, as markup."""
    text = state.replace("_", " ")
    style = _STYLES.get(state)
    return f"[{style}]{text}[/]" if style else text


def headline(rollout: RolloutView) -> str:
    """Return one line: ``llama-1b   running at one_gpu   cpu passed > one_gpu running > ...``."""
    arrow = " → " if unicode_safe() else " > "
    line = arrow.join(f"{name} {styled(state)}" for name, state in rollout.progress.items())
    at = f" at {rollout.stage}" if rollout.stage and rollout.state != "passed" else ""
    return f"[bold]{escaped(rollout.name)}[/]   {styled(rollout.state)}{at}   {line}"


def gates_table(rollout: RolloutDetail, *, begun_only: bool = False) -> Table:
    """Return a table with one row per gate; ``begun_only`` omits stages that have not started."""
    rows = table("stage", "gate", "verdict")
    rows.add_column("seen", overflow="fold")
    rows.add_column("expected", overflow="fold")
    for stage in rollout.stages:
        if begun_only and stage.state in {"waiting", "skipped"}:
            continue
        for index, gate in enumerate(stage.gates):
            rows.add_row(
                escaped(stage.title) if index == 0 else "",
                escaped(gate.title),
                styled(gate.state),
                escaped(gate.seen or formats.NOTHING),
                escaped(gate.expected),
                style="bold" if gate.state == "failed" else None,
            )
    return rows


def stages_table(rollout: RolloutDetail) -> Table:
    """Return a table with one row per stage: what it is, its progress, its duration."""
    rows = table("#", "stage", "state", "GPUs", "steps", "gates", "GPU time", right=("#", "GPUs"))
    rows.add_column("runs", overflow="fold")
    for stage in rollout.stages:
        rows.add_row(
            str(stage.number),
            escaped(stage.title),
            styled(stage.state),
            str(stage.gpus),
            _steps(stage),
            _judged(stage.gates),
            formats.duration(stage.gpu_seconds) if stage.gpu_seconds is not None else "",
            escaped(", ".join(one.run.name for one in stage.runs)),
        )
    return rows


def why(rollout: RolloutDetail) -> str | None:
    """Return why the rollout stopped, or what it does now."""
    if rollout.reason is not None:
        return rollout.reason
    return next((s.reason for s in rollout.stages if s.state == "running" and s.reason), None)


def _steps(stage: StageView) -> str:
    main = next((one.run for one in stage.runs if one.role == "train"), None)
    return f"{formats.count(main.step if main else 0)}/{formats.count(stage.steps)}"


def _judged(gates: list[GateView]) -> str:
    enabled = [gate for gate in gates if gate.state != "off"]
    passed = sum(gate.state == "passed" for gate in enabled)
    parts = [f"{passed} of {len(enabled)} passed"]
    for state in ("failed", "not_judged"):
        number = sum(gate.state == state for gate in enabled)
        parts += [f"{number} {state.replace('_', ' ')}"] if number else []
    return ", ".join(parts)
