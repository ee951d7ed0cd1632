"""What a program declares as its checkpoint: kept as it was declared, or not at all."""

from __future__ import annotations

import errno
import gc
import json
import os
import signal
import time
from pathlib import Path

import pytest

from lehr.base import procfs
from lehr.node import attempt_code
from lehr.node.programs import saves
from lehr.node.programs.keeper import Keeper
from lehr.node.programs.program_dir import ProgramDir
from lehr.node.programs.recorder import Recorder
from lehr.specs.program import Program
from lehr_testing.program_attempts import Attempts
from lehr_testing.waiting import until
from lehr_trainer.contract.orders import LaunchNote
from lehr_trainer.runtime.event_stream import EventStream

HELD = """
    import os, signal, lehr_log
    from pathlib import Path

    def while_nobody_looks(work):
        os.kill(os.getppid(), signal.SIGSTOP)
        work()
        os.kill(os.getppid(), signal.SIGCONT)
"""


@pytest.fixture
def attempts(tmp_path: Path) -> Attempts:
    return Attempts(tmp_path)


def kept(attempts: Attempts) -> dict[int, dict[str, str]]:
    """Return the content of each checkpoint by its step."""
    found = {}
    for record in attempts.records("checkpoint"):
        folder = attempts.run / record.path
        files = json.loads((folder / "manifest.json").read_text())["files"]
        found[record.step] = {name: (folder / name).read_text() for name in files}
    return found


def messages(attempts: Attempts) -> list[tuple[str, str]]:
    return [(warning.code, warning.message) for warning in attempts.records("warning")]


@pytest.mark.parametrize("then", ["write_text('newer')", "unlink()"])
def test_checkpoint_that_changes_before_it_is_copied_is_not_kept_and_named(attempts, then):
    attempts.write(
        HELD
        + f"""
    def work():
        for step in (1, 2):
            Path("out").mkdir(exist_ok=True)
            Path("out/ckpt.txt").write_text("of step " + str(step))
            lehr_log.checkpoint("out", step=step)
        Path("other.txt").write_text("of step 3")
        lehr_log.checkpoint("other.txt", step=3)
        Path("out/ckpt.txt").{then}
    while_nobody_looks(work)
    lehr_log.log({{"loss": 1.0}}, step=3)
    """
    )
    assert attempts.train() == 0, attempts.output
    assert kept(attempts) == {3: {"other.txt": "of step 3"}}
    found = messages(attempts)
    assert [code for code, _ in found] == ["checkpoint_changed"] * 2
    for step, (_, message) in enumerate(found, 1):
        assert f"/out', step={step})" in message
        assert "out/ckpt.txt changed" in message


def test_program_that_logs_no_steps_keeps_what_it_saved_last(attempts):
    """minGPT's chargpt.py only prints, and saves to one file at its iterations 0, 500 and 1,000."""
    attempts.write("""
        import pathlib, time
        for text in ("first", "second"):
            pathlib.Path("model.pt").write_text(text)
            while not list(pathlib.Path("../checkpoints").glob("step-*0/manifest.json")):
                time.sleep(0.05)
    """)
    assert attempts.train(saves=["model.pt"]) == 0, attempts.output
    assert kept(attempts) == {0: {"model.pt": "second"}}
    assert [c.step for c in attempts.records("checkpoint")] == [0, 0]


def test_folder_that_other_ranks_complete_is_kept_with_their_files(attempts):
    attempts.write(
        HELD
        + """
    def work():
        Path("out/deep").mkdir(parents=True)
        Path("out/deep/model.txt").write_text("model")
        lehr_log.checkpoint("out", step=1)
        Path("out/rng_1.txt").write_text("of rank 1")
    while_nobody_looks(work)
    lehr_log.log({"loss": 1.0}, step=1)
    """
    )
    assert attempts.train() == 0, attempts.output
    files = {"out%2Fdeep%2Fmodel.txt": "model", "out%2Frng_1.txt": "of rank 1"}
    assert kept(attempts) == {1: files}
    assert attempts.codes == []


@pytest.mark.parametrize("how", ["'ckpt.txt'", "os.path.abspath('ckpt.txt')", "LINKED", "REAL"])
def test_checkpoint_is_inside_although_links_lead_to_the_folder(tmp_path, how):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    attempts = Attempts(tmp_path / "link")
    attempts.write(
        """
        import os, lehr_log
        LINKED = os.path.join(os.path.dirname(__file__), "ckpt.txt")
        REAL = os.path.realpath(LINKED)
        open("ckpt.txt", "w").write("x")
        lehr_log.checkpoint(HOW, step=1)
        lehr_log.log({"loss": 1.0}, step=1)
    """.replace("HOW", how)
    )
    assert attempts.train() == 0, attempts.output
    assert attempts.codes == []
    assert kept(attempts) == {1: {"ckpt.txt": "x"}}


class Kept:
    """A keeper without a process."""

    def __init__(self, folder: Path, program: Program) -> None:
        attempt = folder / "attempt-1"
        attempt.mkdir(parents=True)
        self.place = ProgramDir(attempt, None)
        self.place.prepare(LaunchNote(run_id="r", attempt=1), Program(script="train.py"))
        self.records: list[object] = []
        events = EventStream(None)
        events.write = self.records.append  # type: ignore[method-assign]
        self.keeper = Keeper(self.place, program, events, Recorder(events, tokens_per_step=1))

    @property
    def found(self) -> list[str]:
        """Kinds of the records, and codes of the warnings, when nothing is copied any more."""
        until(lambda: self.keeper.advance() or not self.keeper.busy, within_s=60, what="the copies")
        return [getattr(one, "code", one.kind) for one in self.records]  # type: ignore[attr-defined]

    def save(self, step: int) -> None:
        path = self.place.folder / f"{step}.txt"
        path.write_text("x")
        self.keeper.request(str(path), step)

    @property
    def drafts(self) -> list[Path]:
        return list(self.place.attempt_dir.rglob("*.tmp"))


@pytest.fixture
def hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file; as long as it exists, no copy ends."""
    plain, file = saves._copy, tmp_path / "hold"
    file.touch()

    def copy(source: Path, target: Path, **how):
        while file.exists():
            time.sleep(0.01)
        return plain(source, target, **how)

    monkeypatch.setattr(saves, "_copy", copy)
    return file


def test_copy_whose_process_dies_leaves_no_draft_and_is_named(tmp_path, hold):
    held = Kept(tmp_path, Program(script="t.py", steps=1))
    held.save(1)
    until(lambda: held.drafts, within_s=30, what="a draft")
    os.kill(held.keeper._running[1]._child.pid, signal.SIGKILL)
    assert held.found == ["checkpoint_failed"]
    assert "could not be copied: its process ended with code -9" in held.records[0].message
    assert held.drafts == []


def test_linked_data_are_no_part_of_what_a_program_saves(tmp_path):
    program = Program(script="t.py", data=["set", "out/big"], saves=["*/*.pt", "out"])
    held = Kept(tmp_path, program)
    for name in ("set/base.pt", "out/ckpt.pt", "out/big/x", "out/bigger"):
        (held.place.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (held.place.folder / name).write_text("x")
    held.keeper.look(lambda: None, ended=True)
    assert held.found == ["checkpoint"]
    [folder] = held.place.attempt_dir.rglob("step-*")
    assert {p.name for p in folder.iterdir()} == {"manifest.json", "out%2Fckpt.pt", "out%2Fbigger"}


@pytest.mark.timeout(60)
def test_of_the_checkpoints_that_wait_for_a_copy_as_many_as_are_kept_remain(tmp_path, hold):
    held = Kept(tmp_path, Program(script="t.py", steps=1, keep=2))
    for step in range(1, 6):
        held.save(step)
    hold.unlink()
    assert held.found.count("checkpoint_late") == 2
    assert [one.step for one in held.records if one.kind == "checkpoint"] == [1, 4, 5]


@pytest.mark.timeout(60)
def test_copy_that_is_given_up_leaves_no_process_and_no_draft(tmp_path, hold):
    held = Kept(tmp_path, Program(script="t.py", steps=1))
    before = set(procfs.children(os.getpid()))  # Those of other tests, such as a resource tracker.
    held.save(1)
    held.save(2)
    until(lambda: held.drafts, within_s=30, what="a draft")
    held.keeper.give_up()
    assert held.drafts == []
    assert held.found == ["checkpoint_late"] * 2
    until(
        lambda: set(procfs.children(os.getpid())) <= before, within_s=30, what="its process's end"
    )


def test_program_that_never_stops_changing_its_checkpoints_gets_a_few_warnings(tmp_path):
    held = Kept(tmp_path, Program(script="t.py", steps=1))
    (held.place.folder / "a.txt").write_text("x")
    for step in range(100):
        held.keeper.request(str(held.place.folder / "a.txt"), step, {".": (0, 0)})
    assert held.found == ["checkpoint_changed"] * 20


def test_files_that_are_saved_faster_than_they_settle_are_named_once(tmp_path):
    held = Kept(tmp_path, Program(script="t.py", saves=["a.txt"]))
    for number in range(60):
        (held.place.folder / "a.txt").write_text("x" * min(number, 40))
        os.utime(held.place.folder / "a.txt", (number, number))
        held.keeper.look(lambda: None)
        assert held.found == ["checkpoint_restless"] * (number >= 50)


def test_copy_for_which_there_is_no_process_is_named_and_leaves_no_descriptor(
    tmp_path, monkeypatch
):
    held = Kept(tmp_path, Program(script="t.py", steps=1))
    gc.collect()  # It closes what tests before this one have left to it.
    before = len(list(Path("/proc/self/fd").iterdir()))

    def fork() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fork", fork)
        held.save(1)
        assert held.found == ["checkpoint_failed"]
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    held.save(2)
    assert held.found == ["checkpoint_failed", "checkpoint"]


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
