"""The checks before a machine joins: each wrong thing is found, and has its cure."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from lehr.base import procfs
from lehr.cluster.ray_ports import Ports
from lehr.cluster.ray_process import RayProcess
from lehr.faces.join import machine, record
from lehr.faces.join.checks import Machine, check_machine
from lehr.schemas.cluster import JoinView

VERSIONS = {"python": "3.11.7", "ray": "2.60.0", "lehr": "1.0", "torch": "2.13.0", "nccl": "2.28"}
VIEW = JoinView(
    node="gpu-2",
    node_token="t",
    server_url="http://10.0.0.1:5347",
    ray_address="10.0.0.1:6379",
    versions=VERSIONS,
    runs_dir="/runs",
    runs_folder="a" * 32,
    time=0.0,
)
SOUND = Machine(
    versions=VERSIONS,
    gpus=8,
    logical=False,
    has_driver=True,
    address="10.0.0.2",
    ports_taken=[],
    head_error=None,
    clock_offset_s=0.1,
    home=Path("/home/lehr"),
    home_kind="ext4",
    runs_dir=Path("/runs"),
    runs_folder="a" * 32,
    free_bytes={Path("/runs"): 10**12},
)


def findings(machine, view=VIEW):
    return [check for check in check_machine(machine, view, Ports(6379)) if check.status != "ok"]


def test_sound_machine_has_no_finding():
    assert findings(SOUND) == []


@pytest.mark.parametrize(
    ("changes", "status", "name", "found", "cure"),
    [
        ({"versions": {**VERSIONS, "python": "3.11.9"}}, "bad", "Python", "3.11.9", "3.11.7"),
        ({"versions": {**VERSIONS, "ray": "2.59.0"}}, "bad", "Ray", "2.59.0", "ray==2.60.0"),
        ({"versions": {**VERSIONS, "torch": "2.12.0"}}, "bad", "torch", "2.12.0", "torch==2.13.0"),
        ({"versions": {**VERSIONS, "nccl": "2.27"}}, "bad", "NCCL", "2.27", "torch==2.13.0"),
        ({"versions": {**VERSIONS, "lehr": "0.9"}}, "bad", "lehr", "0.9", "lehr 1.0 here"),
        ({"head_error": "timed out"}, "bad", "Ray's head", "timed out", "20000 to 29999"),
        ({"address": "127.0.1.1"}, "bad", "address", "127.0.1.1", "--interface"),
        ({"ports_taken": [6380]}, "bad", "ports", "6380", "--base-port 6579"),
        ({"clock_offset_s": 5.0}, "note", "clock", "5 s ahead of", "timedatectl"),
        ({"clock_offset_s": -90.0}, "bad", "clock", "90 s behind", "timedatectl"),
        ({"gpus": 0}, "bad", "GPUs", "lists no GPU", "nvidia-smi"),
        ({"gpus": 0, "has_driver": False}, "bad", "GPUs", "no driver", "--gpus N"),
        ({"home_kind": "nfs4"}, "bad", "file system", "nfs4", "LEHR_HOME"),
        ({"free_bytes": {Path("/runs"): 10**8}}, "bad", "disk", "/runs", "Free some space"),
        ({"free_bytes": {Path("/runs"): 10**10}}, "note", "disk", "/runs", "15 GB"),
        ({"free_bytes": {Path("/runs"): None}}, "bad", "disk", "cannot be used", "--runs"),
        ({"runs_folder": None}, "bad", "folder of runs", "/runs", "--runs DIR"),
        ({"runs_folder": "b" * 32}, "note", "folder of runs", "own", "checkpoints.upload"),
    ],
)
def test_each_wrong_thing_is_found_with_its_cure(changes, status, name, found, cure):
    [check] = findings(replace(SOUND, **changes))
    assert (check.status, check.name) == (status, name)
    assert found in check.found
    assert cure in check.fix


@pytest.mark.parametrize(
    ("base", "status", "found", "cure"),
    [
        (19_880, "bad", "19880 to 20000 overlap 20000 to 29999", "--base-port N"),
        (32_648, "note", "32648 to 32768", "ip_local_reserved_ports=32648-32768"),
        (19_879, "ok", "are free", ""),
        (61_000, "ok", "are free", ""),
    ],
)
def test_ports_that_others_use_are_named(base, status, found, cure):
    machine = replace(SOUND, given_ports=frozenset(range(32_768, 61_000)))
    [check] = [c for c in check_machine(machine, VIEW, Ports(base)) if c.name == "ports"]
    assert check.status == status
    assert found in check.found
    assert cure in (check.fix or "")


def test_own_ray_node_does_not_keep_a_machine_from_joining_after_its_keeper_was_killed(tmp_path):
    taken = replace(SOUND, ports_taken=[6380])
    assert machine.without_own_ports(tmp_path, taken) == taken
    pid = os.getpid()
    started = procfs.start_time(pid)
    assert started is not None
    own = RayProcess("10.0.0.1:6379", 1, "mark", pid, started, procfs.boot_id())
    record.write_ray(tmp_path, own)
    assert not machine.without_own_ports(tmp_path, taken).ports_taken
    record.write_ray(tmp_path, replace(own, start_time=started - 1))
    assert machine.without_own_ports(tmp_path, taken) == taken
