"""A run that goes on from another one's checkpoint with another batch, as a process."""

from __future__ import annotations

from pathlib import Path

from lehr_testing.trainer import make_run, records, series, train_to_end
from lehr_trainer.contract import layout
from lehr_trainer.contract.orders import LaunchNote
from lehr_trainer.data.loader import added

QUIET = {"validation": {"tokens": 512, "share": 0.1, "every": 2}, "checkpoint": {"every": 4}}


def test_fork_with_half_the_batch_goes_on_with_the_next_tokens(
    tmp_path: Path, corpus: Path, data: Path
) -> None:
    shape = {"sequences": 8, "sequence_length": 32}
    parent = make_run(tmp_path / "parent", corpus, steps=5, batch=shape, **QUIET)
    train_to_end(parent, data=data)
    checkpoint = layout.checkpoint_dir(parent / "attempt-1", 4)

    half = {**shape, "sequences": 4}
    attempt = make_run(tmp_path / "fork", corpus, steps=8, batch=half, **QUIET) / "attempt-1"
    attempt.mkdir()
    note = LaunchNote(resume="pinned", resume_from=str(checkpoint))
    (attempt / layout.LAUNCH).write_text(note.model_dump_json())
    train_to_end(attempt, data=data, ranks=2)

    made = [*records(attempt, "metrics"), *records(attempt, "evaluation")]
    assert {record["step"]: record["tokens"] for record in made} == {
        5: 1152,
        6: 1280,
        7: 1408,
        8: 1536,
    }
    manifest = layout.checkpoint_dir(attempt, 8) / layout.MANIFEST
    assert '"tokens": 1536' in manifest.read_text()
    before, after = (series("data/digest", path) for path in (parent / "attempt-1", attempt))
    # Its steps 5 and 6 have the parent's step 5; they had its step 3, which was trained on before.
    assert added(int(after[5]), int(after[6])) == before[5]
    epochs = series("data/epoch", attempt)
    assert epochs[6] == series("data/epoch", parent / "attempt-1")[5]
