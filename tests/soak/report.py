"""The report of a soak: what ran, what befell it, what was wrong, and what grew."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from soak import samples
from soak.flatness import Point, Trend, trend
from soak.samples import Sample

WARM_UP_H = 10 / 60
AVERAGE_H = 2 / 60


@dataclass(frozen=True)
class Measure:
    title: str
    value: Callable[[Sample], float]
    life: Callable[[Sample], str]
    limit: float
    """Growth per hour below which it is flat."""
    unit: str = "MB"
    at_rest: bool = False
    """Judged by the samples at the ends of chapters alone: between them it follows the runs."""


def _one_life(_: Sample) -> str:
    return ""


MEASURES = (
    Measure("memory of the server", lambda s: s.server_mb, lambda s: s.server, 6.0),
    Measure("handles of the server", lambda s: s.server_handles, lambda s: s.server, 3.0, ""),
    Measure("threads of the server", lambda s: s.server_threads, lambda s: s.server, 2.0, ""),
    Measure("memory of the bridge", lambda s: s.bridge_mb, lambda s: s.bridge, 6.0),
    Measure("memory of an agent", lambda s: s.agent_mb, lambda s: s.agent, 6.0),
    Measure("memory of a keeper", lambda s: s.keeper_mb, lambda s: s.keeper, 3.0),
    Measure("write-ahead logs", lambda s: s.wal_mb, _one_life, 4.0),
    Measure("streams.db", lambda s: s.streams_db_mb, _one_life, 2.0, at_rest=True),
    Measure("replica", lambda s: s.replica_mb, _one_life, 2.0, at_rest=True),
    Measure("state of attempts", lambda s: s.node_mb, _one_life, 2.0, at_rest=True),
    Measure("logs", lambda s: s.logs_mb, _one_life, 20.0, at_rest=True),
    Measure("lehr.db (records stay)", lambda s: s.lehr_db_mb, _one_life, 20.0, at_rest=True),
    Measure("disk of the home", lambda s: s.home_mb, _one_life, 40.0, at_rest=True),
)


@dataclass(frozen=True)
class Judged:
    measure: Measure
    found: Trend | None

    @property
    def verdict(self) -> str:
        return self.found.verdict(self.measure.limit) if self.found else "not known yet"


def judge(rows: Sequence[Sample]) -> list[Judged]:
    found = []
    for measure in MEASURES:
        points = [
            Point(row.hours, measure.life(row), measure.value(row))
            for row in rows
            if row.rest or not measure.at_rest
        ]
        if measure.at_rest:
            # The first two chapters fill it: old runs are deleted from then on.
            result = trend(points[2:], warm_up_h=0.0, average_h=0.0)
        else:
            living = [point for point in points if point.life or measure.life is _one_life]
            result = trend(living, warm_up_h=WARM_UP_H, average_h=AVERAGE_H)
        found.append(Judged(measure, result))
    return found


def write(folder: Path) -> tuple[str, bool]:
    """Write report.md from what the folder records; return it, and whether all is well."""
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    rows = samples.read(folder / "samples.csv")
    judged = judge(rows)
    breaches = [one["text"] for one in events if one["what"] == "breach"]
    grows = [one.measure.title for one in judged if one.verdict == "grows"]
    hours = rows[-1].hours if rows else 0.0
    calls, chapters = _number(events, "call"), _number(events, "chapter")
    lives = len({row.server for row in rows})
    text = "\n".join(
        [
            "# Soak",
            "",
            f"{hours:.2f} hours in {calls} calls, {chapters} chapters, {lives} lives of the server.",
            "",
            *_runs(events),
            "",
            *_faults(events),
            "",
            "## Broken rules",
            "",
            *(f"- {one}" for one in breaches or ["none"]),
            "",
            *_table(judged),
            "",
        ]
    )
    (folder / "report.md").write_text(text)
    return text, not breaches and not grows


def _number(events: Sequence[dict[str, Any]], what: str) -> int:
    return sum(one["what"] == what for one in events)


def _runs(events: Sequence[dict[str, Any]]) -> list[str]:
    ends: dict[str, Counter[str]] = defaultdict(Counter)
    attempts = 0
    for one in events:
        if one["what"] == "ended":
            ends[one["kind"]][one["state"]] += 1
            attempts += one["attempts"]
    total = sum(sum(states.values()) for states in ends.values())
    lines = [f"{total} runs ended and were judged, in {attempts} attempts.", ""]
    lines += ["| runs | ends |", "|---|---|"]
    for kind, states in sorted(ends.items()):
        lines.append(f"| {kind} | {', '.join(f'{n} {s}' for s, n in states.most_common())} |")
    return lines


def _faults(events: Sequence[dict[str, Any]]) -> list[str]:
    took: dict[str, list[float]] = defaultdict(list)
    for one in events:
        if one["what"] == "fault" and not one["done"].startswith(
            "no "
        ):  # Nothing was there to kill.
            took[one["kind"]].append(one["recovered_s"])
    lines = ["| fault | times | both nodes in use after, median | longest |", "|---|---|---|---|"]
    for kind, seconds in sorted(took.items()):
        lines.append(
            f"| {kind} | {len(seconds)} | {median(seconds):.0f} s | {max(seconds):.0f} s |"
        )
    return lines


def _table(judged: Sequence[Judged]) -> list[str]:
    lines = [
        "| measure | first | last | most | slope per hour, with 95 % interval | limit | verdict |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in judged:
        name, unit, found = one.measure.title, one.measure.unit, one.found
        if found is None:
            lines.append(f"| {name} | | | | | | not known yet |")
            continue
        lines.append(
            f"| {name} | {found.first:.4g} {unit} | {found.last:.4g} | {found.most:.4g} | "
            f"{found.slope:+.3g} ({found.low:+.3g} to {found.high:+.3g}) | {one.measure.limit:g} | "
            f"{one.verdict} |"
        )
    return lines
