"""Attempts of a program that resume: from which path, under which versions, from which state."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import pytest

from lehr_testing.program_attempts import Attempts


@pytest.fixture
def attempts(tmp_path: Path) -> Attempts:
    return Attempts(tmp_path)


SAVES_ONCE = """
    import lehr_log
    open("state.txt", "w").write("1")
    lehr_log.checkpoint("state.txt", step=lehr_log.resume_step + 1)
"""


def saved_under(attempts: Attempts, **versions: str) -> str:
    """Save a checkpoint, and change the versions that it names; return its folder."""
    attempts.write(SAVES_ONCE)
    assert attempts.train() == 0
    [saved] = attempts.records("checkpoint")
    path = attempts.run / saved.path / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["versions"] |= versions
    path.write_text(json.dumps(manifest))
    return saved.path


def test_resumption_under_other_versions_is_recorded_and_logged(attempts):
    now = version("torch")
    saved = saved_under(attempts, torch="1.0", gone="3.1")
    assert attempts.train(resume_from=saved) == 0
    [resumed] = attempts.records("resumed")
    assert resumed.changed == [f"torch 1.0 -> {now}", "gone 3.1 -> none"]
    assert f"saved in another environment: torch 1.0 -> {now}, gone 3.1" in attempts.output


def test_deterministic_program_resumes_under_other_versions_only_as_a_fork(attempts, tmp_path):
    saved = saved_under(attempts, torch="1.0", lehr="0.1")
    assert attempts.train(resume_from=saved, deterministic=True) == 1
    [finished] = attempts.records("finished")
    assert (finished.outcome, finished.cause, finished.step) == ("failed", "bad_config", 0)
    assert f"torch 1.0 -> {version('torch')}. deterministic is true" in finished.message
    assert "or fork it" in finished.message
    assert not attempts.records("resumed")
    assert not (attempts.attempt / "work/state.txt").exists()

    (attempts.run / saved).rename(tmp_path / "of-another-run")
    assert attempts.train(resume_from=str(tmp_path / "of-another-run"), deterministic=True) == 0
    assert "saved in another environment: torch 1.0" in attempts.output


def test_damaged_checkpoint_is_refused(attempts):
    attempts.write("""
        import lehr_log
        open("a.txt", "w").write("x")
        lehr_log.checkpoint("a.txt", step=1)
    """)
    attempts.train()
    [saved] = attempts.records("checkpoint")
    (attempts.run / saved.path / "a.txt").write_text("y")
    assert attempts.train(resume_from=saved.path) == 1
    [finished] = attempts.records("finished")
    assert (finished.outcome, finished.step, finished.cause) == ("failed", 0, "bad_checkpoint")


ONE_FILE = """
    import lehr_log, os
    os.makedirs("out/step-3/deep", exist_ok=True)
    open("out/step-3/deep/state.txt", "w").write("x")
    print("from", lehr_log.resume_from and os.path.relpath(lehr_log.resume_from))
    {call}
"""


@pytest.mark.parametrize(
    "given",
    [
        "../..",
        *(pytest.param(path, marks=pytest.mark.nightly) for path in (None, "/etc", "out/\0")),
    ],
)
def test_checkpoint_without_a_usable_path_is_resumed_from_what_its_files_share(attempts, given):
    attempts.write(ONE_FILE.format(call="lehr_log.checkpoint('out/step-3', step=3)"))
    assert attempts.train() == 0
    [saved] = attempts.records("checkpoint")
    manifest = attempts.run / saved.path / "manifest.json"
    content = json.loads(manifest.read_text())
    assert content.pop("path", None) == "out/step-3"
    manifest.write_text(json.dumps(content if given is None else {**content, "path": given}))
    assert attempts.train(resume_from=saved.path) == 0
    assert "from out/step-3/deep/state.txt\n" in attempts.output


EVALUATION = """
    import json, pathlib, sys
    checkpoint, results = map(pathlib.Path, sys.argv[1:])
    text = (checkpoint / "state.json" if checkpoint.is_dir() else checkpoint).read_text()
    scores = {"toy": {"acc,none": float(text), "alias": "toy", "good": True}}
    (results / "a.json").write_text(json.dumps({"results": scores, "n-shot": {"toy": 0}}))
    print("acc", text)
"""


def test_evaluation_reads_a_checkpoint_of_a_program_where_it_is_put_back(attempts):
    attempts.write(SAVES_ONCE)
    assert attempts.train() == 0
    [saved] = attempts.records("checkpoint")
    assert evaluated(attempts, saved.path) == [(2, 1.0)]
    assert not attempts.records("checkpoint")


def test_evaluation_reads_a_checkpoint_of_lehrs_trainer_in_place(attempts, tmp_path):
    folder = tmp_path / "other/attempt-1/checkpoints/step-00000007"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text("3")
    manifest = {"step": 7, "tokens": 7, "reason": "interval"}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert evaluated(attempts, str(folder)) == [(8, 3.0)]


def evaluated(attempts: Attempts, checkpoint: str) -> list[tuple[int, float]]:
    attempts.write(EVALUATION, "evaluation.py")
    words = ["python", "evaluation.py", "{checkpoint}", "{results}"]
    program = {"script": None, "module": "lehr_log.evaluate", "steps": None, "argv": words}
    assert attempts.train(resume_from=checkpoint, **program) == 0, attempts.output
    return attempts.series("toy/acc")
