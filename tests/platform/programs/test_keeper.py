"""What a program declares as its checkpoint: kept as it was declared, or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lehr.programs import saves
from lehr.programs.keeper import Keeper
from lehr.programs.program_dir import ProgramDir
from lehr.programs.recorder import Recorder
from lehr.specs.program import Program
from lehr_testing.program_attempts import Attempts
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


def test_last_of_several_checkpoints_with_one_name_is_kept_under_its_own_step(attempts):
    attempts.write(
        HELD
        + """
    def work():
        for step in (1, 2):
            Path("ckpt.txt").write_text(f"of step {step:04d}")
            lehr_log.checkpoint("ckpt.txt", step=step)
            os.utime("ckpt.txt", (step, step)) if step == 1 else None
    while_nobody_looks(work)
    lehr_log.log({"loss": 1.0}, step=2)
    """
    )
    assert attempts.train() == 0, attempts.output
    assert kept(attempts) == {2: {"ckpt.txt": "of step 0002"}}
    assert attempts.codes == ["checkpoint_changed"]


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
        self.place.prepare(LaunchNote(run_id="r", attempt=1))
        self.records: list[object] = []
        events = EventStream(None)
        events.write = self.records.append  # type: ignore[method-assign]
        self.keeper = Keeper(self.place, program, events, Recorder(events, tokens_per_step=1))

    @property
    def found(self) -> list[str]:
        return [getattr(one, "code", one.kind) for one in self.records]  # type: ignore[attr-defined]


def change_under_copy(monkeypatch: pytest.MonkeyPatch, *, times: int) -> None:
    plain, left = saves._copy, [times]

    def copy(source: Path, target: Path):
        entry = plain(source, target)
        if left[0]:
            left[0] -= 1
            source.write_text(source.read_text() + "+")
        return entry

    monkeypatch.setattr(saves, "_copy", copy)


def test_checkpoint_that_changes_under_the_copy_is_not_kept_and_named(tmp_path, monkeypatch):
    held = Kept(tmp_path, Program(script="t.py", steps=1))
    (held.place.folder / "a.txt").write_text("x")
    change_under_copy(monkeypatch, times=1)
    held.keeper.request(str(held.place.folder / "a.txt"), 7)
    assert held.found == ["checkpoint_changed"]
    assert "a.txt', step=7)" in held.records[0].message
    assert not list(held.place.attempt_dir.rglob("step-*"))


def test_declared_file_that_changes_under_the_copy_is_kept_when_it_has_settled(
    tmp_path, monkeypatch
):
    held = Kept(tmp_path, Program(script="t.py", steps=1, saves=["a.txt"]))
    (held.place.folder / "a.txt").write_text("x")
    change_under_copy(monkeypatch, times=2)
    held.keeper.look(lambda: None, ended=True)
    assert held.found == ["checkpoint_changed"]
    held.keeper.look(lambda: None)
    assert held.found == ["checkpoint_changed"]
    held.keeper.look(lambda: None, ended=True)
    held.keeper.look(lambda: None, ended=True)
    assert held.found == ["checkpoint_changed", "checkpoint_changed", "checkpoint"]


def test_program_that_never_stops_changing_its_checkpoints_gets_a_few_warnings(tmp_path):
    held = Kept(tmp_path, Program(script="t.py", steps=1))
    (held.place.folder / "a.txt").write_text("x")
    for step in range(100):
        held.keeper.request(str(held.place.folder / "a.txt"), step, {".": (0, 0)})
    assert held.found == ["checkpoint_changed"] * 20
