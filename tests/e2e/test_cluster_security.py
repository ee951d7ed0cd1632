"""Ray listens on every interface and is protected by its token: a program without it cannot join."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from lehr.base import home as homes
from lehr.base import procfs
from lehr.cluster import ray_head
from lehr_testing.fakes import command
from lehr_testing.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("platform"),
]

# A foreign program on the machine's network, with the address and Ray.
STRANGER = """
import sys, ray
try:
    ray.init(address=sys.argv[1], namespace="lehr", log_to_driver=False)
    print("NODES", sum(node["Alive"] for node in ray.nodes()))
    for name in ray.util.list_named_actors(all_namespaces=True):
        print("ACTOR", name)
    @ray.remote(num_cpus=0)
    def run_code(path):
        open(path, "w").write("owned")
    ray.get(run_code.remote(sys.argv[2]), timeout=20)
    print("RAN CODE")
except BaseException as error:
    print("REFUSED", type(error).__name__, str(error)[:500])
"""


def try_as_stranger(server, tmp_path: Path, **environment: str) -> str:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "LEHR_"))}
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            STRANGER,
            ray_head.recorded(server.home).address,
            str(tmp_path / "owned"),
        ],
        env={**clean, "HOME": str(tmp_path), **environment},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    return done.stdout + done.stderr


def test_program_without_the_token_cannot_join_ray(server, tmp_path):
    output = try_as_stranger(server, tmp_path, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="0" * 64)
    assert "NODES" not in output
    assert "ACTOR" not in output
    assert "RAN CODE" not in output
    assert not (tmp_path / "owned").exists()
    # And the processes of Lehr continue as before.
    run = server.client().submit(server.spec("undisturbed", steps=2))
    run.wait(timeout_s=60)
    assert run.state == "completed"


def test_same_program_with_the_token_joins_ray(server, tmp_path):
    token = ray_head.token_file(server.home).read_text().strip()
    output = try_as_stranger(server, tmp_path, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=token)
    assert "NODES 1" in output, output
    assert "RAN CODE" in output


def test_tokens_and_ray_folder_are_readable_only_by_their_owner(server):
    for path in (ray_head.token_file(server.home), server.home / "attempt-key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    for folder in (homes.ray_dir(server.home), server.home / "ray"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder


def test_no_token_is_on_a_command_line_or_in_a_trainer_environment(server):
    run = server.client().submit(server.spec("looked-into", steps=1000))
    until(lambda: run.refresh().state == "running", within_s=60, what="the run to run")
    [entry] = [e for e in server.entries() if e.attempt_id == f"{run.id}-1"]
    assert stat.S_IMODE(os.stat(entry.file("launch.json")).st_mode) == 0o600  # noqa: PTH116
    secrets = [
        str(entry.launch()["token"]).encode(),
        ray_head.token_file(server.home).read_bytes().strip(),
        (server.home / "token").read_bytes().strip(),
    ]
    trainer = server.trainer(f"{run.id}-1")
    environment = Path(f"/proc/{trainer}/environ").read_bytes()
    for secret in secrets:
        assert secret not in environment
        assert not [pid for pid in procfs.pids() if secret in command(pid)]
    # Nor is anything of Ray's own left in it.
    assert b"\0RAY_" not in b"\0" + environment


def test_neither_dashboard_nor_client_server_nor_jobs_api_listens(server):
    head = ray_head.recorded(server.home)
    lines = [command(pid) for pid in head.processes()]
    assert not [line for line in lines if b"ray.util.client.server" in line]
    ports = {
        connection.laddr.port
        for pid in head.processes()
        for connection in psutil.Process(pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert ports
    assert not ports & {8265, 10001, 6379}
