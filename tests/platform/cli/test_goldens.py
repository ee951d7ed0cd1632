"""The exact output of each command: text, JSON and errors.

``tests/lehr_testing/goldens.py`` says how to renew them.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import json
import re
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest
import typer
from pydantic import ValidationError

from lehr import formats, schemas
from lehr.cli import main
from lehr.client import transport
from lehr.control.lifecycle import RunState
from lehr.schemas.base import View
from lehr.schemas.cluster import QueueEntry
from lehr_testing import cli, goldens, rollouts, seeding
from lehr_testing.api import RUN_SPEC, SWEEP_SPEC, TOKEN, served
from lehr_testing.paths import ROOT

_DB = "tests/platform/cli/test_db.py"
_UPLOAD = "tests/e2e/test_checkpoint_upload.py"
_TOKENS = "tests/platform/cli/test_token.py"
_MAINTENANCE = "tests/platform/cli/test_maintenance.py"
_QUOTAS = "tests/platform/cli/test_quota.py"
_SECRETS = "tests/platform/cli/test_secret.py"
NOT_HERE = {
    "node join": "tests/platform/cli/test_node.py::"
    "test_checks_are_listed_and_a_machine_with_a_bad_one_does_not_join",
    "node leave": "tests/platform/cli/test_node.py::test_machine_that_has_not_joined_cannot_leave",
    "node token": "tests/platform/cli/test_node.py::test_token_is_printed_as_a_command_that_works",
    "support-bundle": "tests/platform/cli/test_support_bundle.py::"
    "test_bundle_is_written_and_its_files_are_listed",
    "token create": f"{_TOKENS}::test_token_is_created_used_rotated_and_revoked",
    "token ls": f"{_TOKENS}::test_token_is_created_used_rotated_and_revoked",
    "token rotate": f"{_TOKENS}::test_token_is_created_used_rotated_and_revoked",
    "token revoke": f"{_TOKENS}::test_token_is_created_used_rotated_and_revoked",
    "secret set": f"{_SECRETS}::test_secret_is_read_from_standard_input_listed_and_removed",
    "secret ls": f"{_SECRETS}::test_secret_is_read_from_standard_input_listed_and_removed",
    "secret rm": f"{_SECRETS}::test_secret_is_read_from_standard_input_listed_and_removed",
    **dict.fromkeys(
        ("maintenance add", "maintenance ls", "maintenance rm"),
        f"{_MAINTENANCE}::test_window_is_declared_listed_and_removed",
    ),
    "quota set": f"{_QUOTAS}::test_quota_is_set_listed_and_removed",
    "quota ls": f"{_QUOTAS}::test_quota_is_set_listed_and_removed",
    "quota rm": f"{_QUOTAS}::test_quota_is_set_listed_and_removed",
    "audit": f"{_TOKENS}::test_audit_lists_who_did_what",
    "login-link": f"{_TOKENS}::test_login_link_is_an_address_without_the_token",
    "new trainer": "tests/platform/cli/test_new.py::"
    "test_project_is_written_planned_and_pinned_by_its_capsule",
    "code show": "tests/platform/cli/test_code.py::test_code_of_a_run_is_shown_compared_and_checked_out",
    "code diff": "tests/platform/cli/test_code.py::test_code_of_a_run_is_shown_compared_and_checked_out",
    "code checkout": "tests/platform/cli/test_code.py::test_code_of_a_run_is_shown_compared_and_checked_out",
    "webhook add": "tests/platform/cli/test_webhook.py::test_webhook_is_added_from_standard_input_tested_listed_and_removed",
    "webhook ls": "tests/platform/cli/test_webhook.py::test_webhook_is_added_from_standard_input_tested_listed_and_removed",
    "webhook rm": "tests/platform/cli/test_webhook.py::test_webhook_is_added_from_standard_input_tested_listed_and_removed",
    "webhook test": "tests/platform/cli/test_webhook.py::test_webhook_is_added_from_standard_input_tested_listed_and_removed",
    # Commands without a golden, and a test that runs each.
    "demo": "tests/e2e/test_demo.py::test_the_demo_prints_a_ranked_table_and_reuses_a_running_server",
    "up": "tests/e2e/test_up_defaults.py::"
    "test_up_without_gpus_offers_logical_ones_and_remembers_their_number",
    "down": "tests/e2e/test_up_defaults.py::"
    "test_up_without_gpus_offers_logical_ones_and_remembers_their_number",
    "doctor": "tests/platform/cli/test_offline.py::test_doctor_lists_its_findings",
    "schema": "tests/platform/cli/test_offline.py::test_schemas_are_json",
    "bench": "tests/trainer/process/test_experiments.py::test_table_is_printed_with_units",
    "report": "tests/platform/cli/test_report.py::"
    "test_report_is_written_beside_the_command_by_default",
    "checkpoints save": "tests/platform/cli/test_verbs.py::"
    "test_save_works_for_a_running_run_and_is_an_error_otherwise",
    "checkpoints verify": f"{_UPLOAD}::"
    "test_checkpoints_are_copied_retained_by_policy_and_can_be_downloaded",
    "checkpoints download": f"{_UPLOAD}::"
    "test_checkpoints_are_copied_retained_by_policy_and_can_be_downloaded",
    "checkpoints export": "tests/platform/client/test_model_export.py::"
    "test_command_exports_the_best_checkpoint_from_its_copy",
    "note": "tests/api/test_notes.py::test_command_shows_replaces_and_removes_a_note",
    "view ls": "tests/api/test_notes.py::test_views_are_saved_replaced_listed_and_removed",
    "view save": "tests/api/test_notes.py::test_views_are_saved_replaced_listed_and_removed",
    "view rm": "tests/api/test_notes.py::test_views_are_saved_replaced_listed_and_removed",
    "system": "tests/api/test_system.py::test_commands_print_figures_and_json",
    "cluster history": "tests/api/test_system.py::test_commands_print_figures_and_json",
    "mcp": "tests/platform/mcp_server/test_server.py::"
    "test_json_shows_the_account_and_wrong_options_are_refused",
    "wandb mirror": "tests/platform/client/test_results.py::"
    "test_command_line_mirrors_a_sweep_to_wandb",
    "db backup": f"{_DB}::test_a_backup_taken_while_another_process_writes_restores_clean",
    "db restore": f"{_DB}::test_restore_over_a_home_needs_replace_and_keeps_the_old_files",
    "db rebuild": f"{_DB}::test_rebuild_and_upgrade_with_a_stopped_server",
    "db upgrade": f"{_DB}::test_rebuild_and_upgrade_with_a_stopped_server",
}
RUN_YAML = json.dumps({**RUN_SPEC, "name": "new"}, indent=1)
SWEEP_YAML = json.dumps({**SWEEP_SPEC, "name": "new-grid"}, indent=1)
ROLLOUT_YAML = json.dumps(rollouts.plain(name="new-rollout"), indent=1)
BIG = json.dumps(
    {
        **RUN_SPEC,
        "name": "big",
        "train": {
            **RUN_SPEC["train"],
            "model": "llama-1b",
            "data": {"corpus": {"kind": "stdlib"}},
            "batch": {"sequences": 512, "sequence_length": 2048},
        },
        "resources": {"gpus": 1, "gpu_type": "A100"},
    }
)


@dataclass
class CommandResult:
    code: int
    out: str
    err: str


class World:
    """A server with runs in every state, and the command line."""

    def __init__(self, api: Any, address: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.api, self.address, self.folder, self._patch = api, address, folder, patch
        self.names = goldens.Names()
        self.names.give(str(folder), "FOLDER")

    def run(self, name: str, **changes: Any) -> Any:
        made = self.api.store.runs.create(seeding.run_spec(name, steps=100, **changes))
        self.names.give(made.id, f"{name:_<8.8}")
        return made

    def ended(self, name: str, state: RunState = RunState.COMPLETED, **more: Any) -> Any:
        made = self.run(name)
        attempt = seeding.start(self.api.store, made)
        attempt.train(range(1, 101))
        attempt.checkpoint(50, val_loss=5.61)
        attempt.checkpoint(100, val_loss=5.204)
        attempt.end(state, 100, **more)
        return made

    def lehr(self, *args: str, stdin: str = "", **environment: str) -> CommandResult:
        """Run a command in this process, as the entry point does."""
        known = {"SERVER": self.address, "TOKEN": TOKEN, "HOME": str(self.folder / "home")}
        given = {f"LEHR_{name}": value for name, value in {**known, **environment}.items()}
        with self._patch.context() as patch:
            patch.setattr(formats, "ago", _ago)
            # A busy machine must not add a notice that the server is slow.
            patch.setattr(transport, "SLOW_S", 60.0)
            result = cli.call(*args, cwd=self.folder, stdin=stdin, **given)
        return CommandResult(result.returncode, result.stdout, result.stderr)

    def shown(self, args: list[str], result: CommandResult) -> str:
        """Return a command with its output in the format of a golden."""
        text = f"$ lehr {' '.join(args)}\n{result.out}"
        if result.err:
            text += f"--- stderr\n{result.err}"
        return self.names.text(f"{text}--- exit {result.code}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    texts = folder / "texts"
    texts.mkdir()
    for number in range(60):
        (texts / f"{number}.txt").write_text(f"text {number} " * 50)
    texts = {
        "new.yaml": RUN_YAML,
        "new-grid.yaml": SWEEP_YAML,
        "new-rollout.yaml": ROLLOUT_YAML,
        "big.yaml": BIG,
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "wrong.yaml").write_text(RUN_YAML.replace('"steps"', '"stpes"'))
    corpus = {"kind": "text", "paths": ["texts"]}
    train = {**RUN_SPEC["train"], "data": {"corpus": corpus, "tokenizer": "byte"}}
    train["validation"] = {"share": 0.1}
    (folder / "texts.yaml").write_text(json.dumps({**RUN_SPEC, "train": train}))
    return folder


@pytest.fixture(scope="module")
def patch():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def world(folder, patch):
    """A server for commands that only read."""
    with served(folder / "home") as (api, address):
        world = World(api, address, folder, patch)
        one = world.ended("one")
        other = world.run("other", lr=9e-4)
        seeding.start(api.store, other, gpus=(1,)).train(range(1, 101))
        world.ended("crashed", RunState.FAILED, cause="oom", message="out of GPU memory")
        sweep, runs = seeding.create_sweep(
            api.store, seeding.lr_sweep("grid", [3e-4, 1e-3, 1e-2], steps=100)
        )
        world.names.give(sweep.id, "grid____")
        for number, run in enumerate(runs, start=1):
            world.names.give(run.id, f"grid-{number}__")
            attempt = seeding.start(api.store, run, gpus=(number,))
            attempt.train(range(1, 101))
            attempt.end(RunState.COMPLETED, 100)
        waits = world.run("waits", gpus=4)
        api.dispatcher.waiting = [
            QueueEntry(
                position=1,
                run_id=waits.id,
                name="waits",
                gpus=4,
                nodes=1,
                gpu_type="H100",
                priority=0,
                reason="waits for 4 x H100; next in line at priority 0",
                queued_at=1_760_000_000.0,
            )
        ]
        a_rollout(world, {"up-one-gpu": rollouts.Bug(mfu=0.04)})
        assert one.id
        yield world


def a_rollout(world: World, bugs: dict[str, rollouts.Bug] | None = None) -> None:
    """Create a rollout and run it as far as its bugs allow; without bugs it is not started."""
    made = rollouts.create(world.api.store, rollouts.spec(name="up"))
    if bugs is not None:
        lives = rollouts.World(world.api.store)
        lives.controller.enqueue_all()
        lives.play(bugs)
    world.names.give(made.id, "up______")
    _name_what_is_new(world)


LOOKING = {
    "status": ["status"],
    "ls": ["ls"],
    "ls-sweeps": ["ls", "--sweeps"],
    "ls-rollouts": ["ls", "--rollouts"],
    "ls-nothing": ["ls", "nothing-of-the-kind"],
    "show-run": ["show", "one"],
    "show-sweep": ["show", "grid"],
    "show-rollout": ["show", "up"],
    "watch-run": ["watch", "one"],
    "watch-sweep": ["watch", "grid"],
    "compare": ["compare", "one", "other", "--metric", "train/loss"],
    "transfer": ["transfer", "grid", "--to", "big.yaml", "train.model.hidden_size=4096"],
    "logs": ["logs", "one", "-n", "3"],
    "logs-list": ["logs", "one", "--list"],
    "diagnose": ["diagnose", "one"],
    "export": ["export", "one", "-o", "metrics.jsonl"],
    "queue": ["queue"],
    "tag-look": ["tag", "one"],
    "checkpoints-ls": ["checkpoints", "ls", "one"],
    "cluster-ls": ["cluster", "ls"],
    "plan-run": ["plan", "big.yaml", "resources.gpu_type=H100", "train.batch.micro_batch=8"],
    "plan-sweep": ["plan", "new-grid.yaml"],
    "submit-dry-run": ["submit", "new.yaml", "--dry-run"],
    "sweep-dry-run": ["sweep", "new-grid.yaml", "--dry-run"],
    "plan-rollout": ["plan", "new-rollout.yaml", "resources.gpu_type=H100"],
    "rollout-dry-run": ["rollout", "new-rollout.yaml", "--dry-run"],
    "presets": ["presets"],
    "data-prepare": ["data", "prepare", "texts.yaml"],
    "db-check": ["db", "check"],
}


@pytest.mark.parametrize("name", LOOKING)
def test_text_output_matches_its_golden(world, name):
    result = world.lehr(*LOOKING[name])
    assert result.code == 0, result.err
    goldens.check(f"cli/{name}.txt", _steady(name, world.shown(LOOKING[name], result)))


@pytest.mark.parametrize("name", LOOKING)
def test_json_output_matches_its_golden(world, name):
    args = [*LOOKING[name], "--json"]
    result = world.lehr(*args)
    assert result.code == 0, result.err
    # `watch` prints a line whenever something changed; an ended run or sweep is one line.
    found = json.loads(result.out)
    if not name.startswith("watch"):
        as_documented(args, found)
    goldens.check_values(name, _steady_json(name, world.names.json(found)))


@pytest.fixture
def acting(tmp_path_factory, folder, patch):
    """A server of its own for commands that change something."""
    home = tmp_path_factory.mktemp("acting")
    with served(home / "home") as (api, address):
        world = World(api, address, folder, patch)
        world.names.give(str(home), "ACTING")
        yield world


UNLIKE = {
    "compare-held-out": ["compare", "grid-1", "grid-2"],
    "show-sweep-held-out": ["show", "grid"],
}


def test_messages_about_different_held_out_sets(acting):
    a_sweep(acting)
    store = acting.api.store
    for number, held_out in enumerate(("6705cb68" * 8, "6dc60039" * 8), start=1):
        attempt = seeding.start(
            store, store.runs.find(f"grid-{number}"), gpus=(number,), held_out=held_out
        )
        attempt.train(range(1, 101))
        attempt.end(RunState.COMPLETED, 100)
    for name, args in UNLIKE.items():
        result = acting.lehr(*args)
        assert result.code == 0, result.err
        goldens.check(f"cli/{name}.txt", acting.shown(args, result))
        answer = json.loads(acting.lehr(*args, "--json").out)
        as_documented(args, answer)
        goldens.check_values(name, acting.names.json(answer))


def a_sweep(world: World) -> None:
    spec = seeding.lr_sweep("grid", [3e-4, 1e-3], steps=100)
    sweep, runs = seeding.create_sweep(world.api.store, spec)
    world.names.give(sweep.id, "grid____")
    for number, run in enumerate(runs, start=1):
        world.names.give(run.id, f"grid-{number}__")


def _with_files(world: World) -> None:
    made = world.ended("one")
    folder = world.api.store.home / "runs" / made.id / "attempt-1/checkpoints/step-00000050"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")


ACTING = {
    # What it needs first, then the command.
    "submit": (None, ["submit", "new.yaml"]),
    "sweep": (None, ["sweep", "new-grid.yaml", "-y"]),
    "rollout": (None, ["rollout", "new-rollout.yaml", "-y"]),
    "cancel-rollout": (a_rollout, ["cancel", "up"]),
    "cancel-run": (lambda world: world.run("waits"), ["cancel", "waits"]),
    "cancel-sweep": (a_sweep, ["cancel", "grid", "-y"]),
    "pause": (lambda world: world.run("waits"), ["pause", "waits"]),
    "priority": (lambda world: world.run("waits"), ["priority", "waits", "-5"]),
    "resume": (lambda world: world.ended("paused", RunState.PAUSED), ["resume", "paused"]),
    "retry": (
        lambda world: world.ended("crashed", RunState.FAILED, cause="oom", message="no memory"),
        ["retry", "crashed"],
    ),
    "extend": (a_sweep, ["extend", "grid", "train.optimizer.lr=[3e-3]"]),
    "fork": (
        _with_files,
        ["fork", "one", "--step", "50", "train.optimizer.lr=1.5e-4"],
    ),
    "seeds": (lambda world: world.ended("one"), ["seeds", "one", "--n", "2", "-y"]),
    "checkpoints-rm": (_with_files, ["checkpoints", "rm", "one", "--step", "50", "-y"]),
    "cluster-exclude": (None, ["cluster", "exclude", "n1", "--reason", "its fans are replaced"]),
    "cluster-readmit": (None, ["cluster", "readmit", "n1"]),
    "tag": (lambda world: world.run("one", tags=["omk"]), ["tag", "one", "add", "fp8", "baseline"]),
    "tag-sweep": (a_sweep, ["tag", "grid", "add", "baseline"]),
    "tag-remove": (
        lambda world: world.run("one", tags=["omk", "fp8"]),
        ["tag", "one", "remove", "omk"],
    ),
    "archive": (lambda world: world.ended("one"), ["archive", "one"]),
    "unarchive": (lambda world: world.ended("one"), ["unarchive", "one"]),
    "delete": (lambda world: world.ended("one"), ["delete", "one", "-y"]),
}


@pytest.mark.parametrize("name", ACTING)
def test_output_of_commands_with_effects_matches_its_golden(acting, name):
    before, args = ACTING[name]
    found = []
    for more in ([], ["--json"]):
        # A second call may see the effect of the first, so each starts with a new server.
        if before is not None and (not more or name not in {"archive", "unarchive", "delete"}):
            before(acting)
        result = acting.lehr(*args, *more)
        assert result.code == 0, result.err
        found.append(result)
        _name_what_is_new(acting)
    goldens.check(f"cli/{name}.txt", acting.shown(args, found[0]))
    answer = json.loads(found[1].out)
    as_documented(args, answer)
    goldens.check_values(name, acting.names.json(answer))


def _name_what_is_new(world: World) -> None:
    for run in world.api.store.runs.page(archived=None, limit=100).items:
        if run.id not in world.names._given:
            world.names.give(run.id, f"{run.name:_<8.8}")
    for rollout in world.api.store.rollouts.page(limit=100).items:
        if rollout.id not in world.names._given:
            world.names.give(rollout.id, f"{rollout.name:_<8.8}")
    for sweep in world.api.store.sweeps.page(limit=100).items:
        if sweep.id not in world.names._given:
            world.names.give(sweep.id, f"{sweep.name:_<8.8}")


WRONG = {
    "no-such-command": ["submitt"],
    "no-such-run": ["show", "onne"],
    "no-such-file": ["submit", "neww.yaml"],
    "no-such-option": ["ls", "--stat", "running"],
    "no-such-state": ["ls", "--state", "runing"],
    "a-misspelt-field": ["submit", "wrong.yaml"],
    "a-misspelt-override": ["submit", "new.yaml", "train.learning_rate=1e-3"],
    "an-override-without-a-value": ["submit", "new.yaml", "train.steps"],
    "a-sweep-as-a-run": ["submit", "new-grid.yaml"],
    "a-run-as-a-sweep": ["sweep", "new.yaml"],
    "a-run-as-a-rollout": ["rollout", "new.yaml"],
    "a-rollout-as-a-run": ["submit", "new-rollout.yaml"],
    "a-misspelt-gate": ["rollout", "new-rollout.yaml", "stages.cpu.gates.mfu.at_leest=0.3"],
    "a-plan-that-cannot-work": ["submit", "big.yaml"],
    "nobody-to-ask": ["sweep", "new-grid.yaml"],
    "a-missing-argument": ["watch"],
    "one-run-to-compare": ["compare", "one"],
    "a-transfer-by-an-unknown-rule": ["transfer", "grid", "--to", "big.yaml", "--rule", "quater"],
    "a-transfer-to-a-sweep": ["transfer", "grid", "--to", "new-grid.yaml"],
    "a-transfer-over-its-own-spec": ["transfer", "grid", "--to", "big.yaml", "-o", "big.yaml"],
    "a-metric-that-is-not-there": ["compare", "one", "other", "-m", "train/los"],
    "resume-of-what-is-not-paused": ["resume", "one"],
    "fork-without-that-checkpoint": ["fork", "one", "--step", "33"],
    "a-shell-without-completion": ["--show-completion", "fsh"],
    "a-tag-without-a-verb": ["tag", "one", "baseline"],
    "a-tag-that-no-filter-finds": ["tag", "one", "add", "a,b"],
    "json-that-never-ends": ["logs", "one", "-f", "--json"],
}


@pytest.mark.parametrize("name", WRONG)
def test_error_messages(world, name):
    result = world.lehr(*WRONG[name])
    assert result.code in {2, 3}
    assert "Traceback" not in result.err
    goldens.check(f"cli/errors/{name}.txt", world.shown(WRONG[name], result))
    if "--json" in WRONG[name]:
        assert set(json.loads(result.out)["error"]) == {"code", "message", "hint", "problems"}


def test_errors_without_a_server_and_with_a_wrong_token(world):
    alone = world.lehr("ls", SERVER="http://127.0.0.1:9")
    text = f"{world.shown(['ls'], alone)}\n"
    refused = world.lehr("ls", TOKEN="not-it", SERVER=world.address)
    text += world.shown(["ls"], refused)
    assert (alone.code, refused.code) == (4, 4)
    goldens.check("cli/errors/no-server.txt", text)


def test_errors_are_json_for_programs(world):
    result = world.lehr("submit", "wrong.yaml", "--json")
    assert (result.code, result.err) == (2, "")
    goldens.check_json("cli/errors/a-misspelt-field.json", world.names.json(json.loads(result.out)))


def test_every_command_has_a_golden_or_a_test_elsewhere():
    shown = [*LOOKING.values(), *(args for _, args in ACTING.values())]
    tried = {_command(args) for args in shown}
    missing = set(documented()) - tried - set(NOT_HERE)
    assert not missing, f"no golden for {sorted(missing)}: add one, or a test to NOT_HERE"
    assert not set(NOT_HERE) & tried
    assert not set(NOT_HERE) - set(documented())


@pytest.mark.parametrize("command", NOT_HERE)
def test_named_test_runs_the_command_without_a_golden(command):
    path, _, name = NOT_HERE[command].partition("::")
    file = ast.parse((ROOT / path).read_text())
    functions = {node.name: node for node in file.body if isinstance(node, ast.FunctionDef)}
    assert name in functions, f"{path} has no test {name}"
    test = functions[name]
    fixtures = [functions[one.arg] for one in test.args.args if one.arg in functions]
    # The name of a group may be in a helper; the verb must be in the test or its fixture.
    *group, verb = command.split()
    assert verb in set().union(*map(_words, [test, *fixtures])), f"{name}: no lehr {command}"
    assert set(group) <= _words(file), f"{path}: no lehr {command}"


def test_every_command_takes_json_and_documents_its_shape():
    for name, text in documented().items():
        assert "--json" in text["options"], name
        assert "JSON" in text["help"], name


@cache
def documented() -> dict[str, dict[str, Any]]:
    """Return help and options of every command; for groups under names such as ``data prepare``."""
    found: dict[str, dict[str, Any]] = {}

    def add(name: str, command: Any) -> None:
        for inner_name, inner in getattr(command, "commands", {}).items():
            add(f"{name} {inner_name}", inner)
        if not getattr(command, "commands", None):
            options = [text for one in command.params for text in one.opts]
            about = f"{command.help or ''}\n{command.callback.__doc__ or ''}"
            found[name] = {"help": about, "options": options}

    for name, module in main.MODULES.items():
        app = importlib.import_module(f"lehr.cli.{module}").app
        add(name, typer.main.get_group(app).commands[name])
    return found


def _command(args: list[str]) -> str:
    """Return the command of an argument list; for groups a name such as ``data prepare``."""
    verb = " ".join(args[:2])
    return verb if verb in documented() else args[0]


def _words(node: ast.AST) -> set[str]:
    """Words of the texts in a piece of code."""
    texts = [
        one.value
        for one in ast.walk(node)
        if isinstance(one, ast.Constant) and isinstance(one.value, str)
    ]
    return {word for text in texts for word in text.split()}


def as_documented(args: list[str], found: dict[str, Any]) -> None:
    """The help of a command lists the keys of its answer, and views follow their schemas."""
    known, name = documented(), _command(args)
    text = " ".join(known[name]["help"].partition("JSON")[2].split())
    if "lehr plan --json" in text and "--dry-run" in args:
        text = " ".join(known["plan"]["help"].partition("JSON")[2].split())
    if "{" not in text:
        assert follows(found, _views(text.partition(".")[0])), f"lehr {name}"
        return
    for key, value in found.items():
        assert re.search(rf"\b{key}\b", text), f"lehr {name}: {key!r} is not in its help: {text}"
        views = _views(" ".join(re.findall(rf"\b{key}: \[?([A-Z]\w+)", text)))
        for one in value if isinstance(value, list) else [value]:
            if views and isinstance(one, dict):
                assert follows(one, views), f"lehr {name}: {key}"


def _views(text: str) -> list[type[View]]:
    """The schemas that a text names."""
    modules = [import_module(one.name) for one in iter_modules(schemas.__path__, "lehr.schemas.")]
    found = [getattr(m, word, None) for word in re.findall(r"[A-Z]\w+", text) for m in modules]
    return [one for one in found if isinstance(one, type) and issubclass(one, View)]


def follows(value: dict[str, Any], views: list[type[View]]) -> bool:
    """Whether it matches one of these schemas exactly: no more, no fewer, no differently typed fields."""
    for view in views:
        with contextlib.suppress(ValidationError):
            if json.loads(view.model_validate(value).model_dump_json()) == value:
                return True
    return False


def _ago(at: float | None, _: float | None = None) -> str:
    return formats.NOTHING if at is None else "N s ago"


def _steady(name: str, text: str) -> str:
    """Remove values that depend on the speed of this machine."""
    if name == "data-prepare":
        text = re.sub(r"in [\d.]+ s \(.*?/s\)", "in N s (N tokens/s)", text)
        text = re.sub(r"[0-9a-f]{12,}", "DIGEST", text)
        text = re.sub(r"--- stderr\n.*?(?=--- exit)", "", text, flags=re.DOTALL)
    if name == "show-rollout":
        # Trainings that are written take no time, and more or less of it.
        text = re.sub(r"\b\d+\.\d s\b", "N s", text)
        text = re.sub(r'"gpu_seconds": [\d.e-]+', '"gpu_seconds": "N"', text)
    if name in {"export", "logs-list"}:
        # Times are in them, and have more or fewer digits.
        text = re.sub(r"[\d.]+ kB", "N kB", text)
        text = re.sub(r'"(bytes|size_bytes)": \d+', r'"\1": "N"', text)
    return text


def _steady_json(name: str, value: Any) -> Any:
    return json.loads(_steady(name, json.dumps(value)))
