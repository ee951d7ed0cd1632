"""The report of a session: ``report.md`` for people, ``report.json`` for programs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from first_hour.parts import Machine, Outcome, Part, Session

REHEARSED = (
    "**A rehearsal on a CPU.** It shows that the commands work. Its figures mean nothing for a GPU."
)
NOT_RUN = "not run yet"


def write_report(
    session: Session,
    parts: Sequence[Part],
    outcomes: Sequence[Outcome | None],
    did_not_fit: Sequence[str] = (),
) -> Path:
    """Write both files and return the path of the Markdown.

    ``did_not_fit`` names the parts that did not begin because of the time limit.
    """
    path = session.folder / "report.md"
    for name, text in (
        ("report.json", json.dumps(as_dict(session, parts, outcomes, did_not_fit), indent=1)),
        ("report.md", markdown(session, parts, outcomes, did_not_fit)),
    ):
        temporary = session.folder / f"{name}.tmp"
        temporary.write_text(text)
        temporary.replace(session.folder / name)
    return path


def as_dict(
    session: Session,
    parts: Sequence[Part],
    outcomes: Sequence[Outcome | None],
    did_not_fit: Sequence[str] = (),
) -> dict[str, Any]:
    return {
        "machine": {**session.machine.identity(), "commit": session.machine.commit},
        "rehearsal": not session.machine.on_cuda,
        "counts": dict(_counts(outcomes)),
        "did_not_fit": {"minutes": session.settings.minutes, "parts": list(did_not_fit)}
        if did_not_fit
        else None,
        "parts": [
            {"name": part.name, "group": part.group, "status": NOT_RUN}
            if outcome is None
            else outcome.as_dict()
            for part, outcome in zip(parts, outcomes, strict=True)
        ],
    }


def markdown(
    session: Session,
    parts: Sequence[Part],
    outcomes: Sequence[Outcome | None],
    did_not_fit: Sequence[str] = (),
) -> str:
    machine = session.machine
    counts = ", ".join(f"{count} {status}" for status, count in _counts(outcomes).items())
    gpus = Counter(machine.gpus)
    where = ", ".join(f"{count} x {name}" for name, count in gpus.items()) or "the CPU"
    lines = [
        f"# GPU report: {where}",
        "",
        *([REHEARSED, ""] if not machine.on_cuda else []),
        f"torch {machine.torch}; {_code(machine)}. Parts: {counts}.",
    ]
    if did_not_fit:
        minutes = f"{session.settings.minutes:g} minutes"
        names = ", ".join(did_not_fit)
        lines += ["", f"**Not run, because they did not fit into {minutes}:** {names}."]
    for group in dict.fromkeys(part.group for part in parts):
        members = [
            (part, outcome)
            for part, outcome in zip(parts, outcomes, strict=True)
            if part.group == group
        ]
        lines += ["", f"## {group}", "", *_table(members, machine.commit)]
        lines += [
            line
            for _, outcome in members
            if outcome is not None and outcome.text
            for line in ("", outcome.text)
        ]
    return "\n".join(lines) + "\n"


def _code(machine: Machine) -> str:
    return f"commit {machine.commit}" if machine.commit else "code with uncommitted changes"


def _counts(outcomes: Sequence[Outcome | None]) -> Counter[str]:
    return Counter(NOT_RUN if outcome is None else outcome.status for outcome in outcomes)


def _table(members: Sequence[tuple[Part, Outcome | None]], commit: str | None) -> list[str]:
    names = list(dict.fromkeys(name for _, o in members if o is not None for name in o.figures))
    rows = [["", "status", "seconds", *names, "note"]]
    for part, outcome in members:
        if outcome is None:
            rows.append([part.name, NOT_RUN, "", *[""] * len(names), ""])
            continue
        note = outcome.reason
        if outcome.commit != commit:
            note = f"{note} (at commit {outcome.commit or 'unknown'})".strip()
        figures = [shown(outcome.figures.get(name)) for name in names]
        rows.append([part.name, outcome.status, f"{outcome.seconds:.0f}", *figures, note])
    text = [[" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in rows]
    return [
        f"| {' | '.join(text[0])} |",
        f"|{'---|' * len(text[0])}",
        *(f"| {' | '.join(row)} |" for row in text[1:]),
    ]


def shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return str(value)
