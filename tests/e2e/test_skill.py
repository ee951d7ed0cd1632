"""Each command of the skill for agents, in its order, in a project with a script."""

from __future__ import annotations

import re
import shlex

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("platform")]
SCRIPT = """
import argparse, random
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--seed", type=int, default=1)
args = parser.parse_args()
noise = random.Random(args.seed)
for step in range(1, args.steps + 1):
    loss = 2 + (1 - 300 * args.lr) ** 2 / step + noise.gauss(0, 0.01)
    print(f"step {step}: val loss {loss:.4f}")
"""


def test_every_command_of_the_skill_works_as_it_says(server, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    server.cli("skills", "add", str(tmp_path))
    skill = (tmp_path / ".agents/skills/lehr/SKILL.md").read_text()
    assert (tmp_path / ".claude/skills/lehr/SKILL.md").read_text() == skill
    assert re.match(r"---\nname: lehr\ndescription: .{100,1000}\n---\n", skill)
    outputs = {}
    for command in re.findall(r"^\$ lehr (.+)$", skill, re.MULTILINE):
        outputs[command] = server.cli(*shlex.split(command), cwd=tmp_path).stdout
    assert len(outputs) == 12
    assert "completed" in outputs["watch first"]
    assert "best" in outputs["show train-lr"]
    assert "noise" in outputs["compare first first-seeds"]
