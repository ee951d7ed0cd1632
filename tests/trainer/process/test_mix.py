"""A training on a mix of corpora, as processes: what the model saw, also after a kill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lehr_testing.corpora import write_jsonl
from lehr_testing.trainer import (
    KILL,
    finish,
    make_run,
    records,
    sabotage,
    series,
    train_to_end,
    training,
)
from lehr_trainer.contract import layout
from lehr_trainer.contract.orders import LaunchNote
from lehr_trainer.data.loader import added

STEPS, SEQUENCES, LENGTH = 12, 4, 64
LETTERS = {"web": "a", "own": "b"}
"""All that each part's texts consist of."""


def spy(folder: Path) -> str:
    """Return code that writes the letters of each trained sequence, by step, for each rank.

    It reads what enters the embedding, so that no code of the data or of the loop tells it.
    """
    return f"""
import json, os
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.nn.modules.module import register_module_forward_pre_hook
pending, steps = [], []
def enters(module, args):
    if isinstance(module, torch.nn.Embedding) and torch.is_grad_enabled():
        for row in args[0].tolist():
            text = bytes(one for one in row if one < 256).decode()
            # A rehearsal before the first step has no letters.
            if text.count("a") != text.count("b"):
                pending.append("a" if text.count("a") > text.count("b") else "b")
def stepped(optimizer, *_):
    if any(float(group["lr"]) for group in optimizer.param_groups):
        steps.append(list(pending))
        rank = os.environ.get("RANK", "0")
        attempt = os.environ["SPY"]
        with open(os.path.join({str(folder)!r}, attempt + "-" + rank + ".json"), "w") as file:
            json.dump(steps, file)
    pending.clear()
register_module_forward_pre_hook(enters)
register_optimizer_step_pre_hook(stepped)
"""


def seen(folder: Path, attempt: str, ranks: int) -> list[str]:
    """Return the letters of each step, sorted, over all ranks."""
    by_rank = [json.loads((folder / f"{attempt}-{rank}.json").read_text()) for rank in range(ranks)]
    return ["".join(sorted("".join(map("".join, step)))) for step in zip(*by_rank, strict=True)]


def mix(folder: Path) -> dict[str, Any]:
    folder.mkdir()
    texts = {name: [letter * (400 + n) for n in range(40)] for name, letter in LETTERS.items()}
    corpora = {
        name: {"kind": "jsonl", "paths": [str(write_jsonl(folder / f"{name}.jsonl", texts[name]))]}
        for name in texts
    }
    weights = {"web": 3, "own": 1}
    parts = {name: {"weight": weights[name], "corpus": corpora[name]} for name in corpora}
    return {"corpus": {"kind": "mix", "parts": parts}, "tokenizer": "byte"}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return mix(tmp_path_factory.mktemp("mix") / "texts")


def run_in(folder: Path, given: dict[str, Any]) -> Path:
    batch = {"sequences": SEQUENCES, "sequence_length": LENGTH}
    return make_run(folder, folder, steps=STEPS, data=given, batch=batch)


def test_killed_and_resumed_mix_trains_on_the_parts_by_their_weights(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    data = tmp_path / "data"
    whole = run_in(tmp_path / "whole", given)
    with training(whole, data=data, code=spy(tmp_path), SPY="whole") as process:
        code, output = finish(process)
    assert code == 0, output
    steps = seen(tmp_path, "whole", 1)
    assert len(steps) == STEPS
    assert "".join(steps).count("a") == 3 * "".join(steps).count("b") == STEPS * SEQUENCES * 3 // 4

    run = run_in(tmp_path / "killed", given)
    saved = layout.checkpoint_dir(run / "attempt-1", 5)
    harm = spy(tmp_path) + sabotage(at_step=8, act=KILL, after=saved)
    with training(run, ranks=2, data=data, code=harm, SPY="first") as process:
        code, _ = finish(process)
    assert code != 0
    with training(run, ranks=2, data=data, code=spy(tmp_path), SPY="second") as process:
        code, output = finish(process)
    assert code == 0, output
    assert records(run / "attempt-2", "resumed")[0]["step"] == 5
    first, second = seen(tmp_path, "first", 2), seen(tmp_path, "second", 2)
    assert first[:5] + second == steps
    assert series("data/digest", run / "attempt-1", run / "attempt-2") == series(
        "data/digest", whole / "attempt-1"
    )
    assert (
        series("data/epoch", run / "attempt-2").items()
        <= series("data/epoch", whole / "attempt-1").items()
    )


QUIET = {"validation": {"tokens": 512, "share": 0.1, "every": 2}, "checkpoint": {"every": 4}}


def test_fork_with_half_the_batch_goes_on_with_the_next_tokens(
    tmp_path: Path, corpus: Path, data: Path
) -> None:
    shape = {"sequences": 8, "sequence_length": 32}
    parent = make_run(tmp_path / "parent", corpus, steps=5, batch=shape, **QUIET)
    train_to_end(parent, data=data)
    checkpoint = layout.checkpoint_dir(parent / "attempt-1", 4)

    half = {**shape, "sequences": 4}
    attempt = make_run(tmp_path / "fork", corpus, steps=8, batch=half, **QUIET) / "attempt-1"
    attempt.mkdir()
    note = LaunchNote(resume="pinned", resume_from=str(checkpoint))
    (attempt / layout.LAUNCH).write_text(note.model_dump_json())
    train_to_end(attempt, data=data, ranks=2)

    made = [*records(attempt, "metrics"), *records(attempt, "evaluation")]
    assert {record["step"]: record["tokens"] for record in made} == {
        5: 1152,
        6: 1280,
        7: 1408,
        8: 1536,
    }
    manifest = layout.checkpoint_dir(attempt, 8) / layout.MANIFEST
    assert '"tokens": 1536' in manifest.read_text()
    before, after = (series("data/digest", path) for path in (parent / "attempt-1", attempt))
    # Its steps 5 and 6 have the parent's step 5; they had its step 3, which was trained on before.
    assert added(int(after[5]), int(after[6])) == before[5]
    epochs = series("data/epoch", attempt)
    assert epochs[6] == series("data/epoch", parent / "attempt-1")[5]
