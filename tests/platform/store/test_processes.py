"""Guarantees of the store to other processes, despite kill -9 and full disks."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from lehr.store import Store
from lehr.store.upkeep.integrity import check
from lehr_testing.paths import TESTING
from lehr_testing.store_writer import source
from lehr_testing.stores import fresh_store, new_attempt, picture, same

WRITER = TESTING / "store_writer.py"


def writer(home: Path, attempt_id: str, name: str, chunk: int, *more: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(WRITER), str(home), attempt_id, name, str(chunk), *map(str, more)],
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("name", "seed", "kills"),
    [("events.jsonl", 1, 3), pytest.param("rank-0.log", 2, 12, marks=pytest.mark.nightly)],
)
def test_sigkill_during_an_append_loses_no_acknowledged_byte(
    tmp_path: Path, name: str, seed: int, kills: int
) -> None:
    rng = random.Random(seed)
    home = tmp_path / "home"
    with fresh_store(home) as store:
        attempt = new_attempt(store)
    acknowledged = 0
    for _ in range(kills):
        process = writer(home, attempt.id, name, rng.choice([100, 1_000, 70_000]))
        assert process.stdout is not None
        try:
            # Everything that it printed before the kill was on disk before.
            for _ in range(rng.randint(1, 25)):
                output = process.stdout.readline()
                assert output, "the writer ended by itself"
                offset = int(output)
                assert offset >= acknowledged
                acknowledged = offset
        finally:
            process.kill()
            rest, _ = process.communicate()
        whole = [text for text in rest.splitlines(keepends=True) if text.endswith("\n")]
        acknowledged = max([acknowledged, *(int(text) for text in whole)])
        assert process.returncode == -9
    with Store.open(home) as store:
        size = store.streams.sizes(attempt.id)[name]
        assert size >= acknowledged > 0
        file = (home / "replica" / attempt.id / name).read_bytes()
        assert file[:size] == source(name, size)
        if name == "events.jsonl":
            steps = file[:size].count(b"\n")
            series = store.series.read(attempt.run_id, "train/loss", exact=True)
            assert series.step == list(range(1, steps + 1))
            assert series.y == [step + 0.25 for step in range(1, steps + 1)]
        found = picture(store, attempt.run_id)
    assert [finding for finding in check(home) if finding.level == "error"] == []
    (home / "streams.db").unlink()
    with Store.open(home) as store:
        assert same(picture(store, attempt.run_id), found)


def test_full_disk_is_reported_and_only_stored_bytes_are_acknowledged(tmp_path: Path) -> None:
    """The kernel rejects files over a size limit, as on a full disk."""
    home = tmp_path / "home"
    with fresh_store(home) as store:
        attempt = new_attempt(store)
    process = writer(home, attempt.id, "rank-0.log", 50_000, 600_000)
    output, _ = process.communicate(timeout=120)
    *offsets, last = output.splitlines()
    assert last.startswith("StoreUnavailable: ")
    assert process.returncode == 0
    acknowledged = int(offsets[-1])
    assert acknowledged >= 50_000
    with Store.open(home) as store:
        size = store.streams.sizes(attempt.id)["rank-0.log"]
        assert size >= acknowledged
        assert store.streams.read(attempt.id, "rank-0.log", 0, size) == source("rank-0.log", size)
        # With free space it continues from there.
        more = source("rank-0.log", size + 1000)[size:]
        assert store.streams.append(attempt.id, "rank-0.log", size, more) == size + 1000
    assert [finding for finding in check(home) if finding.level == "error"] == []
