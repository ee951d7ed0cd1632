"""Log-likelihoods equal those of transformers, scores those of lm-eval, whatever the ranks."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lehr_testing.lm_eval_witness import LENGTH, ROWS, trained, write_rows
from lehr_trainer.checkpointing import checkpoint
from lehr_trainer.configs.tasks import TaskConfig
from lehr_trainer.data.tokenizers import load_tokenizer
from lehr_trainer.errors import BadData
from lehr_trainer.export.command import export, open_source
from lehr_trainer.export.soup import model_of
from lehr_trainer.models.module_map import Decoder
from lehr_trainer.runtime.distributed import Ranks
from lehr_trainer.runtime.precision import Precision
from lehr_trainer.tasks import scoring
from lehr_trainer.tasks.command import main
from lehr_trainer.tasks.items import Item
from lehr_trainer.tasks.scoring import PreparedTask, log_likelihoods, prepare_task, values_of

WITNESS = Path(__file__).parents[2] / "data" / "lm_eval"
ALONE = Ranks(0, 1, torch.device("cpu"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("witness"))


@pytest.fixture(scope="module")
def model(run: Path) -> tuple[Decoder, Precision]:
    source = open_source(run, "last")
    tensors = checkpoint.read_tensors(source.directory, source.manifest, "model")
    return model_of(source.config, tensors, ALONE)


def prepared(run: Path, path: Path, length: int = LENGTH, **changes: Any) -> PreparedTask:
    tokenizer = load_tokenizer(str(run.parent / "tokenizer.json"))
    return prepare_task(TaskConfig(name="t", path=str(path), **changes), tokenizer, length)


def scored(model: tuple[Decoder, Precision], task: PreparedTask, ranks: Ranks = ALONE) -> Any:
    return log_likelihoods(model[0], task, ranks=ranks, precision=model[1])


def in_order(task: PreparedTask, wanted: dict[Any, Any]) -> list[Any]:
    return [wanted[pair] for item in task.items for pair in item.pairs]


@pytest.mark.parametrize("form", ["rows", "samples"])
@pytest.mark.parametrize("kind", ROWS)
def test_scores_are_those_that_lm_eval_recorded(
    tmp_path: Path, run: Path, model: tuple[Decoder, Precision], kind: str, form: str
) -> None:
    """Some items are longer than the model takes, one has no context, one ends with a blank."""
    logged = [json.loads(line) for line in (WITNESS / f"{kind}.jsonl").open()]
    path = WITNESS / f"{kind}.jsonl" if form == "samples" else write_rows(tmp_path)[kind]
    if (kind, form) == ("schema", "samples"):
        with pytest.raises(BadData, match="do not say which is right"):
            prepared(run, path)
        return
    task = prepared(run, path)
    assert task.kind == kind
    likelihoods, likeliest, tokens = scored(model, task)
    wanted = {}
    for sample in logged:
        for request, answer in zip(sample["arguments"].values(), sample["resps"], strict=True):
            pair = tuple(request.values())
            value = answer[0] if isinstance(answer[0], str) else answer[0][0]
            wanted[pair if len(pair) == 2 else ("", *pair)] = float(value)
    np.testing.assert_allclose(likelihoods, in_order(task, wanted), rtol=1e-5)
    values = values_of(task, likelihoods, likeliest, tokens)
    results = json.loads((WITNESS / "results.json").read_text())[kind]
    assert values.get("accuracy") == results.get("acc,none")
    if kind == "perplexity":
        assert values["bits_per_byte"] == pytest.approx(results["bits_per_byte,none"], rel=1e-5)


def test_log_likelihoods_equal_those_of_transformers(
    tmp_path: Path, run: Path, model: tuple[Decoder, Precision]
) -> None:
    """With an item's examples before it, in the form of nanochat."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    export(run, tmp_path / "out")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    rows = [
        {"query": f"{word} cat", "choices": ["sits on", "dog"], "gold": n % 2}
        for n, word in enumerate(["a", "the", "one"])
    ]
    path = tmp_path / "shots.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    task = prepared(run, path, shots=2)
    likelihoods, likeliest, _ = scored(model, task)
    pairs = [pair for item in task.items for pair in item.pairs]
    for (context, continuation), value, best in zip(pairs, likelihoods, likeliest, strict=True):
        asked = context.split("\n\n")
        assert len(asked) == 3
        assert all(
            f"{row['query']} {row['choices'][row['gold']]}" in asked[:2]
            for row in rows
            if row["query"] != asked[2]
        )
        before, whole = tokenizer(context).input_ids, tokenizer(context + continuation).input_ids
        with torch.no_grad():
            logits = theirs(torch.tensor([whole])).logits[0].double().log_softmax(-1)
        places = range(len(before), len(whole))
        assert value == pytest.approx(sum(float(logits[p - 1, whole[p]]) for p in places), rel=1e-5)
        assert best == all(int(logits[p - 1].argmax()) == whole[p] for p in places)


def test_shares_of_ranks_add_up_to_the_values_of_one(
    tmp_path: Path, run: Path, model: tuple[Decoder, Precision], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "BATCH_TOKENS", 192)
    task = prepared(run, write_rows(tmp_path)["multiple_choice"])
    assert len(task.batches) % 4  # The ranks' shares differ.
    alone = scored(model, task)
    for count in (2, 4):
        monkeypatch.setattr(Ranks, "sum", lambda _self, values: values)
        parts = [scored(model, task, Ranks(rank, count, ALONE.device)) for rank in range(count)]
        assert np.array_equal(sum(part[0] for part in parts), alone[0])
        assert np.array_equal(sum(part[2] for part in parts), alone[2])


def test_values_and_their_standard_errors_are_those_worked_out_by_hand() -> None:
    items = [Item([("q", " ab"), ("q", " c")], gold) for gold in (0, 1, 1, 0)]
    task = PreparedTask(None, "multiple_choice", items, "", [], "", 8)
    likelihoods = np.array([-2.0, -3.0, -2.0, -3.0, -4.0, -1.5, -3.0, -1.0])
    likeliest, tokens = np.zeros(8, bool), np.ones(8, int)
    values = values_of(task, likelihoods, likeliest, tokens)
    # Picked: 0, 0, 1, 1 of which the first and third are right.
    assert values["accuracy"] == 0.5
    assert values["accuracy_stderr"] == pytest.approx(math.sqrt(0.25 / 3))
    assert values["accuracy_centred"] == 0.0
    assert values["accuracy_centred_stderr"] == pytest.approx(2 * math.sqrt(0.25 / 3))
    nats, sizes = np.array([2.0, 3.0, 1.5, 3.0]), np.array([3, 2, 2, 3])
    assert values["bits_per_byte"] == pytest.approx(nats.sum() / sizes.sum() / math.log(2))
    likelihoods[3] = math.nan
    damaged = values_of(task, likelihoods, likeliest, tokens)
    assert all(map(math.isnan, damaged.values()))


def test_what_the_tokenizer_merges_and_what_is_too_long_is_counted(
    tmp_path: Path, run: Path
) -> None:
    path = tmp_path / "task.jsonl"
    path.write_text(json.dumps({"context": "on t", "continuation": "he mat while it rains"}))
    task = prepared(run, path, delimiter="")
    assert "1 of 1 continuations share a token with their context" in task.summary
    path.write_text(json.dumps({"context": "the mat " * 40, "continuation": "sits"}))
    one, other = prepared(run, path), prepared(run, path, length=20)
    assert (
        "1 of 1 continuations are longer with their context than 20 tokens and lose"
        in other.summary
    )
    assert one.digest != other.digest
    path.write_text(json.dumps({"context": "the quic", "continuation": "k"}))
    with pytest.raises(BadData, match=r"evals\.t: the tokenizer makes 'k' one token with the end"):
        prepared(run, path, delimiter="")


def test_command_writes_one_record_and_refuses_nan_logits(
    tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = list(map(str, write_rows(tmp_path).values()))
    out = tmp_path / "record.json"
    to = ["--out", str(out)]
    assert main([str(run), "--step", "2", *to, "--tasks", *files]) == 0
    record = json.loads(out.read_text())
    assert (record["kind"], record["step"], record["tokens"]) == ("evaluation", 2, 192)
    assert {*record["tasks"]} == {*ROWS, "mean"}
    assert "task/perplexity/bits_per_byte" in record["values"]
    centred = [v for n, v in record["values"].items() if n.endswith("/accuracy_centred")]
    assert record["values"]["task/mean"] == pytest.approx(sum(centred) / 3)
    assert main([str(run), *to, "--tasks", str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl cannot be read: No such file" in capsys.readouterr().err
    assert main([str(run), *to]) == 2
    assert "has no train.evals; name files of tasks" in capsys.readouterr().err
    source = open_source(run, 2)
    tensors = checkpoint.read_tensors(source.directory, source.manifest, "model")
    weights = {name: torch.full_like(tensors[name], math.nan) for name in tensors}
    folder = tmp_path / "attempt-1" / "checkpoints" / "step-00000002"
    state = checkpoint.read_document(source.directory, "state")
    checkpoint.write_checkpoint(
        folder,
        tensors={"model": weights, "optimizer": {}},
        documents={"state": state},
        manifest=checkpoint.Manifest(step=2, tokens=192, reason="interval"),
    )
    assert main([str(folder), *to, "--tasks", files[0]]) == 2
    assert "is NaN, because its logits are" in capsys.readouterr().err
