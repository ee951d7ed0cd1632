"""Which tests stay together in one worker, and which begin: those that take longest.

A file's tests stay together, for they share its fixtures. Tests with the marker
``xdist_group("name")`` stay together across files. The measured times are in
``tests/durations.json``; ``make durations`` renews them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lehr_testing.paths import ROOT, TESTS

DURATIONS = TESTS / "durations.json"
UNKNOWN_S = 5.0
"""Of a file that was never measured: it must not come last, where it would be waited for."""

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


def send_groups(workerinput: dict[str, Any], items: list[pytest.Item]) -> None:
    """Write which tests belong to a named group, for the process that deals them out.

    It sees node ids only. pytest-xdist 3.8 appends the group to them in a field that pytest 9.2
    no longer reads, and so would scatter every group.
    """
    if workerinput["workerid"] == "gw0":
        named = {item.nodeid: group_of(item) for item in items}
        named = {name: group for name, group in named.items() if group != file_of(name)}
        Path(workerinput[GROUPS_INPUT]).write_text(json.dumps(named))


def make_scheduler(config: pytest.Config, log: Any) -> Any:
    """pytest-xdist's scheduler for ``--dist loadgroup``, with the groups of this module."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    class Scheduling(LoadGroupScheduling):
        named: dict[str, str] | None = None

        def _split_scope(self, nodeid: str) -> str:
            if self.named is None:
                self.named = json.loads(config.stash[GROUPS_FILE].read_text())
            return self.named.get(nodeid) or file_of(nodeid)

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
