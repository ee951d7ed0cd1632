"""The shipper, against a server that has deleted the run."""

from __future__ import annotations

import json

from lehr.node import procfs
from lehr.node.attempt_dir import AttemptDir
from lehr.node.shipper import Shipper
from lehr.node.torchrun import Gang
from lehr_testing.scripted_http import Scripted, reply


def test_shipper_of_a_deleted_run_reports_the_exit_without_streams(tmp_path, monkeypatch):
    attempt_dir = tmp_path / "attempt-1"
    attempt_dir.mkdir()
    (attempt_dir / "launcher.log").write_text("a line\n")
    entry = AttemptDir(str(tmp_path / "run-1"))
    (tmp_path / "run-1").mkdir()
    (tmp_path / "run-1" / "exit.json").write_text('{"code": 0}')
    server = Scripted(
        [reply(b'{"offsets": {}}'), reply(b"{}", b"410 Gone"), reply(b'{"closed": true}')]
    )
    launch = {
        "gang": Gang(per_node=1)._asdict(),
        "attempt_dir": str(attempt_dir),
        "token": "secret",
        "server_url": f"http://127.0.0.1:{server.port}",
    }
    shipper = Shipper(entry, launch)
    monkeypatch.setattr(procfs, "send", lambda pid, number: True)
    assert shipper.work()
    server.listener.close()
    assert b"PUT" in server.requests[1]
    report = json.loads(server.requests[2].partition(b"\r\n\r\n")[2])
    assert report == {"exit": {"code": 0}, "sizes": {}, "node_rank": 0}
    assert entry.stop_level() == ("kill", "its run was deleted")
