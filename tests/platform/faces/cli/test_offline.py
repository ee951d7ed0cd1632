"""The command line without a server: exit codes, texts, JSON, what is imported."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lehr.faces.cli import main
from lehr_testing import cli
from lehr_testing.documented_commands import documented
from lehr_testing.paths import ROOT

LEHR = Path(sys.executable).parent / "lehr"


@pytest.fixture
def lehr(tmp_path):
    """Run `lehr` in this process, in a home without a server."""

    def call(
        *args: str, stdin: str | None = None, server: str = "http://127.0.0.1:9"
    ) -> cli.CommandResult:
        return cli.call(
            *args,
            cwd=ROOT,
            stdin=stdin,
            HOME=str(tmp_path),
            LEHR_HOME=str(tmp_path / "home"),
            LEHR_SERVER=server,
            _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1",
        )

    return call


@pytest.fixture
def process(tmp_path):
    """Runs the installed `lehr`, as a person does."""

    def call(
        *args: str, stdin: str | None = None, server: str = "http://127.0.0.1:9"
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [LEHR, *args],
            check=False,
            cwd=ROOT,
            input=stdin,
            capture_output=True,
            text=True,
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(tmp_path),
                "LEHR_HOME": str(tmp_path / "home"),
                "LEHR_SERVER": server,
                "PYTHONUTF8": "1",
                # Otherwise Typer looks for a shell among the parent processes; a test may have none.
                "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
            },
            timeout=60,
        )

    return call


@pytest.mark.parametrize("command", list(documented()))
def test_every_command_has_help_and_json(lehr, command):
    done = lehr(*command.split(), "--help")
    assert done.returncode == 0
    assert "--json" in done.stdout
    assert done.stderr == ""


def test_unknown_command_gets_a_suggestion(process):
    for name, meant in (
        ("swep", "sweep"),
        ("prepare", "data prepare"),
        ("token", "node token or lehr admin token"),
    ):
        done = process(name)
        assert done.returncode == 2
        assert done.stderr == (
            f"lehr has no command '{name}'.\n"
            f"  Did you mean lehr {meant}?   All of them: lehr --help\n"
        )
    for name, other in main.REPLACED.items():
        assert f"  Use {other}.   All of them" in process(name).stderr


def test_missing_server_is_reported_with_the_command_to_start_one(lehr, process):
    assert process("ls").returncode == 4
    for args in (["ls"], ["status"], ["watch", "x"], ["logs", "x"], ["cancel", "x"], ["queue"]):
        done = lehr(*args)
        assert done.returncode == 4, args
        assert done.stdout == ""
        assert done.stderr == (
            "Lehr's server does not answer at 127.0.0.1:9 (no process listens on the port).\n"
            "  Start it: lehr up        Another server: lehr --server URL, or LEHR_SERVER\n"
        )


def test_fresh_home_has_no_server_and_no_default_address(lehr, tmp_path):
    for args in (["status"], ["ls"], ["logs", "x"]):
        done = lehr(*args, server="")
        assert (done.returncode, done.stdout) == (4, "")
        assert done.stderr == (
            f"no Lehr server is running for {tmp_path / 'home'}.\n"
            "  Start it: lehr up        Another server: lehr --server URL, or LEHR_SERVER\n"
        )
    checks = json.loads(lehr("doctor", "--json", server="").stdout)["checks"]
    server = next(check for check in checks if check["name"] == "server")
    assert server["status"] == "note"
    assert server["fix"].startswith("Start it: lehr up")


def test_dry_run_prints_eight_trials_with_their_needs(lehr):
    done = lehr("sweep", "sweeps/lr_grid.yaml", "--dry-run", "--price", "2")
    assert done.returncode == 0
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert lines[0] == "lr-grid  grid over train.optimizer.lr, 8 trials, val/loss minimized"
    words = [" ".join(line.split()) for line in lines]
    assert words[1] == "model llama-1b-8layer 755.0 M parameters (268.4 M tied embedding)"
    assert words[2] == "tokens 65,536 a step x 1,000 steps = 65.5 M a trial 0.09 a parameter"
    assert words[3].startswith("memory")
    assert words[3].endswith("fits")
    assert words[4].startswith("host 9.1 GB of")
    disk = "disk checkpoints of 9.1 GB a trial: 2 saved, 2 kept (plan) in all 145.0 GB written,"
    assert words[5] == f"{disk} 145.0 GB kept"
    assert words[6] == "place 8 trials on 8 x A100, all at once"
    assert "GPU-hours, $" in words[7]
    trials = lines[10:]
    assert len(trials) == 8
    assert trials[0].split()[:5] == ["1", "1.0e-4", "1", "x", "A100"]
    assert trials[7].split()[:5] == ["8", "1.0e-2", "1", "x", "A100"]


def test_a_dry_run_as_json(lehr):
    done = lehr("sweep", "sweeps/lr_grid.yaml", "--dry-run", "--json")
    plan = json.loads(done.stdout)
    assert plan["kind"] == "sweep"
    rates = [trial["parameters"]["train.optimizer.lr"] for trial in plan["trials"]]
    assert rates == [1e-4, 2e-4, 4e-4, 8e-4, 1.5e-3, 3e-3, 6e-3, 1e-2]
    assert set(plan["trials"][0]) == {
        "number",
        "parameters",
        "model",
        "parameter_count",
        "embedding_parameters",
        "tokens_per_step",
        "steps",
        "tokens",
        "tokens_per_parameter",
        "replaced_parts",
        "not_counted",
        "corpus_tokens",
        "flops",
        "gpus",
        "gpu_type",
        "micro_batch",
        "nodes",
        "accumulation",
        "largest_micro_batch",
        "memory_bytes",
        "memory_stages",
        "gpu_memory_bytes",
        "checkpoint_copy_bytes",
        "checkpoints",
        "fits",
        "fits_in",
        "free_nodes",
        "seconds",
        "gpu_hours",
        "dollars",
        "basis",
    }


def test_plan_names_what_its_memory_does_not_count(lehr):
    graphs = ["train.compile.mode=reduce-overhead", "resources.gpu_type=H100"]
    text = lehr("plan", "sweeps/lr_grid.yaml", *[f"run.{one}" for one in graphs]).stdout
    assert "not counted: compile.mode: reduce-overhead keeps the memory of its CUDA graphs" in text
    plan = json.loads(lehr("plan", "sweeps/lr_grid.yaml", "--json").stdout)
    assert [trial["not_counted"] for trial in plan["trials"]] == [[]] * 8


def test_plan_of_points_that_set_different_fields_has_a_dash_for_the_others(lehr):
    done = lehr("plan", "sweeps/techniques_1000_steps.yaml")
    assert done.returncode == 0
    rows = [line.split()[:6] for line in done.stdout.splitlines()[-12:]]
    assert rows[0] == ["1", "adamw", "—", "—", "—", "0"]
    assert rows[11] == ["12", "—", "—", "—", "cce", "1"]


def test_a_plan_that_cannot_work_exits_with_3(lehr):
    done = lehr("plan", "sweeps/lr_grid.yaml", "resources.gpu_type=T4")
    assert done.returncode == 3
    assert "a T4 has 16 GB" in done.stderr


def test_wrong_input_exits_with_2_and_reports_that_nothing_was_recorded(lehr, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text((ROOT / "tests/data/run.yaml").read_text().replace("lr:", "learning_rate:"))
    done = lehr("submit", str(file))
    assert done.returncode == 2
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines[0] == f"{file}, line 10: train.optimizer.learning_rate is not a field."
    assert lines[1].startswith("  Did you mean train.optimizer.lr?   Fields here: name, lr")
    assert lines[2] == "Nothing was recorded."


def test_a_spec_may_come_from_standard_input(process):
    text = (ROOT / "tests/data/run.yaml").read_text()
    done = process("plan", "-", "train.steps=7", "--json", stdin=text)
    assert done.returncode == 0
    assert json.loads(done.stdout)["plan"]["steps"] == 7


def test_spec_of_another_kind_is_rejected_with_the_right_command(lehr):
    done = lehr("sweep", "tests/data/run.yaml")
    assert done.returncode == 2
    assert "Submit it with: lehr submit tests/data/run.yaml" in done.stderr
    done = lehr("submit", "tests/data/sweep.yaml")
    assert done.returncode == 2
    assert "Launch it with: lehr sweep tests/data/sweep.yaml" in done.stderr


def test_presets_count_parameters(lehr):
    rows = {
        row["name"]: row for row in json.loads(lehr("spec", "presets", "--json").stdout)["presets"]
    }
    assert rows["llama-1b"]["parameters"] == 1_241_581_568
    assert rows["llama-1b-8layer"]["parameters"] == 755_009_536
    assert "1,241,581,568" in lehr("spec", "presets").stdout


@pytest.mark.parametrize("kind", ["run", "sweep"])
def test_schemas_are_json(lehr, kind):
    schema = json.loads(lehr("spec", "schema", kind).stdout)
    assert schema["title"] == f"Lehr {kind}"
    assert schema["type"] == "object"


def test_doctor_lists_its_findings(lehr):
    done = lehr("doctor", "--json")
    report = json.loads(done.stdout)
    names = {check["name"] for check in report["checks"]}
    assert {"Python", "lehr[server]", "lehr[trainer]", "torch", "CPU", "disk", "server"} <= names
    assert done.returncode == (0 if report["ok"] else 1)
    bad = [check for check in report["checks"] if check["status"] == "bad"]
    assert all(check["fix"] for check in bad)


def test_doctor_finds_a_token_readable_by_others(lehr, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (home / "token").write_text("secret")
    (home / "token").chmod(0o644)
    report = json.loads(lehr("doctor", "--json").stdout)
    token = next(check for check in report["checks"] if check["name"] == "token")
    assert token["status"] == "bad"
    assert token["fix"] == f"chmod 600 {home / 'token'}"
