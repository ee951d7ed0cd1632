"""Which tests stay together in one worker, and in which order groups start.

A file's tests stay together, for they share its fixtures. Tests with the marker
``xdist_group("name")`` stay together across files.

Many groups wait most of their time, for Ray, a server or a browser; the others compute. If all
that wait ran first, the cores would be idle, and the rest would then share them. So there are more
workers than cores, and at most ``CORES`` of them run groups that compute. Of each kind the longest
comes first. ``tests/durations.json`` holds the measured times; ``make durations`` renews them.

``LEHR_TEST_ORDER=7`` shuffles the groups instead, with 7 as the seed: no group may need another.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import fsum
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from lehr_testing.paths import ROOT, TESTS

DURATIONS = TESTS / "durations.json"

COMPUTES = 0.35
"""From this share of processor time in its duration on, a group computes. Several workers share
the cores while it is measured, so the share of one that never waits is well below 1."""
CORES = os.cpu_count() or 1

GROUPS_FILE = pytest.StashKey[Path]()
GROUPS_INPUT = "lehr_groups"


def add_options(group: Any) -> None:
    group.addoption(
        "--write-durations",
        action="store_true",
        help="Write the seconds of every group of tests that ran to tests/durations.json",
    )


def group_of(item: pytest.Item) -> str:
    """The unit that one worker runs: the named group, or else the file."""
    names = sorted(
        str(mark.args[0] if mark.args else mark.kwargs["name"])
        for mark in item.iter_markers("xdist_group")
    )
    return "_".join(names) or file_of(item.nodeid)


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


class Taken(NamedTuple):
    """The time of the tests of a file or a group, in seconds."""

    duration: float
    processor: float
    """User and system time of the worker and of the processes that it started and awaited."""

    @property
    def computes(self) -> bool:
        return self.processor >= COMPUTES * self.duration


UNKNOWN = Taken(5.0, 5.0)
"""Of a file that was never measured: it must not come last, where it would be waited for."""


def known_durations() -> dict[str, Taken]:
    """Return the recorded time of each file."""
    try:
        known = json.loads(DURATIONS.read_text())
    except FileNotFoundError:
        return {}
    return {file: Taken(*taken) for file, taken in known.items()}


def total(files: Iterable[str], durations: Mapping[str, Taken]) -> Taken:
    """Return the time of these files together.

    The sum must not depend on their order: that of a set differs between workers, and groups that
    take equally long would be sorted differently.
    """
    taken = [durations.get(file, UNKNOWN) for file in files]
    return Taken(fsum(one.duration for one in taken), fsum(one.processor for one in taken))


def sort(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the groups that take longest first; within a group the order stays."""
    durations = known_durations()
    files: dict[str, set[str]] = defaultdict(set)
    groups = {item: group_of(item) for item in items}
    for item, group in groups.items():
        files[group].add(file_of(item.nodeid))
    seconds = {group: total(members, durations).duration for group, members in files.items()}
    if (seed := os.environ.get("LEHR_TEST_ORDER")) is not None:
        seconds = {group: Random(f"{seed} {group}").random() for group in sorted(seconds)}
    items.sort(key=lambda item: (-seconds[groups[item]], groups[item]))


def send_groups(workerinput: dict[str, Any], items: list[pytest.Item]) -> None:
    """Write which tests belong to a named group, for the process that distributes them.

    It sees node ids only. pytest-xdist 3.8 appends the group to them in a field that pytest 9.2
    no longer reads, and so would scatter every group.
    """
    if workerinput["workerid"] == "gw0":
        named = {item.nodeid: group_of(item) for item in items}
        named = {name: group for name, group in named.items() if group != file_of(name)}
        Path(workerinput[GROUPS_INPUT]).write_text(json.dumps(named))


def make_scheduler(config: pytest.Config, log: Any) -> Any:
    """pytest-xdist's scheduler for ``--dist loadgroup``, with this module's groups and order."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    durations = known_durations()

    class Scheduling(LoadGroupScheduling):
        named: dict[str, str] | None = None

        def _assign_work_unit(self, node: Any) -> None:
            """Give ``node`` the next group, of a kind that fits the groups of the other workers."""
            others = [work for other, work in self.assigned_work.items() if other is not node]
            computing = sum(
                any(
                    self._computes(group)
                    for group, tests in work.items()
                    if not all(tests.values())
                )
                for work in others
            )
            wanted = computing < CORES
            suited = (group for group in self.workqueue if self._computes(group) == wanted)
            if (group := next(suited, None)) is not None:
                self.workqueue.move_to_end(group, last=False)
            super()._assign_work_unit(node)

        def _computes(self, group: str) -> bool:
            files = {file_of(nodeid) for nodeid in self._tests_of(group)}
            return total(files, durations).computes

        def _tests_of(self, group: str) -> Iterable[str]:
            held = [self.workqueue, *self.assigned_work.values()]
            return next(work[group] for work in held if group in work)

        def _split_scope(self, nodeid: str) -> str:
            if self.named is None:
                self.named = json.loads(config.stash[GROUPS_FILE].read_text())
            return self.named.get(nodeid) or file_of(nodeid)

    # Else it would put first what has most tests, not what takes longest.
    config.option.loadscopereorder = False
    return Scheduling(config, log)


def write_durations(tests: Mapping[str, Taken]) -> None:
    """Store the time of each file that ran; keep the times of the others."""
    measured: dict[str, list[Taken]] = defaultdict(list)
    for nodeid, taken in tests.items():
        measured[file_of(nodeid)].append(taken)
    known = known_durations()
    for file, taken in measured.items():
        known[file] = Taken(sum(t.duration for t in taken), sum(t.processor for t in taken))
    lines = [
        f" {json.dumps(file)}: [{known[file].duration:.1f}, {known[file].processor:.1f}]"
        for file in sorted(known)
        if (ROOT / file).is_file()
    ]
    DURATIONS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
