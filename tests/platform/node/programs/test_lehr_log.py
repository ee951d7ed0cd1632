"""``lehr_log`` in a process of its own: it records, and never stops a training."""

from __future__ import annotations

import json
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from textwrap import dedent

import pytest


def run(text: str, *, says: str = "", **environment: str) -> str:
    # With nothing else to import: it needs the standard library alone.
    import lehr_log

    inside = {"PYTHONPATH": str(Path(lehr_log.__file__).parents[1]), **environment}
    done = subprocess.run(
        [sys.executable, "-S", "-c", dedent(text)],
        env=inside,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == says
    return done.stdout


def lines(path: Path, kind: str = "metrics") -> list[dict]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [one for one in found if one["kind"] == kind]


EVERYTHING = """
    import lehr_log, lehr_log.wandb as wandb
    lehr_log.log({"a": 1}, step=1)
    lehr_log.log(None)
    lehr_log.log({"a": object(), 3: "x"})
    lehr_log.checkpoint("x", step=1)
    lehr_log.validation_data(b"x")
    lehr_log.checkpoint(object(), step=None)
    print(lehr_log.should_stop(), lehr_log.config, lehr_log.resume_from, lehr_log.resume_step)
    with wandb.init(project="x", config={"lr": 1}, mode="disabled") as run:
        run.log({"b": 2.0}); wandb.log("no mapping"); wandb.watch(1).anything.at_all()
        wandb.log({"t": wandb.Table(data=[])})
    wandb.finish()
"""


def test_outside_of_lehr_everything_is_accepted_and_nothing_happens():
    assert run(EVERYTHING) == "False {} None 0\n"


@pytest.mark.parametrize("place", ["/dev/full", "/nowhere/at/all", "/"])
def test_log_that_cannot_be_written_does_not_stop_the_program(place):
    run(EVERYTHING, LEHR_LOG=place)


def test_other_ranks_that_the_program_starts_itself_record_nothing(tmp_path):
    run(EVERYTHING, LEHR_LOG=str(tmp_path / "log"), RANK="1")
    assert not [*tmp_path.iterdir()]


def test_values_and_steps_are_recorded(tmp_path):
    text = """
        import lehr_log
        class Tensor:
            def __float__(self): return 2.5
        lehr_log.log({"a": 1, "b": Tensor(), "c": "text"}, step=4)
        lehr_log.log({"a": float("nan")})
        lehr_log.log({"a": 9.0}, step=float("nan"))
        lehr_log.log({"a": 9.0}, step=float("inf"))
        open("val.bin", "wb").write(b"ab")
        lehr_log.validation_data("val.bin", b"c")
    """
    run(
        f"import os; os.chdir({str(tmp_path)!r})\n{dedent(text)}",
        LEHR_LOG=str(tmp_path / "log"),
        LEHR_RESUME_STEP="3",
        says="lehr_log: step nan is no number; its values are left out\n",
    )
    first, second = lines(tmp_path / "log")
    [data] = lines(tmp_path / "log", "validation_data")
    assert data["digest"] == sha256(b"abc").hexdigest()
    assert (first["kind"], first["step"], first["values"]) == ("metrics", 4, {"a": 1.0, "b": 2.5})
    assert second["step"] == 5
    assert second["values"]["a"] != second["values"]["a"]


def test_wandb_keeps_config_and_summary_and_names_what_it_leaves_out(tmp_path):
    text = """
        import os, lehr_log.wandb as wandb
        config = {"lr": 1e-3, "out": os.getcwd() + "/out", "opt": {"betas": (0.9, 0.95)}, "fn": print}
        run = wandb.init(project="x", config=config)
        wandb.config.update({"lr": 2e-3, "seed": 2**64}, allow_val_change=True)
        wandb.config.depth = 4
        wandb.log({"loss": 2.5, "img": wandb.Html("x"), "text": "y", "none": None}, step=3)
        wandb.summary["best"] = 0.5
        run.summary.update({"val": {"min": 1.5}, "path": "best.pt"})
        wandb.log({"img": wandb.Html("x"), "plot": wandb.plot.line([1], "x")}, step=4)
        run.alert(title="t", text="x")
        wandb.watch(None); wandb.define_metric("x", summary="min"); wandb.Settings(); wandb.Api()
        run._label(code="transformers_trainer"); hasattr(wandb, "sweep")
        run.summary["last"] = 7
    """
    run(text, LEHR_LOG=str(tmp_path / "log"))
    written = [(one["step"], one["values"]) for one in lines(tmp_path / "log") if one["values"]]
    assert written == [
        (3, {"loss": 2.5}),
        (3, {"summary/best": 0.5, "summary/val.min": 1.5}),
        (4, {"summary/last": 7.0}),
    ]
    configs = [line["values"] for line in lines(tmp_path / "log", "config")]
    assert {name: value for values in configs for name, value in values.items()} == {
        "lr": 2e-3, "out": "./out", "opt.betas": "(0.9, 0.95)", "seed": str(2**64), "depth": 4,
        "fn": "builtin_function_or_method",
    }  # fmt: skip
    left_out = lines(tmp_path / "log", "left_out")
    assert [name for line in left_out for name in line["values"]] == [
        "img (Html)", "text (str)", "summary/path (str)", "plot (Unsupported)", "alert", "watch", "Api",
    ]  # fmt: skip


def test_wandb_takes_the_metric_of_all_steps_as_the_step(tmp_path):
    # As Lightning's WandbLogger and transformers' callback do.
    text = """
        import lehr_log.as_wandb
        import sys; sys.path.insert(0, lehr_log.as_wandb.__path__[0])
        import wandb
        from wandb.sdk.lib import RunDisabled
        from wandb.wandb_run import Run
        run = wandb.init(project="x")
        print(isinstance(run, Run), isinstance(wandb.Table(), RunDisabled))
        run.define_metric("epoch/*", step_metric="epoch")
        run.define_metric("*", step_metric="trainer/global_step", step_sync=True)
        run.log({"loss": 1.5, "epoch": 1, "trainer/global_step": 49})
        wandb.log({"loss": 1.0, "epoch": 2, "trainer/global_step": 99})
        wandb.log({"loss": 0.5, "trainer/global_step": 7}, step=100)
        wandb.log({"loss": 0.4})
    """
    assert run(text, LEHR_LOG=str(tmp_path / "log")) == "True False\n"
    found = [(one["step"], one["values"]["loss"]) for one in lines(tmp_path / "log")]
    assert found == [(49, 1.5), (99, 1.0), (100, 0.5), (101, 0.4)]


@pytest.mark.parametrize(
    ("logged", "expected"), [([99, 99, 100, 101], [99, 99, 100, 101]), ([0, 1, 2], [101, 102, 103])]
)
def test_resumed_program_may_count_on_or_anew(logged, expected, tmp_path):
    text = f"""
        import lehr_log.wandb as wandb
        for n in {logged}:
            wandb.log(dict(iter=n, a=1))
    """
    run(text, LEHR_LOG=str(tmp_path / "log"), LEHR_RESUME_STEP="100")
    assert [one["step"] for one in lines(tmp_path / "log")] == expected


def test_checkpoint_declares_the_state_of_its_files_unless_they_are_many(tmp_path):
    text = f"""
        import lehr_log, os
        os.chdir({str(tmp_path)!r})
        os.makedirs("out/deep")
        open("out/deep/a", "w").write("abc")
        os.symlink("nowhere", "out/gone")
        os.utime("out/deep/a", ns=(5, 7))
        lehr_log.checkpoint("out", step=1)
        lehr_log.checkpoint("out/deep/a", step=2)
        lehr_log.checkpoint("missing", step=3)
        for n in range(600):
            open(f"out/{{n:0200}}", "w").close()
        lehr_log.checkpoint("out", step=4)
        for n in range(600):
            os.rename(f"out/{{n:0200}}", f"out/{{n}}")
        lehr_log.checkpoint("out", step=5)
        for n in range(600, 1200):
            open(f"out/{{n}}", "w").close()
        lehr_log.checkpoint("out", step=6)
    """
    run(text, LEHR_LOG=str(tmp_path / "log"))
    folder, file, missing, long, several, many = lines(tmp_path / "log", "checkpoint")
    assert folder["files"] == {"deep/a": [3, 7]}
    assert file["files"] == {".": [3, 7]}
    assert missing["files"] is long["files"] is many["files"] is None
    assert len(several["files"]) == 601


def test_sigterm_sets_should_stop_once_the_program_has_asked(tmp_path):
    text = """
        import lehr_log, os, signal
        print(lehr_log.should_stop())
        os.kill(os.getpid(), signal.SIGTERM)
        print(lehr_log.should_stop())
    """
    assert run(text, LEHR_LOG=str(tmp_path / "log")) == "False\nTrue\n"
    (tmp_path / "stop").touch()
    stopped = "import lehr_log; print(lehr_log.should_stop())"
    assert run(stopped, LEHR_STOP=str(tmp_path / "stop")) == "True\n"
