"""Which rank a run hangs on, from what each rank reports of itself. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Collective(NamedTuple):
    """A collective that a rank has entered."""

    group: str
    number: int
    """In its group, from 1."""
    operation: str
    size: int
    state: str
    """scheduled, started or completed on the GPU; gloo's stay scheduled."""
    created_ns: int
    """Nanoseconds since 1970, by the clock of the rank's host."""


@dataclass(frozen=True)
class Report:
    """What a rank reports of itself when its steps have stopped."""

    rank: int
    host: str
    """Name of its node; without the platform, that of its machine."""
    step: int
    place: str
    """The innermost function that is neither torch's nor Python's own."""
    collectives: list[Collective] = field(default_factory=list)
    """The last ones, oldest first."""
    groups: dict[str, list[int]] = field(default_factory=dict)
    """Ranks of its process groups, by name."""
    buckets: list[tuple[int, str]] = field(default_factory=list)
    """Size and layers of DDP's buckets, in the order in which they are sent."""
    batches: list[tuple[int, int, int]] = field(default_factory=list)
    """Step, micro-step and digest of the last ones."""
    stacks: dict[str, list[tuple[str, str, int]]] = field(default_factory=dict)
    """Function, file and line by thread, innermost first."""
    system: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Report:
        """Return a report that was sent as JSON."""
        return cls(**{**content, "collectives": [Collective(*c) for c in content["collectives"]]})


class _Gap(NamedTuple):
    """A collective that some ranks of its group have not reached, and others have passed."""

    behind: tuple[int, ...]
    ahead: frozenset[int]
    text: str
    created_ns: int
    usual: int
    """How often it came next before."""


def judge(
    reports: Mapping[int, Report], hosts: Mapping[int, str], silent: Mapping[int, str]
) -> str:
    """Return the sentence that names the ranks on which the others wait, and in what.

    ``hosts``: of all ranks. ``silent``: ranks without a report, each with what is known of it.
    """
    head = f"hang at step {min(report.step for report in reports.values()) + 1:,}: "
    first = reports[min(reports)]
    last = _named(first, first.collectives[-1]) if first.collectives else "no collective"
    if silent:
        known = " or ".join(dict.fromkeys(silent.values()))
        return (
            f"{head}{_names(silent, hosts)} cannot answer: {known}; rank {first.rank} is in {last}"
        )
    gaps, has_not = _at_fault(reports, started=False), "not entered"
    if not gaps:
        gaps, has_not = _at_fault(reports, started=True), "not started, on its GPU,"
    if not gaps:
        where = " and ".join(sorted({report.place for report in reports.values()})[:3])
        return f"{head}all ranks have entered {last}, and none waits for another, in {where}"
    if len(gaps) > 1:
        waits = " and ".join(f"rank {min(gap.ahead)} is in {gap.text}" for gap in gaps[:2])
        return f"{head}one of the ranks has left out a collective: {waits}"
    ranks, text = gaps[0].behind, gaps[0].text
    has, whose = ("has", "its") if len(ranks) == 1 else ("have", f"rank {ranks[0]}'s")
    place = f"{whose} Python is in {reports[ranks[0]].place}"
    return f"{head}{_names(ranks, hosts)} {has} {has_not} {text}; {place}"


def _at_fault(reports: Mapping[int, Report], *, started: bool) -> list[_Gap]:
    """Return the gap of the ranks at fault, or several if it is not clear who is.

    Ranks that others wait for, and that wait for nobody, are at fault. Where each waits for
    another, a rank has left out a collective: a single one among several, or the one that lacks
    what came next before.
    """
    gaps = _gaps(reports, started=started)
    waiting = {rank for gap in gaps for rank in gap.ahead}
    if roots := [gap for gap in gaps if waiting.isdisjoint(gap.behind)]:
        return [min(roots, key=lambda gap: gap.created_ns)]
    best = max(((-len(gap.behind), gap.usual) for gap in gaps), default=None)
    equal = {gap.behind: gap for gap in gaps if (-len(gap.behind), gap.usual) == best}
    return [*equal.values()]


def _gaps(reports: Mapping[int, Report], *, started: bool) -> list[_Gap]:
    """Return, by group, the first collective that not all of its ranks have entered, or started."""
    found = []
    for name in sorted({name for report in reports.values() for name in report.groups}):
        last = {}
        for rank, report in reports.items():
            mine = [one for one in report.collectives if one.group == name]
            reached = [one.number for one in mine if not started or one.state != "scheduled"]
            if name in report.groups:
                last[rank] = max(reached, default=0)
        least = min(last.values())
        behind = tuple(sorted(rank for rank, number in last.items() if number == least))
        ahead = frozenset(last) - frozenset(behind)
        for rank in sorted(ahead):
            entered = reports[rank].collectives
            kinds = [(one.group, one.operation, one.size) for one in entered]
            at = next((n for n, one in enumerate(entered) if one[:2] == (name, least + 1)), None)
            if at is not None:
                pair = kinds[max(0, at - 1) : at + 1]
                usual = sum(kinds[before : before + 2] == pair for before in range(at - 1))
                text = _named(reports[rank], entered[at])
                found.append(_Gap(behind, ahead, text, entered[at].created_ns, usual))
                break
    return found


def _names(ranks: Collection[int], hosts: Mapping[int, str]) -> str:
    on = {hosts[rank] for rank in ranks}
    if len(on) > 1:
        return "ranks " + ", ".join(f"{rank} ({hosts[rank]})" for rank in sorted(ranks))
    numbers = ", ".join(map(str, sorted(ranks)))
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {numbers} on {on.pop()}"


def _named(report: Report, collective: Collective) -> str:
    """Return e.g. ``all-reduce 4,211 (layers.7)``.

    DDP's buckets are told apart by their order, since many have one size.
    """
    operation = collective.operation.strip("_").removesuffix("_base").replace("_", "-")
    text, place = f"{operation} {collective.number:,}", 0
    for one in report.collectives if report.buckets else ():
        if one.group == collective.group:
            if one.size != report.buckets[place][0]:
                place = 0
            size, layers = report.buckets[place]
            if one.number == collective.number:
                return f"{text} ({layers})" if one.size == size else text
            place = (place + (one.size == size)) % len(report.buckets)
    return text
