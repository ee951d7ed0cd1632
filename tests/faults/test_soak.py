"""A soak of a few minutes: its runs are judged, its faults healed, and its hours add up over two calls."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from lehr_testing.faults.hosts import hosts
from lehr_testing.waiting import until
from soak import report, samples
from soak.machines import Machines
from soak.session import Pace, Session

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(1200)]
PACE = Pace(
    chapter_s=60,
    run_s=6,
    fault_s=(3, 6),
    sample_s=5,
    faults=("trainer", "short cut", "server"),
)


@pytest.fixture(scope="module", autouse=True)
def machines_are_possible():
    with hosts("probe"):
        pass


def recorded(folder):
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def test_disk_is_mounted_again_while_another_namespace_has_a_copy(tmp_path):
    """As of another test: the copy is of the same file system, so nothing is written twice."""
    disk = Machines(tmp_path, print).alpha
    disk.mount()
    (disk.home / "first").write_text("1")
    copy = subprocess.Popen(["unshare", "--mount", "cat"], stdin=subprocess.PIPE)
    try:
        mine = Path("/proc/self/ns/mnt").readlink()
        until(
            lambda: Path(f"/proc/{copy.pid}/ns/mnt").readlink() != mine,
            within_s=30,
            what="the copy to be made",
        )
        subprocess.run(["umount", "--lazy", disk.home], check=True)
        disk.mount()
        assert (disk.home / "first").read_text() == "1"
        (disk.home / "second").write_text("2")
        seen = f"/proc/{copy.pid}/root{disk.home}/second"
        assert Path(seen).read_text() == "2"
    finally:
        copy.communicate()
        subprocess.run(["umount", "--lazy", disk.home], check=True)


def test_two_calls_judge_their_runs_and_add_up_in_one_report(tmp_path):
    Session(tmp_path, PACE, seed=7).run(60 / 3600)
    first = len(samples.read(tmp_path / "samples.csv"))
    second = Session(tmp_path, PACE, seed=8)
    assert second.hours_before >= 60 / 3600
    # What nobody could have done is found: the record knows nothing of this training.
    journal = tmp_path / "shared/witness/journal/planted-1.0.1.jsonl"
    planted = {"what": "began", "at": 1.0, "attempt": "planted-1", "rank": 0, "gpus": []}
    journal.write_text(json.dumps(planted) + "\n")
    second.run(60 / 3600)
    text, sound = report.write(tmp_path)
    events = recorded(tmp_path)
    assert [one["text"] for one in events if one["what"] == "breach"] == [
        "unknown: planted-1 was trained and is not recorded"
    ]
    assert not sound
    assert {one["kind"] for one in events if one["what"] == "fault"} == {
        *("trainer", "short cut", "server")
    }
    ended = [one for one in events if one["what"] == "ended"]
    assert len(ended) >= 8
    assert len({one["id"] for one in ended}) == len(ended)
    rows = samples.read(tmp_path / "samples.csv")
    assert first < len(rows)
    assert [row.hours for row in rows] == sorted(row.hours for row in rows)
    assert len({row.server for row in rows}) >= 3
    assert all(row.server_mb > 20 and row.server_handles > 10 for row in rows)
    assert "in 2 calls, 2 chapters" in text
    assert not list((tmp_path / "shared/disks").glob("*/lehr.db"))
