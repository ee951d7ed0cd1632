"""The exact output of each command that succeeds: text, and the values of its JSON that matter.

``tests/lehr_testing/goldens.py`` says how to renew them.
"""

from __future__ import annotations

import ast
import json
import re
from typing import Any

import pytest

from lehr.control.lifecycle import RunState
from lehr_testing import goldens, seeding
from lehr_testing.documented_commands import as_documented, command_of, documented
from lehr_testing.golden_world import World, a_rollout, a_sweep, name_new
from lehr_testing.paths import ROOT

_DB = "tests/platform/faces/cli/test_db.py"
_EXPORT = "tests/platform/faces/client/test_model_export.py"
_ADMIN = "tests/platform/faces/cli/test_admin.py"
NOT_HERE = {
    "node join": "tests/platform/faces/cli/test_node.py::"
    "test_checks_are_listed_and_a_machine_with_a_bad_one_does_not_join",
    "node leave": "tests/platform/faces/cli/test_node.py::test_machine_that_has_not_joined_cannot_leave",
    "node token": "tests/platform/faces/cli/test_node.py::test_token_is_printed_as_a_command_that_works",
    "node until": "tests/platform/faces/cli/test_cluster.py::"
    "test_node_is_available_until_a_time_and_has_no_end_again",
    **{
        f"admin {command}": f"{_ADMIN}::{test}"
        for test, commands in {
            "test_token_is_created_used_rotated_and_revoked": (
                "token create",
                "token ls",
                "token rotate",
                "token revoke",
            ),
            "test_quota_is_set_listed_and_removed": ("quota set", "quota ls", "quota rm"),
            "test_secret_is_read_from_standard_input_listed_and_removed": (
                "secret set",
                "secret ls",
                "secret rm",
            ),
            "test_webhook_is_added_from_standard_input_tested_listed_and_removed": (
                "webhook add",
                "webhook ls",
                "webhook rm",
                "webhook test",
            ),
            "test_audit_lists_who_did_what": ("audit",),
            "test_login_link_is_an_address_without_the_token": ("login-link",),
        }.items()
        for command in commands
    },
    "spec new": "tests/platform/faces/cli/test_spec.py::test_spec_to_begin_with_is_written_and_planned",
    "spec trainer": "tests/platform/faces/cli/test_spec.py::"
    "test_project_is_written_planned_and_pinned_by_its_capsule",
    "code show": "tests/platform/faces/cli/test_code.py::test_code_of_a_run_is_shown_compared_and_checked_out",
    "code diff": "tests/platform/faces/cli/test_code.py::test_code_of_a_run_is_shown_compared_and_checked_out",
    "code checkout": "tests/platform/faces/cli/test_code.py::test_code_of_a_run_is_shown_compared_and_checked_out",
    # Commands without a golden, and a test that runs each.
    "demo": "tests/e2e/test_demo.py::test_the_demo_prints_a_ranked_table",
    "up": "tests/e2e/test_up_defaults.py::test_up_without_gpus_remembers_their_number",
    "down": "tests/e2e/test_up_defaults.py::test_up_without_gpus_remembers_their_number",
    "doctor": "tests/platform/faces/cli/test_offline.py::test_doctor_lists_its_findings",
    "spec schema": "tests/platform/faces/cli/test_offline.py::test_schemas_are_json",
    "bench": "tests/trainer/process/test_experiments.py::test_table_is_printed_with_units",
    "report": "tests/platform/faces/cli/test_report.py::"
    "test_report_is_written_beside_the_command_by_default",
    "checkpoints save": "tests/platform/faces/cli/test_verbs.py::"
    "test_save_works_for_a_running_run_and_is_an_error_otherwise",
    "checkpoints verify": f"{_EXPORT}::test_commands_verify_and_download_a_checkpoint",
    "checkpoints download": f"{_EXPORT}::test_commands_verify_and_download_a_checkpoint",
    "checkpoints export": f"{_EXPORT}::test_command_exports_the_best_checkpoint_from_its_copy",
    "note": "tests/api/test_notes.py::test_command_shows_replaces_and_removes_a_note",
    "mcp": "tests/platform/faces/mcp/test_server.py::"
    "test_json_shows_the_tools_and_a_token_without_a_budget_may_not_launch",
    "db backup": f"{_DB}::test_a_backup_taken_while_another_process_writes_restores_clean",
    "db restore": f"{_DB}::test_restore_over_a_home_needs_replace_and_keeps_the_old_files",
    "db rebuild": f"{_DB}::test_rebuild_with_a_stopped_server",
    "db release": f"{_DB}::test_rebuild_of_a_lost_record_lists_what_it_cannot_know",
    "db new": f"{_DB}::test_lost_record_is_refused_and_a_new_one_is_begun_on_request",
}


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
    "node-ls": ["node", "ls"],
    "plan-run": ["plan", "big.yaml", "resources.gpu_type=H100", "train.batch.micro_batch=8"],
    "plan-sweep": ["plan", "new-grid.yaml"],
    "submit-dry-run": ["submit", "new.yaml", "--dry-run"],
    "sweep-dry-run": ["sweep", "new-grid.yaml", "--dry-run"],
    "plan-rollout": ["plan", "new-rollout.yaml", "resources.gpu_type=H100"],
    "rollout-dry-run": ["rollout", "new-rollout.yaml", "--dry-run"],
    "presets": ["spec", "presets"],
    "data-prepare": ["data", "prepare", "texts.yaml"],
    "db-check": ["db", "check"],
}


@pytest.mark.parametrize("name", LOOKING)
def test_text_output_matches_its_golden(world, name):
    result = world.lehr(*LOOKING[name])
    assert result.returncode == 0, result.stderr
    goldens.check(f"cli/{name}.txt", _steady(name, world.shown(LOOKING[name], result)))


@pytest.mark.parametrize("name", LOOKING)
def test_json_output_matches_its_golden(world, name):
    args = [*LOOKING[name], "--json"]
    result = world.lehr(*args)
    assert result.returncode == 0, result.stderr
    # `watch` prints a line whenever something changed; an ended run or sweep is one line.
    found = json.loads(result.stdout)
    if not name.startswith("watch"):
        as_documented(args, found)
    goldens.check_values(name, _steady_json(name, world.names.json(found)))


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
        assert result.returncode == 0, result.stderr
        goldens.check(f"cli/{name}.txt", acting.shown(args, result))
        answer = json.loads(acting.lehr(*args, "--json").stdout)
        as_documented(args, answer)
        goldens.check_values(name, acting.names.json(answer))


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
    "priority": (lambda world: world.run("waits"), ["queue", "waits", "--priority", "-5"]),
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
    "node-exclude": (None, ["node", "exclude", "n1", "--reason", "its fans are replaced"]),
    "node-readmit": (None, ["node", "readmit", "n1"]),
    "tag": (lambda world: world.run("one", tags=["omk"]), ["tag", "one", "add", "fp8", "baseline"]),
    "tag-sweep": (a_sweep, ["tag", "grid", "add", "baseline"]),
    "tag-remove": (
        lambda world: world.run("one", tags=["omk", "fp8"]),
        ["tag", "one", "remove", "omk"],
    ),
    "archive": (lambda world: world.ended("one"), ["archive", "one"]),
    "unarchive": (lambda world: world.ended("one"), ["archive", "one", "--undo"]),
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
        # By then two have the name: the second call is about the newer one.
        ids = {run.name: run.id for run in acting.api.store.runs.page().items[::-1]}
        words = [ids.get(word, word) for word in args] if more else args
        result = acting.lehr(*words, *more)
        assert result.returncode == 0, result.stderr
        found.append(result)
        name_new(acting)
    goldens.check(f"cli/{name}.txt", acting.shown(args, found[0]))
    answer = json.loads(found[1].stdout)
    as_documented(args, answer)
    goldens.check_values(name, acting.names.json(answer))


def test_every_command_has_a_golden_or_a_test_elsewhere():
    shown = [*LOOKING.values(), *(args for _, args in ACTING.values())]
    tried = {command_of(args) for args in shown}
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


def _words(node: ast.AST) -> set[str]:
    """Words of the texts in a piece of code."""
    texts = [
        one.value
        for one in ast.walk(node)
        if isinstance(one, ast.Constant) and isinstance(one.value, str)
    ]
    return {word for text in texts for word in text.split()}


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
