"""Which checkpoint a run resumes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from lehr_testing.saved_checkpoints import attempt, save
from lehr_trainer.checkpointing.checkpoint import choose_checkpoint
from lehr_trainer.contract.orders import LaunchNote
from lehr_trainer.errors import BadCheckpoint, MissingCheckpoint


def test_resume_uses_the_newest_valid_checkpoint_and_lists_skipped_ones(
    tmp_path: Path,
) -> None:
    first, second, third = (attempt(tmp_path, n) for n in (1, 2, 3))
    good, newest = save(first, 5), save(second, 7)
    (newest / "state.json").write_text("{")
    choice = choose_checkpoint(tmp_path, third, LaunchNote())
    assert choice.directory == good
    assert len(choice.skipped) == 1
    assert choice.skipped[0].startswith("attempt-2/checkpoints/step-00000007/state.json has")


def test_pinned_checkpoint_is_used_although_newer_ones_exist(tmp_path: Path) -> None:
    first, second = attempt(tmp_path, 1), attempt(tmp_path, 2)
    pinned, _ = save(first, 5), save(first, 6)
    note = LaunchNote(resume="pinned", resume_from="attempt-1/checkpoints/step-00000005")
    assert choose_checkpoint(tmp_path, second, note).directory == pinned


def test_a_damaged_pinned_checkpoint_falls_back_to_older_ones_only(tmp_path: Path) -> None:
    first, second = attempt(tmp_path, 1), attempt(tmp_path, 2)
    older, pinned, _newer = save(first, 4), save(first, 5), save(first, 6)
    (pinned / "state.json").write_text("{")
    note = LaunchNote(resume="pinned", resume_from="attempt-1/checkpoints/step-00000005")
    assert choose_checkpoint(tmp_path, second, note).directory == older
    (older / "state.json").write_text("{")
    with pytest.raises(
        BadCheckpoint, match="cannot resume from attempt-1/checkpoints/step-00000005"
    ):
        choose_checkpoint(tmp_path, second, note)


def test_a_pinned_checkpoint_that_is_elsewhere_is_missing_not_bad(tmp_path: Path) -> None:
    second = attempt(tmp_path, 2)
    note = LaunchNote(resume="pinned", resume_from="attempt-1/checkpoints/step-00000005")
    with pytest.raises(MissingCheckpoint, match="step-00000005 is not on this machine") as raised:
        choose_checkpoint(tmp_path, second, note)
    assert raised.value.cause == "missing_checkpoint"
    pinned = save(attempt(tmp_path, 1), 5)
    (pinned / "state.json").write_text("{")
    with pytest.raises(BadCheckpoint) as raised:
        choose_checkpoint(tmp_path, second, note)
    assert raised.value.cause == "bad_checkpoint"


def test_a_checkpoint_of_another_run_can_be_pinned(tmp_path: Path) -> None:
    other = save(attempt(tmp_path / "other", 1), 9)
    mine = attempt(tmp_path / "mine", 1)
    note = LaunchNote(resume="pinned", resume_from=str(other))
    assert choose_checkpoint(tmp_path / "mine", mine, note).directory == other


def test_resume_never_starts_at_step_0(tmp_path: Path) -> None:
    save(attempt(tmp_path, 1), 5)
    note = LaunchNote(resume="never")
    assert choose_checkpoint(tmp_path, attempt(tmp_path, 2), note).directory is None
