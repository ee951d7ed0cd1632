"""Programs of users, each a real process: what becomes of what they log, save and do wrong."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from lehr.code.project_copy import described
from lehr_testing.paths import TESTS
from lehr_testing.program_attempts import Attempts, prepare_chars
from lehr_testing.tfevents import scalar, version, write
from lehr_testing.waiting import until
from lehr_trainer.contract import layout
from lehr_trainer.contract.orders import Orders


@pytest.fixture
def attempts(tmp_path: Path) -> Attempts:
    return Attempts(tmp_path)


def ended(attempts: Attempts) -> tuple[str, int, str | None]:
    [finished] = attempts.records("finished")
    return finished.outcome, finished.step, finished.cause


def test_metrics_are_recorded_with_their_steps_and_standard_names(attempts):
    attempts.write("""
        import lehr_log
        for step in range(1, 4):
            lehr_log.log({"loss": 3.0 / step, "note": "text", "flag": object()}, step=step)
    """)
    assert attempts.train() == 0
    assert ended(attempts) == ("completed", 3, None)
    assert attempts.series("loss") == [(1, 3.0), (2, 1.5), (3, 1.0)]
    assert attempts.series("train/loss") == attempts.series("loss")
    [started] = attempts.records("started")
    assert (started.total_steps, started.code) == (10, "c" * 64)
    assert {"python", "torch", "pydantic"} <= started.versions.keys()


def test_script_that_only_prints_is_read_by_its_patterns(attempts):
    attempts.write("""
        import lehr_log
        for step in range(3):
            print(f"iter {step}: loss {3 - step}, time 2.00ms")
        lehr_log.log({"loss": 9.0}, step=9)
    """)
    assert attempts.train(prints=["iter {step}: loss {loss}", "val loss {val/loss}"]) == 0
    assert attempts.series("train/loss") == [(0, 3.0), (1, 2.0), (2, 1.0)]
    warnings = {one.code: one.message for one in attempts.records("warning")}
    assert warnings.keys() == {"only_prints", "no_line_matches"}
    assert warnings["no_line_matches"] == (
        "trainer.prints: no line matches val loss {val/loss}; its lines suggest "
        "'iter {step}: loss {loss}, time {time}ms'"
    )


def test_run_whose_first_lines_match_no_pattern_is_warned_while_it_runs(attempts):
    attempts.write("""
        import time
        for step in range(1_000):
            print("Step", step, "Loss", 1.0)
        time.sleep(60)
    """)
    process = attempts.start(prints=["iter {step}: loss {loss}"])
    until(lambda: attempts.records("warning"), within_s=60, what="a warning")
    process.terminate()
    process.wait(60)
    assert "its lines suggest 'Step {step} Loss {loss}'" in attempts.records("warning")[0].message


def test_arguments_and_config_reach_the_program(attempts):
    attempts.write("""
        import sys, lehr_log
        print("argv", sys.argv[1:], "config", lehr_log.config)
    """)
    attempts.train(args={"lr": 0.1, "name": "x y", "opt": {"beta": 0.9}}, style="space")
    assert "argv ['--lr', '0.1', '--name', 'x y', '--opt.beta', '0.9']" in attempts.output
    assert "config {'lr': 0.1" in attempts.output


@pytest.mark.parametrize(
    ("trainer", "variables", "found"),
    [
        ({}, {}, []),
        ({"launcher": "torchrun"}, {}, ["MASTER_PORT", "RANK", "WORLD_SIZE"]),
        ({}, {"WORLD_SIZE": "2"}, ["MASTER_PORT", "RANK", "WORLD_SIZE"]),
    ],
)
def test_single_process_has_variables_of_torchrun_only_if_asked_for(
    attempts, trainer, variables, found
):
    """Where nanoGPT finds RANK, it trains under NCCL, also as one process and on a CPU."""
    attempts.write("import os; print('FOUND', sorted(os.environ))")
    start = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "1", **variables}
    attempts.attempt.parent.mkdir(exist_ok=True)
    attempts.number = 1
    process = attempts.start(beside=start, **trainer)
    assert process.wait(100) == 0
    line = next(one for one in attempts.output.splitlines() if one.startswith("FOUND"))
    assert [name for name in ("MASTER_PORT", "RANK", "WORLD_SIZE") if repr(name) in line] == found


BAD: dict[str, tuple[str, list[str], Callable[[Attempts], bool]]] = {
    "never logs": ("print('hi')", ["nothing_logged"], lambda a: ended(a)[0] == "completed"),
    "logs NaN": (
        "import lehr_log; lehr_log.log({'loss': float('nan'), 'x': float('inf')}, step=1)",
        [],
        lambda a: str(a.series("loss")) == "[(1, nan)]",
    ),
    "logs 100,000 names": (
        "import lehr_log\nfor n in range(20):\n lehr_log.log({f'm{n}-{i}': i for i in range(5000)}, step=n + 1)",
        ["too_many_names"],
        lambda a: len({name for m in a.records("metrics") for name in m.values}) <= 1001,
    ),
    "a step that goes back": (
        "import lehr_log\nfor s in (1, 5, 3, 6):\n lehr_log.log({'x': s}, step=s)",
        ["step_back"],
        lambda a: a.series("x") == [(1, 1), (5, 5), (6, 6)],
    ),
    "prints binary": (
        "import os, lehr_log\nos.write(1, bytes(range(256)) * 100)\nlehr_log.log({'x': 1}, step=1)",
        [],
        lambda a: layout.rank_log(a.attempt, 0).stat().st_size > 25_000,
    ),
    "writes garbage into the log": (
        "import os, lehr_log\nopen(os.environ['LEHR_LOG'], 'ab').write(b'{]\\n[1]\\n\\xff\\n')\nlehr_log.log({'x': 1}, step=1)",
        ["bad_line"],
        lambda a: a.series("x") == [(1, 1)],
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_program_is_recorded_with_a_warning_and_breaks_nothing(attempts, case):
    text, codes, holds = BAD[case]
    attempts.write(text)
    assert attempts.train() == 0
    assert attempts.codes == codes
    assert holds(attempts)


REASONS = {
    "raise ValueError('boom at step 3')": "ValueError: boom at step 3 (train.py exited with code 1; lehr logs r)",
    "import argparse; argparse.ArgumentParser(prog='t').parse_args(['--x'])": "t: error: unrecognized arguments: --x (train.py exited with code 2; lehr logs r)",
    "print('step 7'); raise SystemExit(3)": "train.py exited with code 3; the last line of its output: step 7 (lehr logs r)",
    "raise SystemExit(3)": "train.py exited with code 3, and printed no error; its output: lehr logs r",
    "import os; os.kill(os.getpid(), 11)": "train.py was killed by SIGSEGV; its output: lehr logs r",
    "import os; raise KeyError(os.environ['HF_TOKEN'])": "KeyError: '***' (train.py exited with code 1; lehr logs r)",
}  # fmt: skip


@pytest.mark.parametrize("text", REASONS)
def test_program_that_fails_ends_the_run_with_its_error(attempts, text, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_hidden")
    attempts.write(text)
    assert attempts.train() == 1
    assert ended(attempts) == ("failed", 0, "program_failed")
    assert attempts.records("finished")[0].message == REASONS[text]


def test_pause_lets_the_program_save_and_resume_from_there(attempts):
    attempts.write("""
        import os, time, lehr_log
        for step in range(lehr_log.resume_step + 1, 1000):
            lehr_log.log({"x": step}, step=step)
            if lehr_log.should_stop():
                os.makedirs("out", exist_ok=True)
                open("out/state.txt", "w").write(str(step))
                lehr_log.checkpoint("out/state.txt", step=step)
                break
            if lehr_log.resume_from:
                print("resumed with", open(lehr_log.resume_from).read())
                break
            time.sleep(0.05)
    """)
    process = attempts.start(steps=1000)
    until(lambda: attempts.series("x"), within_s=100, what="a step")
    paused = Orders(desired="pause").model_dump_json()
    (attempts.attempt / layout.ORDERS).write_text(paused)
    process.communicate(timeout=100)
    assert process.returncode == 0
    outcome, step, cause = ended(attempts)
    assert (outcome, cause) == ("stopped", "pause"), "it has saved"
    [saved] = attempts.records("checkpoint")
    assert saved.step == step
    manifest = json.loads((attempts.run / saved.path / "manifest.json").read_text())
    assert list(manifest["files"]) == ["out%2Fstate.txt"]
    assert attempts.train(resume_from=saved.path, steps=1000) == 0
    assert f"resumed with {step}" in attempts.output
    [resumed] = attempts.records("resumed")
    assert (resumed.step, resumed.changed) == (step, [])
    assert "another environment" not in attempts.output
    assert attempts.series("x") == [(step + 1, step + 1)]


def test_program_that_ignores_sigterm_is_killed_after_its_grace(attempts):
    attempts.write("""
        import signal, time, lehr_log
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        lehr_log.log({"x": 1}, step=1)
        while True:
            time.sleep(1)
    """)
    process = attempts.start(stop_grace_s=0.5)
    until(lambda: attempts.series("x"), within_s=100, what="a step")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=100)
    assert ended(attempts) == ("stopped", 1, None)


def test_tensorboard_files_are_read_where_a_program_writes_only_them(attempts):
    events = [version(), *(scalar(step, loss=1.0 / step) for step in range(1, 4))]
    written = write(attempts.run.parent / "events.out.tfevents.1700000000.host.1.0", events)
    attempts.write(f"""
        import pathlib
        folder = pathlib.Path("runs")
        folder.mkdir()
        source = pathlib.Path({str(written)!r})
        (folder / source.name).write_bytes(source.read_bytes())
    """)
    attempts.train()
    assert [step for step, _ in attempts.series("train/loss")] == [1, 2, 3]


def test_records_of_the_real_wandb_are_read_at_the_latest_at_the_end(attempts):
    pytest.importorskip("wandb.proto")
    attempts.write("""
        import wandb
        run = wandb.init(project="x")
        for step in range(1, 4):
            wandb.log({"loss": 1.0 / step}, step=step)
        run.finish()
    """)
    assert attempts.train(wandb="records") == 0
    assert [step for step, _ in attempts.series("train/loss")] == [1, 2, 3]


def test_script_of_nanogpt_is_recorded_and_saved(attempts):
    source = TESTS / "lehr_testing/programs"
    attempts.write((source / "nano.py").read_text())
    prepare_chars(attempts.root)
    program = {
        "data": ["data"],
        "data_files": {"data": described(str(attempts.root), "data", ())},
        "args": {"device": "cpu", "compile": False, "max_iters": 12, "wandb_log": True},
        "steps": None,
        "steps_arg": "max_iters",
        "saves": ["out/ckpt.pt"],
    }
    assert attempts.train(**program) == 0, attempts.output
    assert [step for step, _ in attempts.series("train/loss")] == [0, 4, 8, 12]
    assert [step for step, _ in attempts.series("val/loss")] == [0, 4, 8, 12]
    assert attempts.series("program/mfu")[0] == (0, -100.0)
    assert not attempts.series("mfu")
    assert attempts.codes == []
    assert [(c.step, c.reason) for c in attempts.records("checkpoint")] == [(12, "declared")]
