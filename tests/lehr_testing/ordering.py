"""Which tests stay together in one worker, and which begin: those that take longest.

A file's tests stay together, for they share its fixtures. Tests with the marker
``xdist_group("name")`` stay together across files. The measured times are in
``tests/durations.json``; ``make durations`` renews them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pytest

from lehr_testing.paths import ROOT, TESTS

DURATIONS = TESTS / "durations.json"
UNKNOWN_S = 5.0
"""Of a file that was never measured: it must not come last, where it would be waited for."""


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


def known_durations() -> dict[str, float]:
    """Seconds by file."""
    try:
        return json.loads(DURATIONS.read_text())
    except FileNotFoundError:
        return {}


def sort(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the groups that take longest first; within a group the order stays."""
    durations = known_durations()
    files: dict[str, set[str]] = defaultdict(set)
    groups = {item: group_of(item) for item in items}
    for item, group in groups.items():
        files[group].add(file_of(item.nodeid))
    seconds = {
        group: sum(durations.get(file, UNKNOWN_S) for file in members)
        for group, members in files.items()
    }
    items.sort(key=lambda item: (-seconds[groups[item]], groups[item]))


def make_scheduler(config: pytest.Config, log: Any) -> Any:
    """pytest-xdist's for ``--dist loadgroup``, with a file as the group of what names none."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    class Scheduling(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return file_of(super()._split_scope(nodeid))

    # Else it would put first what has most tests, not what takes longest.
    config.option.loadscopereorder = False
    return Scheduling(config, log)


def write_durations(seconds: Mapping[str, float]) -> None:
    """Keep the seconds of each file that ran; those of the others stay as they were."""
    measured: dict[str, float] = defaultdict(float)
    for nodeid, taken in seconds.items():
        measured[file_of(nodeid)] += taken
    known = {**known_durations(), **measured}
    rounded = {file: round(known[file], 1) for file in sorted(known) if (ROOT / file).is_file()}
    DURATIONS.write_text(json.dumps(rounded, indent=1) + "\n")
