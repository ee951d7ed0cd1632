"""The command line without a server: exit codes, texts, JSON, what is imported."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_a_spec_may_come_from_standard_input(process):
    text = (ROOT / "tests/data/run.yaml").read_text()
    done = process("plan", "-", "train.steps=7", "--json", stdin=text)
    assert done.returncode == 0
    assert json.loads(done.stdout)["plan"]["steps"] == 7


@pytest.mark.parametrize("kind", ["run", "sweep"])
def test_schemas_are_json(lehr, kind):
    schema = json.loads(lehr("spec", "schema", kind).stdout)
    assert schema["title"] == f"Lehr {kind}"
    assert schema["type"] == "object"


def test_doctor_lists_its_findings(lehr):
    done = lehr("doctor", "--json")
    report = json.loads(done.stdout)
    names = {check["name"] for check in report["checks"]}
    assert {"Python", "lehr[server]", "lehr[trainer]", "torch", "disk", "server"} <= names
    assert done.returncode == (0 if report["ok"] else 1)
    bad = [check for check in report["checks"] if check["status"] == "bad"]
    assert all(check["fix"] for check in bad)
