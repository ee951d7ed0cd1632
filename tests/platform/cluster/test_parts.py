"""The cluster's small parts: commands, capacity, tokens, locks, Ray's list of nodes."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys

import pytest

from lehr.base import procfs
from lehr.base.signed_tokens import AttemptTokens, sha256
from lehr.cluster.membership import current_nodes
from lehr.errors import UserError
from lehr.node import exit_report, gpu_inventory, torchrun
from lehr.node.attempt_dir import AttemptDir
from lehr.node.gpu_lock import acquire_all, is_free, lock_path
from lehr_testing.waiting import until


def test_single_process_needs_no_launcher_and_gets_torchrun_variables():
    gang = torchrun.Gang(per_node=1)
    assert torchrun.command("lehr_trainer", "/r/attempt-1", gang, python="py") == [
        *("py", "-P", "-m", "lehr_trainer", "/r/attempt-1")
    ]
    values = torchrun.environment(gang, gpus=[3], threads=2)
    assert (values["CUDA_VISIBLE_DEVICES"], values["WORLD_SIZE"], values["RANK"]) == ("3", "1", "0")
    assert values["PYTHONSAFEPATH"] == "1"


def test_gang_on_two_nodes_has_its_rendezvous_on_the_first():
    gang = torchrun.Gang(4, nodes=2, node_rank=1, master_address="10.0.0.7", master_port=20123)
    command = torchrun.command("t", "/a", gang, python="py")
    assert {"--nnodes=2", "--node-rank=1", "--master-addr=10.0.0.7", "--master-port=20123"} <= set(
        command
    )
    assert list(gang.ranks) == [4, 5, 6, 7]


def test_nvidia_smi_is_read_and_cuda_visible_devices_respected():
    gpus = gpu_inventory.parse_nvidia_smi(
        "0, GPU-aaaa-1, NVIDIA H100 80GB HBM3, 81559\n1, GPU-bbbb-2, NVIDIA H100 80GB HBM3, 81559\n"
    )
    assert [(g.index, g.name) for g in gpus] == [
        (0, "NVIDIA H100 80GB HBM3"),
        (1, "NVIDIA H100 80GB HBM3"),
    ]
    assert gpus[0].memory_bytes == 81559 * 2**20
    assert [g.index for g in gpu_inventory.visible(gpus, "1")] == [1]
    assert [g.index for g in gpu_inventory.visible(gpus, "GPU-aaaa")] == [0]
    assert gpu_inventory.visible(gpus, "") == []
    assert gpu_inventory.visible(gpus, None) == gpus


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """Set the output of nvidia-smi; None: it is not installed."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def lists(text: str | None) -> None:
        program = folder / "nvidia-smi"
        program.unlink(missing_ok=True)
        if text is not None:
            program.write_text(f"#!/bin/sh\nprintf '{text}'\n")
            program.chmod(0o755)

    lists(None)
    return lists


TWO_GPUS = "0, GPU-a, X, 1\\n1, GPU-b, X, 1\\n"


def test_more_gpus_than_the_machine_has_are_rejected(smi, tmp_path):
    smi(TWO_GPUS)
    assert gpu_inventory.gpus_to_offer(None, tmp_path) == 2
    assert gpu_inventory.gpus_to_offer(1, tmp_path) == 1
    with pytest.raises(UserError, match="this machine has 2 GPUs"):
        gpu_inventory.gpus_to_offer(8, tmp_path)
    # A requested number of real GPUs is not stored: the default is all of them.
    assert gpu_inventory.gpus_to_offer(None, tmp_path) == 2


def test_machine_without_gpus_remembers_its_logical_gpus(smi, tmp_path):
    home, other = tmp_path / "home", tmp_path / "other"
    assert gpu_inventory.gpus_to_offer(None, home) == 8
    assert gpu_inventory.gpus_to_offer(4, home) == 4
    assert gpu_inventory.gpus_to_offer(None, home) == 4
    assert gpu_inventory.gpus_to_offer(2, home) == 2
    assert gpu_inventory.gpus_to_offer(None, home) == 2
    assert gpu_inventory.gpus_to_offer(None, other) == 8
    # The real ones go first, whatever was declared before they were there.
    smi("0, GPU-a, X, 1\\n")
    assert gpu_inventory.gpus_to_offer(None, home) == 1


def test_token_of_an_attempt_survives_a_restart(tmp_path):
    tokens = AttemptTokens(tmp_path)
    first, second = tokens.token("a-1"), tokens.token("a-2")
    assert first != second
    assert AttemptTokens(tmp_path).token("a-1") == first
    assert tokens.sha256("a-1") == sha256(first) != sha256(second)
    assert AttemptTokens(tmp_path / "..").token("a-1") != first
    mode = stat.S_IMODE((tmp_path / "attempt-key").stat().st_mode)
    assert mode == 0o600


def test_a_gpu_is_free_only_when_neither_shim_nor_any_process_it_started_holds_it(tmp_path):
    paths = [lock_path(str(tmp_path), "0"), lock_path(str(tmp_path), "1")]
    held = acquire_all(paths)
    assert held is not None
    assert acquire_all(paths[1:]) is None
    # A rank opens the shared lock by itself, and stays when the shim is gone.
    script = "import fcntl,sys\nf=open(sys.argv[1])\nfcntl.flock(f,fcntl.LOCK_SH)\nprint(1,flush=True)\nsys.stdin.read()"
    rank = subprocess.Popen(
        [sys.executable, "-c", script, paths[0]], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        rank.stdout.readline()
        for lock in held:
            lock.release()
        assert not is_free(paths[0])
        assert is_free(paths[1])
        assert acquire_all(paths) is None
        assert is_free(paths[1])  # All or none: locks acquired meanwhile were released.
    finally:
        rank.communicate()
    assert is_free(paths[0])


def test_a_planted_link_in_place_of_a_lock_is_not_followed(tmp_path):
    target = tmp_path / "precious"
    (tmp_path / "gpu-0.lock").symlink_to(target)
    with pytest.raises(OSError):
        acquire_all([lock_path(str(tmp_path), "0")])
    assert not target.exists()


def test_processes_are_found_by_mark_despite_reused_pids():
    env = {**os.environ, "LEHR_TEST_MARK": "xyz"}
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=env)
    try:
        until(lambda: procfs.marked("LEHR_TEST_MARK", "xyz") == [child.pid], within_s=30, what="it")
        assert procfs.marked("LEHR_TEST_MARK", "xy") == []
        started = procfs.start_time(child.pid)
        assert procfs.is_same(child.pid, started, procfs.boot_id())
        assert not procfs.is_same(child.pid, started + 1, procfs.boot_id())
        assert not procfs.is_same(child.pid, started, "another boot")
        assert child.pid in procfs.children(os.getpid())
    finally:
        child.kill()
    until(lambda: procfs.start_time(child.pid) is None, within_s=30, what="its end, even unreaped")
    child.wait()


def test_stop_level_only_rises(tmp_path):
    entry = AttemptDir(str(tmp_path))
    assert entry.stop_level() is None
    assert entry.request_stop("term", "first")
    assert not entry.request_stop("order", "less")
    assert entry.request_stop("kill", "more")
    assert not entry.request_stop("term", "less")
    assert entry.stop_level() == ("kill", "more")


def test_attempt_entry_is_locked_by_one_shim(tmp_path):
    entry = AttemptDir(str(tmp_path))
    descriptor = entry.hold()
    assert entry.held()
    assert entry.hold() is None
    os.close(descriptor)
    assert not entry.held()


def test_exit_report_has_the_error_lines_and_the_finished_record(tmp_path):
    (tmp_path / "rank-0.log").write_text("step 1\n" * 2000)
    (tmp_path / "rank-1.log").write_text("Traceback (most recent call last):\nKeyError: 'wte'\n")
    (tmp_path / "launcher.log").write_text("ChildFailedError: rank 1 failed\n")
    finished = {"kind": "finished", "step": 3, "outcome": "failed", "cause": "error"}
    (tmp_path / "events.jsonl").write_text(json.dumps(finished) + "\n")
    note = exit_report.build(
        str(tmp_path), code=1, reason="", detail="", started_at=1.0, boot_id="b"
    )
    assert note["log_tail"].index("KeyError") < note["log_tail"].index("ChildFailedError")
    assert "step 1" not in note["log_tail"]
    assert (note["code"], note["signal"]) == (1, None)
    assert note["finished"] == {"step": 3, "outcome": "failed", "cause": "error"}
    killed = exit_report.build(
        str(tmp_path), code=-9, reason="", detail="", started_at=1.0, boot_id="b"
    )
    assert (killed["code"], killed["signal"]) == (None, 9)


def test_exit_report_names_a_full_disk_that_the_trainer_could_not_log(tmp_path, monkeypatch):
    def note(**more):
        given = {"code": 1, "reason": "", "detail": ""} | more
        return exit_report.build(str(tmp_path), **given, started_at=1.0, boot_id="b")["log_tail"]

    assert note() == ""
    full = os.statvfs_result((4096, 4096, 1000, 0, 0, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _path: full)
    assert note() == f"No space left on device: {tmp_path}"
    assert note(code=0) == ""
    assert note(reason="stopped", detail="by hand") == "by hand"


def listed(name, node_id, *, alive=True, address="10.0.0.1", label=None, gpus=8.0):
    return {
        "NodeID": node_id,
        "Alive": alive,
        "NodeManagerHostname": name,
        "NodeManagerAddress": address,
        "Resources": {"GPU": gpus},
        "Labels": {"lehr.node": label} if label else {},
    }


def test_machines_with_equal_host_names_are_distinct_and_labels_name_nodes():
    two = current_nodes([listed("box", "a"), listed("box", "b", address="10.0.0.2")])
    assert [n.name for n in two] == ["box", "box@10.0.0.2"]
    labelled = current_nodes([listed("box", "a", label="n1"), listed("box", "b", label="n2")])
    assert [n.name for n in labelled] == ["n1", "n2"]


def test_machine_with_a_restarted_raylet_is_counted_once():
    for order in (1, -1):
        twice = [listed("box", "old", alive=False), listed("box", "new")][::order]
        assert [(n.name, n.ray_id, n.alive) for n in current_nodes(twice)] == [("box", "new", True)]
    # Ray takes a while to notice that the old one is dead: still one machine.
    both = current_nodes([listed("box", "old"), listed("box", "new")])
    assert [n.ray_id for n in both] == ["new"]
