"""The uploader's reports. Copies themselves: tests/e2e/test_checkpoint_upload.py."""

from __future__ import annotations

from lehr.checkpoints.copies import Copy
from lehr.node.attempt_dir import AttemptDir
from lehr.node.programs.saves import keep, saved_in
from lehr.node.uploader import Uploader
from lehr_testing.scripted_http import Scripted, reply
from lehr_trainer.contract import layout


def test_replaced_checkpoint_is_copied_again(tmp_path):
    attempt, work = tmp_path / "run/attempt-1", tmp_path / "work"
    launch = {"run_dir": str(tmp_path / "run"), "attempt_dir": str(attempt), "token": "secret"}
    uploader = Uploader(AttemptDir(str(tmp_path)), {**launch, "upload": f"file://{tmp_path}/to"})
    uploader.report = lambda: True
    folder = layout.checkpoint_dir(attempt, 0)
    work.mkdir()
    for text in ("old", "newer"):
        (work / "a.pt").write_text(text)
        digest = keep(work, saved_in(work, [work]), folder, step=0, tokens=0, reason="x").digest
        assert uploader.waiting() == [folder]
        uploader.copy(folder)
        assert Copy(uploader.url(uploader.name(folder))).known().digest == digest
        assert uploader.waiting() == []


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
