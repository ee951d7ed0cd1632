"""``lehr system``: what the nodes and GPUs of a run did while it ran."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from lehr import formats
from lehr.cli.connect import Ref, connect
from lehr.cli.output import (
    JsonOption,
    console,
    escaped,
    print_json,
    table,
    unicode_safe,
)

if TYPE_CHECKING:
    from lehr.schemas.system import SystemHistory

app = typer.Typer(rich_markup_mode=None)
Values = Sequence["float | None"]


@app.command("system")
def system(
    ref: Ref,
    attempt: Annotated[
        int | None, typer.Option(min=1, help="Number of the attempt. Default: the newest.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the use of CPUs, memory and GPUs while a run trained: mean, peak and history.

    JSON: RunSystem, with all attempts unless one is named.
    """
    run = connect().run(ref)
    if as_json:
        print_json(run.system(attempt=attempt))
        return
    if run.attempt == 0:
        console().print(f"{escaped(run.name)} has not been started yet.")
        return
    for one in run.system(attempt=attempt or run.attempt).attempts:
        console().print(f"[bold]{escaped(run.name)}[/], attempt {one.number}", highlight=False)
        for node in one.nodes:
            history_table(node)


def history_table(history: SystemHistory) -> None:
    """Print a node's figures: last, mean, highest, and a sparkline."""
    rows = table("", "last", "mean", "highest", "", right=("last", "mean", "highest"))
    count = 0
    for name, values, text in _figures(history):
        known = [value for value in values if value is not None]
        if known:
            count += 1
            line = formats.sparkline(_thinned(known), 24, unicode=unicode_safe())
            mean = sum(known) / len(known)
            rows.add_row(name, text(known[-1]), text(mean), text(max(known)), line)
    out = console()
    if not count:
        out.print(f"Nothing was measured on {escaped(history.node)} in that time.")
        return
    span = formats.duration(len(history.times) * history.step_s)
    out.print(
        f"{escaped(history.node)}, {span}, a value each {formats.duration(history.step_s)}",
        highlight=False,
    )
    out.print(rows)


def _figures(history: SystemHistory) -> Iterator[tuple[str, Values, Callable[[float], str]]]:
    host = history.host
    yield "CPU", host.cpu, formats.share
    yield "memory", host.ram_used_bytes, formats.size
    yield "disk", host.disk_used_bytes, formats.size
    yield "disk read", host.disk_read_bytes_per_s, _rate
    yield "disk written", host.disk_write_bytes_per_s, _rate
    yield "network in", host.network_in_bytes_per_s, _rate
    yield "network out", host.network_out_bytes_per_s, _rate
    for gpu in history.gpus:
        yield f"GPU {gpu.index}", gpu.utilization, formats.share
        yield f"GPU {gpu.index} memory", gpu.memory_used_bytes, formats.size
        yield f"GPU {gpu.index} power", gpu.power_watts, lambda value: f"{value:.0f} W"
        yield f"GPU {gpu.index} temperature", gpu.temperature_celsius, lambda v: f"{v:.0f} °C"


def _rate(value: float) -> str:
    return f"{formats.size(value)}/s"


def _thinned(values: Sequence[float], most: int = 24) -> list[float]:
    every = max(1, len(values) // most)
    return [max(values[i : i + every]) for i in range(0, len(values), every)]
