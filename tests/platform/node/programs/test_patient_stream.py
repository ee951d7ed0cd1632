"""Records that wait for space on the disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lehr.node.programs import recorder
from lehr.node.programs.recorder import PatientStream
from lehr_trainer.contract.records import Metrics
from lehr_trainer.errors import DiskFull
from lehr_trainer.runtime.event_stream import EventStream


class Disk(EventStream):
    """A stream whose disk is full while ``full`` is set."""

    full = False

    def write(self, record):
        if self.full:
            raise DiskFull("no space left")
        super().write(record)


@pytest.fixture
def disk(tmp_path: Path):
    with Disk(tmp_path / "events.jsonl") as disk:
        yield disk


def metrics(step: int) -> Metrics:
    return Metrics(time=1.0, step=step, tokens=step, values={"loss": 1.0})


def steps(disk: Disk) -> list[int]:
    assert disk.path is not None
    return [json.loads(line)["step"] for line in disk.path.read_text().splitlines()]


def test_records_are_written_in_order_when_there_is_space_again(disk):
    stream = PatientStream(disk)
    stream.write(metrics(1))
    disk.full = True
    for step in (2, 3):
        stream.write(metrics(step))
    assert not stream.flush()
    assert steps(disk) == [1]
    disk.full = False
    stream.write(metrics(4))
    assert stream.flush()
    assert steps(disk) == [1, 2, 3, 4]


def test_a_disk_that_stays_full_is_an_error_at_the_end(disk, monkeypatch):
    monkeypatch.setattr(recorder, "_LAST_S", 0.0)
    stream = PatientStream(disk)
    disk.full = True
    stream.write(metrics(1))
    with pytest.raises(DiskFull):
        stream.finish()
