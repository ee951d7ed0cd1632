"""The exact errors of commands: text, and JSON for programs.

``tests/lehr_testing/goldens.py`` says how to renew them.
"""

from __future__ import annotations

import json

import pytest

from lehr_testing import goldens

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
    "a-tag-without-a-verb": ["tag", "one", "baseline"],
    "a-tag-that-no-filter-finds": ["tag", "one", "add", "a,b"],
    "an-option-for-a-field": ["submit", "--lr", "3", "new.yaml"],
    "json-that-never-ends": ["logs", "one", "-f", "--json"],
}


@pytest.mark.parametrize("name", WRONG)
def test_error_messages(world, name):
    result = world.lehr(*WRONG[name])
    assert result.returncode in {2, 3}
    assert "Traceback" not in result.stderr
    goldens.check(f"cli/errors/{name}.txt", world.shown(WRONG[name], result))
    if "--json" in WRONG[name]:
        assert set(json.loads(result.stdout)["error"]) == {"code", "message", "hint", "problems"}


def test_errors_without_a_server_and_with_a_wrong_token(world):
    alone = world.lehr("ls", SERVER="http://127.0.0.1:9")
    text = f"{world.shown(['ls'], alone)}\n"
    refused = world.lehr("ls", TOKEN="not-it", SERVER=world.address)
    text += world.shown(["ls"], refused)
    assert (alone.returncode, refused.returncode) == (4, 4)
    goldens.check("cli/errors/no-server.txt", text)


def test_errors_are_json_for_programs(world):
    result = world.lehr("submit", "wrong.yaml", "--json")
    assert (result.returncode, result.stderr) == (2, "")
    goldens.check_json(
        "cli/errors/a-misspelt-field.json", world.names.json(json.loads(result.stdout))
    )
