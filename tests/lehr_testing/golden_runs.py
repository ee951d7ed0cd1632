"""Small runs whose numbers must not change: golden losses, and a bitwise comparison of commits.

    python tests/lehr_testing/golden_runs.py --renew         # write the golden losses again
    python tests/lehr_testing/golden_runs.py --base COMMIT   # bitwise, against that commit's trainer

Losses depend in their last digits on the processor's kernels, so the goldens hold to a tolerance.
Two commits on one machine are compared bit by bit, losses and final weights.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from lehr_testing.paths import GOLDENS, ROOT
from lehr_testing.specs import text_corpus, train
from lehr_testing.trainer import command, digests, losses
from lehr_trainer.contract import layout

LOSSES = GOLDENS / "losses.json"
STEPS = 6
GPT2 = {"preset": "gpt2-tiny", "num_hidden_layers": 2}
ACCUMULATING = {"sequences": 4, "sequence_length": 64, "micro_batch": 1}

CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "llama": (1, {}),
    "llama-bf16": (1, {"precision": {"compute": "bf16"}}),
    "llama-accumulation": (1, {"batch": ACCUMULATING}),
    "llama-ddp-accumulation": (2, {"batch": ACCUMULATING}),
    "llama-muon-ddp": (2, {"optimizer": {"name": "muon"}}),
    "gpt2": (1, {"model": GPT2}),
    "gpt2-ddp-accumulation": (2, {"model": GPT2, "batch": ACCUMULATING}),
}
"""Name -> ranks, and what differs from the usual config of tests."""


def write_run(folder: Path, corpus: Path, name: str) -> int:
    """Write a case's config into ``folder``; return its ranks."""
    ranks, changes = CASES[name]
    folder.mkdir(parents=True)
    config = train(corpus, steps=STEPS, **changes)
    config["checkpoint"] = {"every": 0}
    (folder / layout.CONFIG).write_text(yaml.safe_dump(config))
    return ranks


def numbers(folder: Path) -> dict[str, Any]:
    """Read a finished run's losses by step, and the digests of its weights and optimizer."""
    attempt = folder / "attempt-1"
    return {"losses": list(losses(attempt).values()), "digests": digests(attempt)}


def all_numbers(code: Path | None) -> dict[str, dict[str, Any]]:
    """Run every case as users do, with the trainer in ``code``, or the installed one."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if code is not None:
        environment["PYTHONPATH"] = str(code)
    found = {}
    with tempfile.TemporaryDirectory() as place:
        corpus = text_corpus(Path(place, "texts"))
        environment["LEHR_DATA"] = str(Path(place, "data"))
        for name in CASES:
            ranks = write_run(Path(place, name), corpus, name)
            subprocess.run(
                command(Path(place, name), ranks),
                check=True,
                env=environment,
                stdout=subprocess.DEVNULL,
            )
            found[name] = numbers(Path(place, name))
    return found


def trainer_at(commit: str, place: Path) -> Path:
    """Extract that commit's trainer; return the folder that has its package."""
    archive = subprocess.run(
        ["git", "archive", commit, "trainer"], cwd=ROOT, check=True, capture_output=True
    )
    subprocess.run(["tar", "-x", "-C", place], input=archive.stdout, check=True)
    return place / "trainer"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--renew", action="store_true")
    parser.add_argument("--base")
    given = parser.parse_args()
    ours = all_numbers(None)
    if given.renew:
        golden = {name: one["losses"] for name, one in ours.items()}
        LOSSES.write_text(json.dumps(golden, indent=1) + "\n")
    if given.base is None:
        return 0
    with tempfile.TemporaryDirectory() as place:
        theirs = all_numbers(trainer_at(given.base, Path(place)))
    for name in CASES:
        print(f"{name:24} {'bitwise the same' if ours[name] == theirs[name] else 'DIFFERENT'}")
    return 0 if ours == theirs else 1


if __name__ == "__main__":
    sys.exit(main())
