"""val/loss is the mean over the held-out tokens, the same on the same weights."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lehr_testing.assembled import assembled
from lehr_testing.corpora import documents, write_jsonl
from lehr_testing.specs import text_corpus
from lehr_testing.specs import train as train_values
from lehr_trainer.evaluate import ValidationSet, evaluate
from lehr_trainer.train import Training

CPU = torch.device("cpu")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    text_corpus(tmp_path / "texts")
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def training(run: Path, **changes: object) -> Training:
    values = train_values(run.parent / "texts", validation={"tokens": 900, "share": 0.1}, **changes)
    return assembled(run, values)


def test_evaluation_is_the_mean_over_held_out_tokens_in_nats_and_bits_per_byte(run: Path) -> None:
    made = training(run)
    with made.loader:
        found = evaluate_as(made, made.stage.scored["val"])
    held_out = made.stage.data.held_out.tokens
    length, whole = 64, 900 // 64
    tokens = torch.from_numpy(held_out[: whole * length + 1].astype(np.int64))
    inputs, targets = tokens[:-1].view(whole, length), tokens[1:].view(whole, length)
    with torch.no_grad():
        logits = made.model(inputs).double() @ made.model.head_weight.double().T
    want = float(F.cross_entropy(logits.flatten(0, 1), targets.flatten()))
    assert found["val/loss"] == pytest.approx(want, rel=1e-6)
    # Each byte is a token here; the end of a document is a token without a byte.
    text = int((targets != 256).sum())
    bits = want / math.log(2) * targets.numel() / text
    assert found["val/bits_per_byte"] == pytest.approx(bits, rel=2e-2)
    assert made.stage.data.bytes_per_token == pytest.approx(text / targets.numel(), rel=2e-2)


@pytest.mark.parametrize("kind", ["files", "mix", "chats"])
def test_loss_of_each_source_is_the_mean_over_its_tokens(tmp_path: Path, kind: str) -> None:
    """And that of each part of a mix; of chats, over the tokens whose mask lets them count."""
    texts = {"a": documents(90), "b": [f"b {text}" for text in documents(60, seed=1)]}
    paths = {name: write_jsonl(tmp_path / f"{name}.jsonl", ones) for name, ones in texts.items()}
    corpora = {name: {"kind": "jsonl", "paths": [str(path)]} for name, path in paths.items()}
    mask = {"loss_mask": "prompts"} if kind == "chats" else {}
    if kind == "chats":
        roles = ("user", "assistant")
        chats = [{"messages": [{"role": r, "content": t} for r in roles]} for t in texts["a"]]
        paths["a"].write_text("\n".join(map(json.dumps, chats)))
        corpora["a"] = {**corpora["a"], "kind": "chat", "template": "chatml"}
    parts = {name: {"corpus": one, "weight": 1} for name, one in corpora.items()}
    files = {"kind": "jsonl", "paths": [str(path) for path in paths.values()]}
    corpus = files if kind == "files" else {"kind": "mix", "parts": parts}
    values = train_values(
        tmp_path,
        data={"corpus": corpus, "tokenizer": "byte", **mask},
        validation={"tokens": 1300, "share": 0.2},
    )
    (tmp_path / "run").mkdir()
    made = assembled(tmp_path / "run", values)
    with made.loader:
        data = made.stage.data
        found = evaluate_as(made, made.stage.scored["val"])
        ranks = [ValidationSet(data, 64, 1300, rank, 3, micro_batch=2) for rank in range(3)]
        shares = [evaluate_as(made, part)["val/loss"] for part in ranks]
    assert sum(shares) == pytest.approx(found["val/loss"], rel=1e-6)
    losses: dict[str, list[float]] = {"a": [], "b": []}
    # Half of a mix's tokens are of each part, and its last document of the first one is cut.
    source, sources = "", []
    tokens = data.held_out.tokens.tolist()
    counts = np.ones(len(tokens), dtype=bool)
    if kind == "chats":  # Of them, an answer and the text that ends it.
        of_chats = "".join(map(chr, tokens[:651]))
        counts[:651] = False
        for answer in re.finditer(r"(?s)<\|im_start\|>assistant\n(.*?(<\|im_end\|>|$))", of_chats):
            counts[slice(*answer.span(1))] = True
    for number, token in enumerate(tokens):
        if kind != "files":
            source = "a" if number < 651 else "b"
        elif number == 0 or tokens[number - 1] == 256:
            source = "b" if (token, tokens[number + 1]) == (98, 32) else "a"
        sources.append(source)
    number = 0
    for inputs, targets in made.stage.scored["val"].batches():
        with torch.no_grad():
            logits = made.model(inputs).double() @ made.model.head_weight.double().T
        each = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        for loss in each.tolist():
            number += 1
            if counts[number]:
                losses[sources[number]].append(loss)
    suffix = ".jsonl" if kind == "files" else ""
    assert set(found) == {
        "val/loss",
        "val/bits_per_byte",
        f"val/loss/a{suffix}",
        f"val/loss/b{suffix}",
    }
    for name, ones in losses.items():
        assert len(ones) > 100
        assert found[f"val/loss/{name}{suffix}"] == pytest.approx(np.mean(ones), rel=1e-6)
    assert found["val/loss"] == pytest.approx(np.mean([*losses["a"], *losses["b"]]), rel=1e-6)


@pytest.mark.parametrize(("scope", "padded"), [("none", False), ("block", True), ("model", True)])
def test_held_out_batches_are_padded_if_the_model_is_compiled(
    run: Path, monkeypatch: pytest.MonkeyPatch, scope: str, padded: bool
) -> None:
    monkeypatch.setattr("lehr_trainer.assemble.compile_under_lock", lambda *_, **__: None)
    monkeypatch.setattr("lehr_trainer.assemble.dry_run_wrapped", lambda *_, **__: None)
    made = training(run, compile={"scope": scope})
    with made.loader:
        *_, (inputs, targets) = made.stage.scored["val"].batches()
    assert (len(inputs) > len(targets)) is padded


def test_ranks_that_share_an_evaluation_get_the_same_result(run: Path) -> None:
    made = training(run)
    with made.loader:
        alone = evaluate_as(made, made.stage.scored["val"])["val/loss"]
        parts = [
            ValidationSet(made.stage.data, 64, 900, rank, 3, micro_batch=2, device=CPU)
            for rank in range(3)
        ]
        shares = [sum(t.numel() for _, t in part.batches()) for part in parts]
        # Each sums its own tokens, and divides by those of all ranks.
        losses = [evaluate_as(made, part)["val/loss"] for part in parts]
        spare = ValidationSet(made.stage.data, 64, 900, 14, 15, device=CPU)
        assert evaluate_as(made, spare)["val/loss"] == 0, "a rank without a sequence adds nothing"
    assert sum(losses) == pytest.approx(alone, rel=1e-6)
    assert len(set(shares)) > 1, "unequal shares are what a mean of means gets wrong"


def test_resumed_run_evaluates_the_same_weights_alike(run: Path) -> None:
    first = training(run)
    with first.loader:
        first.wrapped.train()
        first.metrics_logger.start_at(0, 0)
        for _ in range(2):
            first.take_step()
        before = first.evaluate()
        first.save("order", before, final=True)
    # It trains with another loss and in other pieces; what validates is always the same.
    second = training(run, loss={"name": "standard"})
    with second.loader:
        assert second.progress.step == 2
        assert second.evaluate() == before


def evaluate_as(made: Training, held_out: ValidationSet) -> dict[str, float]:
    return evaluate(
        made.model, held_out, make_input=made.make_input, ranks=made.ranks, precision=made.precision
    )
