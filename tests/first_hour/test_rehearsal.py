"""``make gpu`` on a CPU: the same parts, on tiny models, with gloo in place of NCCL."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from first_hour import checks, ranks, runs, trained
from first_hour.__main__ import main
from first_hour.parts import Failed, Machine, NotHere, Session, Settings
from lehr.cli.checks import Check
from lehr_testing.trainer import records
from lehr_trainer.experiments.gpu_rows import SECTIONS

pytestmark = pytest.mark.timeout(1800)


def report(folder: Path) -> dict[str, dict]:
    found = json.loads((folder / "report.json").read_text())
    assert found["rehearsal"]
    return {part["name"]: part for part in found["parts"]}


def only(*names: str) -> list[str]:
    return [f"--only={name}" for name in names]


QUICK = ["checks: disk", "checks: GPUs", "run: plain", "ranks: overlap"]


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a rehearsal of one part of each kind that takes little time."""
    folder = tmp_path_factory.mktemp("rehearsed")
    assert main(["--rehearse", f"--out={folder}", *only(*QUICK)]) == 0
    return folder


def test_rehearsal_runs_parts_of_each_kind_and_goes_on(
    rehearsed: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = report(rehearsed)
    assert {name: part["status"] for name, part in found.items()} == {
        **dict.fromkeys(QUICK, "passed"),
        "checks: GPUs": "not here",
    }
    overlap = found["ranks: overlap"]["figures"]
    assert 0 < overlap["before the end of backward"] < overlap["buckets sent"]
    assert main(["--rehearse", f"--out={rehearsed}", *only(*QUICK)]) == 0
    output = capfd.readouterr().out
    assert output.count("passed before") == 3
    assert f"report: {rehearsed / 'report.md'}" in output
    again = report(rehearsed)
    del again["checks: GPUs"], found["checks: GPUs"]  # What is not here is tried again.
    assert again == found


@pytest.mark.nightly  # Parts that compile nothing are rehearsed above.
def test_whole_rehearsal_but_the_bench_has_no_failed_part(tmp_path: Path) -> None:
    names = ["checks: *", "tests: *", "run: *", "ranks: *"]
    assert main(["--rehearse", f"--out={tmp_path}", *only(*names)]) == 0
    found = report(tmp_path)
    statuses = {name: part["status"] for name, part in found.items()}
    assert not {name: s for name, s in statuses.items() if s not in {"passed", "not here"}}
    assert {name for name, status in statuses.items() if status == "passed"} >= {
        *(
            f"ranks: {name}"
            for name in ("alone", "like one", "fast", "overlap", "resume", "killed", "on one")
        ),
        *(f"run: {name}" for name in ("masks", "blocks compiled", "FP8 rowwise", "Muon", "fp16")),
    }
    assert found["ranks: killed"]["figures"] == {"resumed at step": 4, "bitwise": "equal"}


@pytest.mark.nightly  # They compile for minutes; test_limit.py has the bench's command.
@pytest.mark.parametrize("section", SECTIONS)
def test_rehearsed_section_of_the_bench_passes_with_a_compiled_row(
    tmp_path: Path, section: str
) -> None:
    part = f"bench: {section}"
    assert main(["--rehearse", f"--out={tmp_path}", *only(part, "bench: table")]) == 0
    found = report(tmp_path)
    assert found[part]["status"] == "passed"
    # The other sections are not measured.
    assert found["bench: table"]["status"] == "unfinished"
    assert SECTIONS[section] in found["bench: table"]["text"]
    rows = [json.loads(path.read_text()) for path in (tmp_path / "bench").glob("*.json")]
    compiled = [
        row["key"]
        for row in rows
        if not row["error"] and row["config"]["compile"]["scope"] != "none"
    ]
    # Attention by sequence length is measured eagerly.
    assert bool(compiled) is (section != "context")


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    folder = tmp_path_factory.mktemp("session")
    machine = Machine("cpu", (), "2.13.0", None)
    return Session(folder, machine, Settings("tiny", 60.0), lambda _line: None)


@pytest.fixture(scope="module")
def plain(rehearsed: Path) -> Path:
    """The attempt of a plain run; what is changed in a copy of its records must be noticed."""
    return rehearsed / "work" / "run-plain" / "attempt-1"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"outcome":"completed"', '"outcome":"stopped"', "did not complete"),
        ('"raw_ce_fp32":', '"raw_ce_fp32":9', "differ by"),
        ('"raw_ce_fp32":', '"raw":', "no step has the loss's check"),
        ('"kind":"sample"', '"kind":"simple"', "no sample"),
        ('"kind":"evaluation"', '"kind":"other"', "no evaluation"),
        ('"train/loss":6.', '"train/loss":5.', "did not fall"),
    ],
)
def test_run_that_is_not_sound_is_a_failure(
    tmp_path: Path, plain: Path, old: str, new: str, says: str
) -> None:
    trained.require_sound(plain)
    attempt = tmp_path / plain.name
    attempt.mkdir()
    (attempt / "checkpoints").symlink_to(plain / "checkpoints")
    text = (plain / "events.jsonl").read_text()
    assert old in text
    count = 1 if "train/loss" in old else -1
    (attempt / "events.jsonl").write_text(text.replace(old, new, count))
    with pytest.raises(Failed, match=says):
        trained.require_sound(attempt)


def test_run_without_its_package_is_not_here_and_another_error_is_a_failure(
    session: Session,
) -> None:
    with pytest.raises(NotHere, match="needs a CUDA GPU"):
        trained.train(session, session.work("liger"), loss={"name": "liger"})
    harm = "import lehr_trainer.step_parts as a\na.build_loss = lambda *_: 1 / 0\n"
    with pytest.raises(Failed, match="division by zero"):
        trained.train(session, session.work("broken"), code=harm)


def test_curves_that_differ_are_a_failure() -> None:
    assert trained.gap_between({1: 2.0, 2: 1.5}, {1: 2.0, 2: 1.75}) == 0.25
    with pytest.raises(Failed, match="other steps"):
        trained.gap_between({1: 2.0}, {1: 2.0, 2: 1.0})
    with pytest.raises(Failed, match=r"losses differ by 0\.25"):
        trained.require_near(0.25, 0.2, "losses")
    with pytest.raises(Failed):
        trained.require_near(float("nan"), 0.2, "losses")


def test_more_ranks_than_gpus_are_not_here(session: Session) -> None:
    machine = Machine("cuda", ("NVIDIA L4",), "2.13.0", None)
    alone = Session(session.folder, machine, session.settings, session.log)
    parts = ranks.parts(alone)
    assert parts.pop(0).name == "ranks: alone"
    for part in parts:
        with pytest.raises(NotHere, match="needs 2 GPUs; this machine has 1"):
            part.act(alone)
    eight = Machine("cuda", ("NVIDIA H100 80GB HBM3",) * 8, "2.13.0", None)
    names = [p.name for p in ranks.parts(Session(session.folder, eight, session.settings, print))]
    assert names[-4:] == [
        "ranks: like one, 4", "ranks: fast, 4", "ranks: like one, 8", "ranks: fast, 8",
    ]  # fmt: skip


def test_bad_check_fails_its_part_with_the_fix() -> None:
    good, bad = Check("disk", "ok", "much"), Check("GPU 0", "bad", "MIG is on", "nvidia-smi -mig 0")
    assert checks.judged([good]).text == "- disk (ok): much"
    with pytest.raises(Failed, match=r"GPU 0: MIG is on\. nvidia-smi -mig 0"):
        checks.judged([good, bad])


def test_each_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(module: str) -> None:
        if "." in module:
            raise ModuleNotFoundError(module)

    monkeypatch.setattr(checks, "find_spec", found)
    check = checks._optional_packages()
    assert check.status == "note"
    assert check.found.startswith("not installed: bitsandbytes, cut-cross-entropy, liger-kernel")
    assert check.found.endswith("transformer-engine, FlashAttention 3, FlashAttention 4")


def test_names_of_parts_are_unique_and_configs_valid(session: Session) -> None:
    from first_hour.__main__ import every_part
    from lehr_trainer.configs.train import TrainConfig

    names = [part.name for part in every_part(session)]
    assert len(names) == len(set(names))
    machine = Machine("cuda", ("NVIDIA H100 80GB HBM3",) * 2, "2.13.0", None)
    on_gpu = Session(session.folder, machine, session.settings, session.log)
    for run in runs.RUNS:
        TrainConfig.model_validate(trained.values(on_gpu, **run.changes))


def test_unknown_part_and_missing_gpu_are_clear_errors(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["--rehearse", f"--out={tmp_path}", *only("run: attenion")]) == 2
    assert "no part has a name like" in capfd.readouterr().err
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main([f"--out={tmp_path}"]) == 2
    assert "make gpu ARGS=--rehearse" in capfd.readouterr().err


def test_records_of_a_run_have_the_figures_of_the_report(plain: Path) -> None:
    found = trained.figures(plain)
    metrics = records(plain, "metrics")
    assert found["first loss"] == metrics[0]["values"]["train/loss"]
    assert found["last loss"] == metrics[-1]["values"]["train/loss"]
    assert found["tokens/s"] > 0
