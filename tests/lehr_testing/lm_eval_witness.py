"""What lm-eval 0.4.13 finds on an exported model: ``python -m lehr_testing.lm_eval_witness FOLDER``.

Needs the package (``lm-eval[hf]``), which tests do not: they read what was recorded, in
``tests/data/lm_eval``.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from lehr_testing.exports import CONFIG, state_of
from lehr_trainer.checkpointing import checkpoint
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.contract import layout
from lehr_trainer.data.tokenizers import load_tokenizer
from lehr_trainer.models import build_model

TEXT = "the quick brown fox jumps over the lazy dog and the cat sits on the mat while it rains. "
LENGTH = 48
"""Longest sequence of the model, in tokens."""
CHOICES: list[dict[str, Any]] = [
    {"query": "The fox", "choices": ["jumps", "jumps over the dog", "mat"], "gold": 1},
    {"query": "", "choices": ["the cat", "rain"], "gold": 0},
    {"query": "it rains and ", "choices": ["the", "on"], "gold": 1},
    {
        "query": f"{TEXT * 3}the cat",
        "choices": ["sits on", "brown", "over the lazy dog"],
        "gold": 0,
    },
    {"query": "the lazy", "choices": ["dog", "cat sits on the mat"], "gold": 0},
    {"query": "caf\u00e9:", "choices": ["\u00e9t\u00e9", "rain", "the mat", "quick"], "gold": 3},
]
SCHEMAS: list[dict[str, Any]] = [
    {"context_options": ["The dog", "The mat"], "continuation": "jumps over it.", "gold": 0},
    {"context_options": [TEXT, TEXT[:40], "rain"], "continuation": "the cat sits", "gold": 2},
]
CONTINUATIONS = [{"context": "the quick brown", "continuation": "fox"}]
CONTINUATIONS += [{"context": TEXT * n, "continuation": "the quick"} for n in (1, 2)]
TEXTS = [{"text": TEXT[: 20 * n] * n} for n in (1, 3, 4)]
ROWS = {
    "multiple_choice": CHOICES,
    "schema": SCHEMAS,
    "continuation": CONTINUATIONS,
    "perplexity": TEXTS,
}
_SPLIT = {"dataset_path": "json", "test_split": "train", "target_delimiter": " "}
_ASKED = {
    "multiple_choice": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{query}}",
        "doc_to_choice": "choices",
        "doc_to_target": "gold",
        "metric_list": [{"metric": "acc"}],
    },
    "schema": {
        "output_type": "multiple_choice",
        "doc_to_text": "gold",
        "doc_to_choice": "context_options",
        "doc_to_target": "continuation",
        "metric_list": [{"metric": "acc"}],
    },
    "continuation": {
        "output_type": "loglikelihood",
        "doc_to_text": "{{context | trim}}",
        "doc_to_target": " {{continuation}}",
        "metric_list": [{"metric": "acc"}],
    },
    "perplexity": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metric_list": [{"metric": "bits_per_byte"}],
    },
}


def bpe(path: Path) -> Path:
    """A tokenizer that merges bytes, and blanks with what follows them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    made.train_from_iterator([TEXT], trainer)
    made.save(str(path))
    return path


def trained(folder: Path) -> Path:
    """A run directory with one checkpoint, at step 2, whose longest sequence is ``LENGTH``."""
    tokenizer = load_tokenizer(str(bpe(folder / "tokenizer.json")))
    values = {
        **CONFIG,
        "model": {**CONFIG["model"], "vocab_size": 320, "max_sequence_length": LENGTH},
        "data": {"corpus": {"kind": "stdlib"}, "tokenizer": str(folder / "tokenizer.json")},
        "batch": {"sequences": 2, "sequence_length": LENGTH},
    }
    config = TrainConfig.model_validate(values)
    run = folder / "run"
    run.mkdir()
    (run / layout.CONFIG).write_text(yaml.safe_dump(config.model_dump(mode="json")))
    model = build_model(config.model, device="cpu", seed=3)
    for parameter in model.parameters():
        parameter.data *= 3.0  # So that words differ in likelihood.
    own = {"vocab_size": tokenizer.vocab_size, "eos_id": tokenizer.eos_id}
    checkpoint.write_checkpoint(
        layout.checkpoint_dir(layout.attempt_dir(run, 1), 2),
        tensors={"model": model.state_dict(), "optimizer": {}},
        documents={"state": state_of(config, tokenizer=own)},
        manifest=checkpoint.Manifest(step=2, tokens=192, reason="interval"),
    )
    return run


def write_rows(folder: Path) -> dict[str, Path]:
    """Write the items in the form of the CORE bundle, a file for each kind."""
    files = {kind: folder / f"{kind}.jsonl" for kind in ROWS}
    for kind, file in files.items():
        file.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS[kind]))
    return files


def main(out: Path) -> None:
    from lm_eval import simple_evaluate
    from lm_eval.loggers import EvaluationTracker
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    from lehr_trainer.export.command import export

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        export(trained(folder), folder / "model")
        for kind, file in write_rows(folder).items():
            task = {"task": kind, "dataset_kwargs": {"data_files": str(file)}}
            task_file = folder / f"{kind}.yaml"
            task_file.write_text(yaml.safe_dump(_SPLIT | task | _ASKED[kind]))
        model = HFLM(pretrained=str(folder / "model"), dtype="float32", device="cpu", batch_size=2)
        found = simple_evaluate(
            model=model,
            tasks=[*ROWS],
            task_manager=TaskManager(include_path=scratch, include_defaults=False),
            log_samples=True,
            bootstrap_iters=0,
        )
        tracker = EvaluationTracker(output_path=str(folder / "out"))
        tracker.save_results_aggregated(results=found, samples=found["samples"])
        for kind in ROWS:
            tracker.save_results_samples(task_name=kind, samples=found["samples"][kind])
            (logged,) = (folder / "out").rglob(f"samples_{kind}_*.jsonl")
            (out / f"{kind}.jsonl").write_bytes(logged.read_bytes())
        results = {kind: found["results"][kind] for kind in ROWS}
        (out / "results.json").write_text(f"{json.dumps(results, indent=1, default=str)}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
