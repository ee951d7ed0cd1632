"""``lehr compare``: runs side by side, at equal step, tokens, time or FLOPs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lehr.analysis.significance import PLUS_MINUS
from lehr.base import formats
from lehr.base.names import ARGUMENTS, is_rate
from lehr.errors import UserError
from lehr.faces.cli.connect import connect
from lehr.faces.cli.output import (
    JsonOption,
    console,
    escaped,
    fitting,
    notes,
    print_json,
    state_text,
    table,
    warn,
)

if TYPE_CHECKING:
    from rich.table import Table

    from lehr.faces.client import Client
    from lehr.schemas.comparisons import ComparisonView, DifferenceView, RunResultView

app = typer.Typer(rich_markup_mode=None)
_AXES = {
    "step": lambda x: f"step {x:,.0f}",
    "tokens": lambda x: f"{formats.millions(round(x))} tokens",
    "time": lambda x: f"{formats.duration(x)} of training",
    "flops": lambda x: f"{formats.si(x)} FLOPs",
}
_LONGEST = 28
_DECIMALS = 5e-4
"""Smaller differences have no digit among four decimals."""
_NOTES = 8


@app.command("compare")
def compare(
    refs: Annotated[
        list[str],
        typer.Argument(
            metavar="REF REF...",
            help="Runs by id, unique prefix of an id, or name (if several have it: the one that "
            "trained; if several did, they are listed). A sweep means all its runs. The first is "
            "the baseline.",
        ),
    ],
    x: Annotated[
        Literal["step", "tokens", "time", "flops", "end"],
        typer.Option(
            "--x",
            help="Axis on which the runs are compared. end: each ended run by its last value, "
            "whatever their lengths.",
        ),
    ] = "step",
    metric: Annotated[
        str,
        typer.Option(
            "--metric",
            "-m",
            help="Metric to compare. Default: val/loss; where not all runs have it, one that "
            "they have.",
        ),
    ] = "",
    by: Annotated[
        str,
        typer.Option(
            help="Group the runs by a path of the config, a metric, tag or project; several with "
            "commas. val/loss makes groups of equal size, val/loss<2.5 the runs below and above."
        ),
    ] = "",
    factors: Annotated[
        bool, typer.Option("--factors", help="Show only differences that may change the outcome.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare runs: their configs, a metric at equal step (or by --x), batches, speed and memory.

    Warns when runs were evaluated on different held-out sets (a metric under val/ then has no
    delta), and when they differ in more than one factor. Runs that differ only in their seed are
    one group; a difference between groups is compared with the noise between seeds.

    JSON: {comparison: ComparisonView}.
    """
    client = connect()
    with notes().status("Reading the runs"):
        ids = _run_ids(client, refs)
        if len(ids) < 2:
            raise UserError(
                f"a comparison needs at least two runs; got {len(ids)}.",
                hint="lehr compare BASELINE OTHER...   The last runs: lehr ls",
            )
        found = client.compare(*ids, metric=metric, x=x, by=by)
    if as_json:
        print_json({"comparison": found})
        return
    out = console()
    if found.held_out_note:
        warn(found.held_out_note)
    out.print(_headline(found))
    spare = ["highest memory", "median MFU", "median tok/s", "id", "state", ""]
    out.print(fitting(_standings(found), out, fold="run", spare=spare))
    out.print(f"  differences are from {escaped(found.results[0].name)}, the baseline", style="dim")
    if found.groups:
        out.print()
        out.print(fitting(_groups(found), out, fold="group"))
        names = {one.run_id: one.name for one in found.results}
        for name, far in ((one.name, one.far) for one in found.groups if one.far):
            left = ", ".join(names[run_id] for run_id in far)
            out.print(f"  {escaped(name)}: without {escaped(left)}, far off", style="dim")
    shown = [one for one in found.differences if one.factor or not (factors or one.path == "name")]
    few = [one for one in shown if not _only_of_some(one)]
    # Between a script and Lehr's trainer, all settings of either are others.
    shown, left_out = (
        (few, len(shown) - len(few)) if "train" in (d.path for d in shown) else (shown, 0)
    )
    out.print()
    if shown:
        last = [str(number) for number in range(len(found.runs), 2, -1)]
        rows = fitting(_differences(shown, len(found.runs)), out, fold="what differs", spare=last)
        out.print(rows)
        if hidden := len(found.runs) + 2 - len(rows.columns):
            more = formats.counted(hidden, "run")
            out.print(f"  and {more}: add --json, or widen the terminal", style="dim")
        out.print("  [dim]* may change the outcome[/]")
        if left_out:
            some = formats.counted(left_out, "setting")
            out.print(f"  and {some} that only some of the runs have: add --json", style="dim")
    else:
        out.print("Their configs are the same.")
    batches = f"batches: {escaped(found.batches_note)}"
    out.print(f"\n[dim]{batches}[/]" if found.batches == "unknown" else f"\n{batches}")
    out.print(_noise(found))
    for mean in found.means[:_NOTES]:
        out.print(escaped(mean))
    halves = [gap.sentence.partition(", but ") for gap in found.gaps[:_NOTES]]
    rests = list(dict.fromkeys(rest for _, _, rest in halves))
    if len(halves) > 1 and len(rests) == 1 and rests[0]:  # Say once what holds of all.
        halves = [
            *((f"{half}.", "", "") for half, _, _ in halves),
            (rests[0][0].upper() + rests[0][1:], "", ""),
        ]
    for half in halves:
        out.print(escaped("".join(half)))
    if len(found.gaps) > _NOTES:
        out.print(f"  and {len(found.gaps) - _NOTES} more: add --json", style="dim")
    if found.means or any(gap.half_width is not None for gap in found.gaps):
        out.print(PLUS_MINUS, style="dim")
    others = [note for note in found.notes if note != found.held_out_note]
    for note in others[:_NOTES]:
        warn(note)
    if len(others) > _NOTES:
        out.print(f"  and {len(others) - _NOTES} more: add --json", style="dim")


@app.command("judge")
def judge(
    ref: Annotated[
        str | None, typer.Argument(help="Run that makes a claim. Default: list your claims.")
    ] = None,
    add_seeds: Annotated[
        bool, typer.Option("--add-seeds", help="Start the next pairs of runs that decide it.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Judge the claim of a run (hypothesis and baseline in its spec): keep, reject or undecided.

    Only pairs of runs count that --add-seeds started. JSON: {claims: [ClaimView]}.
    """
    client = connect()
    judged = client.claims() if ref is None else [client.run(ref).judge(add_seeds=add_seeds)]
    if as_json:
        print_json({"claims": judged})
        return
    for claim in judged:
        what = f"{escaped(claim.hypothesis)} (than {claim.baseline}): {escaped(claim.sentence)}"
        console().print(f"{claim.number:>3}  {claim.run_id}  [bold]{claim.verdict}[/]  {what}")
    if not judged:
        notes().print("No claims. A run makes one by hypothesis and baseline in its spec.")


def _run_ids(client: Client, refs: list[str]) -> list[str]:
    """Return the ids of the runs to compare; those of a sweep are its trials, best first."""
    from lehr.faces.client import Sweep

    ids: list[str] = []
    for ref in refs:
        found = client.find(ref, "compare")
        ids += (
            [trial.run.id for trial in found.results()] if isinstance(found, Sweep) else [found.id]
        )
    return list(dict.fromkeys(ids))


def _headline(found: ComparisonView) -> str:
    metric = escaped(found.metric)
    if found.common_x is None:
        return (
            f"[bold]{metric}[/]: no point that all runs reached has a value; --x end takes the last"
        )
    if found.x_axis == "end":
        return f"[bold]{metric} at the end of each run[/]"
    at = _AXES[found.x_axis](found.common_x)
    whole = all(one.value is not None for one in found.results)
    number = len(found.runs)
    every = "both runs" if number == 2 else f"all {number} runs"
    runs = every if whole else "every run with a value"
    return f"[bold]{metric} at {at}[/], the last point that {runs} reached"


def _standings(found: ComparisonView) -> Table:
    figures = ["median tok/s", "median MFU", "highest memory"]
    columns = ["#", "run", "id", "state", escaped(found.metric), "delta", "", *figures]
    rows = table(*columns, right=("#", escaped(found.metric), "delta", *figures))
    results = [one.value for one in found.results]
    values = [value for value in results if value is not None and math.isfinite(value)]
    choose = {"minimize": min, "maximize": max, None: None}[found.goal]
    best = choose(values) if choose and values and found.held_out_note is None else None
    base = found.results[0]
    remarks = _remarks(found)
    for number, one in enumerate(found.results, start=1):
        trials = [
            str(number),
            escaped(one.name),
            one.run_id,
            state_text(one.state),
            formats.loss(one.value),
            "baseline" if one is base else signed(one.delta),
            "" if found.common_x is None else _remark(one, remarks),
            _beside(one.tokens_per_s, base.tokens_per_s, formats.si(one.tokens_per_s), one is base),
        ]
        memory = formats.size(one.memory_bytes)
        memory = _beside(one.memory_bytes, base.memory_bytes, memory, one is base)
        trials += [formats.share(one.mfu), memory]
        rows.add_row(*trials, style="bold" if best is not None and one.value == best else None)
    return rows


def _groups(found: ComparisonView) -> Table:
    metric = escaped(found.metric)
    rows = table("group", "runs", metric, "±", "delta", right=("runs", metric, "±", "delta"))
    base = found.groups[0]
    for one in found.groups:
        delta = None if one.mean is None or base.mean is None else one.mean - base.mean
        every = one.count == len(one.run_ids)
        rows.add_row(
            escaped(one.name),
            str(one.count) if every else f"{one.count} of {len(one.run_ids)}",
            formats.loss(one.mean),
            formats.loss(one.deviation),
            "first group" if one is base else signed(delta),
        )
    return rows


def signed(value: float | None) -> str:
    """Format a difference: +0.012; one that three decimals would hide as +1.2e-6."""
    if value is None:
        return formats.NOTHING
    hidden = value and math.isfinite(value) and abs(value) < _DECIMALS
    if not hidden:
        return f"{value:+.3f}"
    return f"{'+' if value > 0 else ''}{formats.scientific(value, 2)}"


def _remarks(found: ComparisonView) -> dict[str, str]:
    """Return the remark beside the delta of a run, by id."""
    remarks = {}
    for gap in found.gaps:
        remarks.update(dict.fromkeys(gap.base_ids[1:], "other seed"))
        if gap.verdict == "within_noise":
            remarks.update(dict.fromkeys(gap.run_ids, "within noise"))
    return remarks


def _remark(one: RunResultView, remarks: dict[str, str]) -> str:
    if one.incomparable:
        return f"[yellow]{escaped(one.incomparable)}[/]"
    return f"[dim]{remarks.get(one.run_id, '')}[/]"


def _beside(value: float | None, base: float | None, text: str, is_base: bool) -> str:
    """Append the difference from the baseline in percent."""
    if is_base or not value or not base:
        return text
    change = round((value / base - 1) * 100)
    return f"{text} [dim]{change:+d} %[/]" if change else text


def _differences(shown: list[DifferenceView], runs: int) -> Table:
    rows = table("", "what differs", *(str(number + 1) for number in range(runs)))
    for one in shown:
        values = [escaped(text) for text in _texts(one.values, one.path)]
        rows.add_row("*" if one.factor else "", escaped(one.path), *values)
    return rows


def _only_of_some(one: DifferenceView) -> bool:
    """Return whether a setting of a trainer, not a rate, is equal in all runs that have it."""
    values = {repr(value) for value in one.values if value is not None}
    own = one.path.startswith("train") and not one.path.startswith(ARGUMENTS)
    return own and not is_rate(one.path) and len(values - {repr(formats.NOTHING)}) < 2


def _texts(values: list[Any], path: str) -> list[str]:
    if path.endswith("digest"):
        values = [str(value)[:12] for value in values]
    texts = [formats.parameter("null" if value is None else value, path) for value in values]
    return [text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..." for text in texts]


def _noise(found: ComparisonView) -> str:
    if found.noise is None:
        return f"[dim]noise between seeds: unknown; {found.noise_note}[/]"
    of = escaped(", ".join(filter(None, [found.metric, found.noise_note])))
    return f"noise between seeds: {found.noise:.2g} (standard deviation of {of})"
