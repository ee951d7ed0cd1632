"""The uploader's reports. Copies themselves: tests/e2e/test_checkpoint_upload.py."""

from __future__ import annotations

from lehr.node.attempt_dir import AttemptDir
from lehr.node.uploader import Uploader
from lehr_testing.scripted_http import Scripted, reply


def test_reports_end_when_the_shipper_has_given_up(tmp_path):
    entry = AttemptDir(str(tmp_path))
    server = Scripted([reply(b"{}", b"401 Unauthorized")] * 2)
    uploader = Uploader(
        entry,
        {
            "upload": "file:///copies",
            "run_dir": str(tmp_path / "run"),
            "attempt_dir": str(tmp_path / "run" / "attempt-1"),
            "token": "secret",
            "server_url": f"http://127.0.0.1:{server.port}",
        },
    )
    uploader.set("attempt-1/checkpoints/step-00000001", "there", None, "there")
    assert not uploader.report()
    (tmp_path / "delivered").touch()
    assert uploader.report()
    server.listener.close()
