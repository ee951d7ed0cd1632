"""The process that copies a checkpoint: what passes beside it, and how it ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from lehr.base import procfs
from lehr.node import attempt_code
from lehr_testing.program_attempts import Attempts
from lehr_testing.waiting import until


@pytest.fixture
def attempts(tmp_path: Path) -> Attempts:
    return Attempts(tmp_path)


COPIED = """
    import os, signal, time, lehr_log
    from pathlib import Path

    def copier():
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            pid = int(stat.parent.name)
            if int(fields[1]) == os.getppid() and pid != os.getpid():
                return pid

    lehr_log.should_stop()
    with open("big.pt", "wb") as file:
        file.truncate(2 << 30)
    lehr_log.log({"x": 1}, step=1)
    lehr_log.checkpoint("big.pt", step=1)
    while not Path("../checkpoints/step-00000001.tmp").exists():
        time.sleep(0.005)
    os.kill(copier(), signal.SIGSTOP)  # From here on the copy takes as long as the test wants.
    Path("copier").write_text(str(copier()))
    os.kill(os.getppid(), signal.SIGTERM)
    while not lehr_log.should_stop():
        time.sleep(0.005)
    Path("small.pt").write_text("the last state")
    lehr_log.log({"x": 2}, step=2)
    lehr_log.checkpoint("small.pt", step=2)
"""


@pytest.mark.timeout(120)
def test_notice_and_metrics_pass_while_a_checkpoint_is_copied_and_the_end_waits_for_it(attempts):
    attempts.write(COPIED)
    process = attempts.start()
    until(lambda: len(attempts.series("x")) == 2, within_s=60, what="step 2")
    copier = int((attempts.attempt / "work/copier").read_text())
    assert procfs.start_time(copier) is not None
    assert [one.reason for one in attempts.records("stopping")] == ["signal"]
    assert not attempts.records("checkpoint")
    os.kill(copier, signal.SIGCONT)
    process.communicate(timeout=100)
    assert [(one.outcome, one.step) for one in attempts.records("finished")] == [("stopped", 2)]
    assert [one.step for one in attempts.records("checkpoint")] == [1, 2]
    assert attempts.codes == []
    assert not list(attempts.attempt.rglob("*.tmp"))


@pytest.mark.timeout(120)
def test_copy_has_the_mark_of_its_attempt_and_ends_with_its_supervisor(attempts, monkeypatch):
    monkeypatch.setenv(procfs.MARK, attempts.run.as_posix())
    attempts.write(COPIED)
    process = attempts.start()
    until(lambda: attempts.series("x")[1:], within_s=60, what="step 2")
    copier = int((attempts.attempt / "work/copier").read_text())
    assert copier in procfs.marked(procfs.MARK, attempts.run.as_posix())
    process.kill()
    process.communicate(timeout=100)
    until(lambda: procfs.start_time(copier) is None, within_s=60, what="the end of the copy")
    draft = attempts.attempt / "checkpoints/step-00000001.tmp"
    assert draft.exists()
    gang = {"nodes": 1, "node_rank": 0}
    attempt_code.tidy({"program": True, "gang": gang, "attempt_dir": str(attempts.attempt)})
    assert not draft.exists()
