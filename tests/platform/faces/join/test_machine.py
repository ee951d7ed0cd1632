"""What a machine asks of the server before it joins."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lehr.base import procfs
from lehr.cluster.ray_process import RayProcess
from lehr.errors import Conflict, RayStarting, UserError
from lehr.faces.join import machine, record
from lehr_trainer.contract.layout import RUNS_MARKER


class StartingServer:
    """Answers like a server whose Ray is up after some requests."""

    def __init__(self, refusals: int, answer: Exception | None = None) -> None:
        self.refusals = refusals
        self.answer = answer or RayStarting("Ray is still starting.")
        self.asked: list[str] = []

    def join_cluster(self, name: str, *, check: bool) -> str:
        assert not check
        self.asked.append(name)
        if len(self.asked) <= self.refusals:
            raise self.answer
        return f"view of {name}"


def test_server_whose_ray_is_starting_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "RETRY_S", 0.0)
    server: Any = StartingServer(refusals=3)
    view, (asked, answered) = machine.ask(server, "gpu-2")
    assert str(view) == "view of gpu-2"
    assert asked <= answered
    assert server.asked == ["gpu-2"] * 4


BEFORE = record.JoinRecord("http://10.0.0.1:5347", "gpu-2", "t", 4, logical=True, runs_dir="/mnt/a")


def this_process() -> RayProcess:
    started = procfs.start_time(os.getpid())
    assert started is not None
    return RayProcess("10.0.0.1:6379", 1, "mark", os.getpid(), started, procfs.boot_id())


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"gpus": 2}, "--gpus 2 instead of 4"),
        ({"runs_dir": "/mnt/b"}, "--runs /mnt/b instead of /mnt/a"),
        ({"node": "gpu-3"}, "--name gpu-3 instead of gpu-2"),
        ({"interface": "eth1"}, "--interface eth1 instead of none"),
    ],
)
def test_machine_in_the_cluster_does_not_change_what_its_trainings_use(
    tmp_path: Path, change: dict[str, Any], text: str
) -> None:
    record.write(tmp_path, BEFORE)
    record.write_ray(tmp_path, this_process())
    wanted = replace(BEFORE, **change)
    with pytest.raises(Conflict, match="would change") as raised:
        machine.refuse_changes(tmp_path, wanted)
    assert text in raised.value.message
    assert "lehr node leave, then join" in str(raised.value.hint)
    # It has ended: its trainings did, too, or go on as they are.
    record.write_ray(tmp_path, replace(this_process(), start_time=1))
    machine.refuse_changes(tmp_path, wanted)


def test_machine_in_the_cluster_may_join_again_and_reach_its_server_otherwise(
    tmp_path: Path,
) -> None:
    record.write(tmp_path, BEFORE)
    record.write_ray(tmp_path, this_process())
    moved = replace(BEFORE, node_token="other", server_url="https://a", ca_file="/etc/ca.pem")
    machine.refuse_changes(tmp_path, moved)


def test_folder_of_runs_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    machine.make_runs_folder(replace(BEFORE, runs_dir=str(tmp_path / "runs")))
    assert (tmp_path / "runs" / RUNS_MARKER).exists()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file/runs, cannot be read and written"):
        machine.make_runs_folder(replace(BEFORE, runs_dir=str(tmp_path / "file" / "runs")))
