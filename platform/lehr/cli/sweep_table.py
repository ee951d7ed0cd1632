"""A sweep as a table: live while it runs, ranked when it has ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from lehr.cli import formats
from lehr.cli.output import escaped, state_text, table, unicode_safe

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from lehr.schemas import CellView, RunView, SweepDetail

_DONE = frozenset({"completed", "failed", "cancelled", "pruned"})
_WAITING = frozenset({"queued", "paused"})
_BAR = 8
_BEST = "best of all"
"""The column that marks the best; it has no head."""
_WIDE, _WIDEST = 100, 120
"""Letters of a terminal: from here a picture has losses and bars, and longer curves."""
_LEAST_STATE = 12


def cells_table(sweep: SweepDetail, *, ranked: bool = False) -> Table:
    """A row a cell: its values, the metric, the curve, speed, place and state."""
    cells = sorted(sweep.cells, key=_rank) if ranked else sweep.cells
    columns = {
        **({"#": [str(cell.rank or formats.NOTHING) for cell in cells]} if ranked else {}),
        **_values(sweep, cells),
        "trend": [_trend(cell, 8) for cell in cells],
        **_speed(cells, mfu=True),
        "GPU": _places(cells),
    }
    return _table(cells, columns, [_state(cell) for cell in cells])


def live_table(sweep: SweepDetail, *, width: int) -> Table:
    """The same for a picture of ``width`` letters: each cell in one line, with how far it is."""
    cells = sweep.cells
    wide, widest = width >= _WIDE, width >= _WIDEST
    columns = {
        "#": [str(cell.number) for cell in cells],
        **_values(sweep, cells),
        **({"loss": [formats.loss(_latest(cell, "train/loss")) for cell in cells]} if wide else {}),
        "trend": [_trend(cell, 16 if widest else 8) for cell in cells],
        **_speed(cells, mfu=wide),
        "GPU": _places(cells),
        "done": [_done(cell.run, bar=wide) for cell in cells],
    }
    used = sum(
        max(_length(text) for text in [_head(name), *texts]) + 2 for name, texts in columns.items()
    )
    states = [_cut(_state(cell), max(width - used, _LEAST_STATE)) for cell in cells]
    return _table(cells, columns, states)


def _table(
    cells: Sequence[CellView],
    columns: dict[str, list[str]],
    states: Sequence[str | Text],
) -> Table:
    left = {_BEST, "trend", "GPU"}
    rows = table()
    for name in columns:
        justify: Literal["left", "right"] = "left" if name in left else "right"
        rows.add_column(_head(name), justify=justify, no_wrap=True)
    # Where a terminal is too narrow, the words give way, not the figures.
    rows.add_column("state", overflow="fold")
    for index, cell in enumerate(cells):
        row = [texts[index] for texts in columns.values()]
        rows.add_row(*row, states[index], style="bold" if cell.best else None)
    return rows


def _head(name: str) -> str:
    return "" if name == _BEST else escaped(name)


def _values(sweep: SweepDetail, cells: Sequence[CellView]) -> dict[str, list[str]]:
    """The swept values, the metric and which is best."""
    columns = {}
    for name, path in zip(formats.short_paths(sweep.parameters), sweep.parameters, strict=True):
        texts = formats.learning_rates([cell.parameters.get(path) for cell in cells])
        columns[name] = [escaped(text) for text in texts]
    columns[sweep.metric] = [formats.loss(cell.value) for cell in cells]
    columns[_BEST] = ["best" if cell.best else "" for cell in cells]
    return columns


def _speed(cells: Sequence[CellView], *, mfu: bool) -> dict[str, list[str]]:
    columns = {"tok/s": [formats.si(_latest(cell, "tokens_per_s")) for cell in cells]}
    if mfu and any("mfu" in cell.run.latest for cell in cells):
        columns["MFU"] = [formats.share(_latest(cell, "mfu")) for cell in cells]
    return columns


def _places(cells: Sequence[CellView]) -> list[str]:
    several_nodes = len({gpu.node for cell in cells for gpu in cell.run.placement}) > 1
    return [_place(cell, several_nodes) for cell in cells]


def _latest(cell: CellView, name: str) -> float | None:
    found = cell.run.latest.get(name)
    return None if found is None else found.value


def _trend(cell: CellView, width: int) -> str:
    return formats.sparkline(cell.run.trend, width, unicode=unicode_safe())


def _length(markup: str) -> int:
    from rich.text import Text

    return Text.from_markup(markup).cell_len


def _cut(markup: str, width: int) -> Text:
    from rich.text import Text

    text = Text.from_markup(markup)
    text.truncate(width, overflow="ellipsis")
    return text


def headline(sweep: SweepDetail) -> str:
    """``lr-grid   running 7 · done 1 · waiting 0   step 412/1,000   ETA 21 m``, as markup."""
    counts = sweep.counts
    running = sum(n for state, n in counts.items() if state not in _DONE | _WAITING)
    parts = [f"running {running}"] if running else []
    parts += [f"done {counts.get('completed', 0)}"]
    parts += [f"waiting {n}" for n in [sum(counts.get(s, 0) for s in _WAITING)] if n]
    parts += [f"{s} {counts[s]}" for s in ("failed", "cancelled", "pruned") if counts.get(s)]
    text = f"[bold]{sweep.name}[/]   {' · '.join(parts)}"
    totals = {cell.run.total_steps for cell in sweep.cells}
    if len(totals) == 1 and sweep.state != "finished":
        steps = [cell.run.step or 0 for cell in sweep.cells]
        text += f"   step {sum(steps) // max(len(steps), 1):,}/{totals.pop():,}"
    eta = sweep_eta(sweep)
    if eta is not None:
        text += f"   ETA {formats.duration(eta)}"
    return text


def sweep_eta(sweep: SweepDetail) -> float | None:
    """Seconds to the end of the last run; None while nothing allows a guess.

    Waiting runs are taken to need as long as the running ones, on as many places.
    """
    if sweep.state == "finished":
        return None
    active = [cell.run for cell in sweep.cells if cell.run.state in {"running", "starting"}]
    known = [run for run in active if run.eta_s is not None and run.started_at is not None]
    if not known:
        return None
    longest = max(run.eta_s or 0.0 for run in known)
    waiting = sum(cell.run.state == "queued" for cell in sweep.cells)
    if not waiting:
        return longest
    whole = [_whole_s(run) for run in known]
    waves = -(-waiting // len(active))
    return longest + waves * sum(whole) / len(whole)


def _whole_s(run: RunView) -> float:
    """Seconds from its first step to its last, by what is left, or at the end by its last step."""
    share = (run.step or 0) / run.total_steps
    if share < 1:
        return (run.eta_s or 0.0) / (1 - share)
    step = run.latest.get("step_time_s")
    return 0.0 if step is None else step.value * run.total_steps


def _rank(cell: CellView) -> tuple[bool, int, int]:
    return (cell.rank is None, cell.rank or 0, cell.number)


def _done(run: RunView, *, bar: bool) -> str:
    share = min((run.step or 0) / run.total_steps, 1.0)
    text = f"{share * 100:.0f} %"
    if not bar:
        return text
    full = round(share * _BAR)
    whole, empty = ("━", "─") if unicode_safe() else ("#", "-")
    return f"[green]{whole * full}[/][dim]{empty * (_BAR - full)}[/] {text:>5}"


def _place(cell: CellView, several_nodes: bool) -> str:
    places = cell.run.placement
    if not places or cell.run.state in _DONE | _WAITING:
        return ""
    if several_nodes:
        return ",".join(f"{gpu.node}:{gpu.gpu}" for gpu in places)
    return ",".join(str(gpu.gpu) for gpu in places)


def _state(cell: CellView) -> str:
    run = cell.run
    if run.state == "queued":
        return state_text("queued", run.pending_reason)
    if run.state in {"starting", "running"} and not run.step:
        return state_text(run.state, run.reason)
    if run.state in {"running", "stopping"}:
        silence = f", {run.silence}" if run.silence != "none" else ""
        return f"{state_text(run.state)} {formats.count(run.step)}{silence}"
    if run.state == "completed":
        return state_text("completed")
    return state_text(run.state, run.reason)
