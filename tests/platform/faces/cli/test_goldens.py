"""The exact output of each command that succeeds: text, and the values of its JSON that matter.

``tests/lehr_testing/goldens.py`` says how to renew them.
"""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest

from lehr.control.lifecycle import RunState
from lehr.faces.cli.ls import _separating, _value
from lehr_testing import goldens, seeding
from lehr_testing.documented_commands import as_documented, command_of, documented
from lehr_testing.golden_world import World, a_rollout, a_sweep, name_new
from lehr_testing.paths import ROOT

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


def test_ls_has_the_settings_that_differ_and_sorts_by_any_column(world):
    def listed(*more: str) -> list[str]:
        return [line.split()[1] for line in world.lehr("ls", *more).stdout.splitlines()[1:]]

    assert " lr " in world.lehr("ls", "--sweep", "grid").stdout.splitlines()[0]
    assert listed("--sweep", "grid", "--sort", "val") == ["grid-2", "grid-1", "grid-3"]
    assert listed("grid", "--sort", "-val", "-n", "1") == ["grid-1"]
    refused = world.lehr("ls", "--sort", "los")
    assert (refused.returncode, "Did you mean loss?" in refused.stderr) == (2, True)


def test_settings_tell_runs_apart_not_kinds_of_runs():
    runs = [SimpleNamespace(parameters_varied={}) for _ in range(3)]
    configs = {
        "a": {"train.optimizer.lr": 1e-3, "train.loss.name": "chunked", "train.steps": 10},
        "b": {"trainer.args.lr": 3e-3, "trainer.args.width": 64},
        "c": {
            "train.seed": 1,
            "train.optimizer.lr": 1e-3,
            "train.loss.name": "chunked",
            "train.steps": 20,
        },
    }
    assert _value(configs["c"], "trainer.args.seed") == 1
    assert _separating(runs, configs) == ["train.optimizer.lr"]
    assert [_value(one, "train.optimizer.lr") for one in configs.values()] == [1e-3, 3e-3, 1e-3]


def test_checkpoints_of_a_run_are_listed_without_a_verb(world):
    assert world.lehr("checkpoints", "one").stdout == world.lehr("checkpoints", "ls", "one").stdout
    assert "No such command" in world.lehr("checkpoints", "verfy", "one").stderr


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
    "fork": (_with_files, ["fork", "one", "--step", "50", "train.optimizer.lr=1.5e-4"]),
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
    others = set(documented()) - {command_of(args) for args in shown}
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    missing = {command for command in others if f'"{command.split()[-1]}"' not in tests}
    assert not missing, f"no golden and no test for {sorted(missing)}"


def test_every_command_takes_json_and_documents_its_shape():
    for name, text in documented().items():
        assert "--json" in text["options"], name
        assert "JSON" in text["help"], name


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
