"""A trained and exported model writes the same text in transformers as in Lehr."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from lehr_testing.corpora import WORDS, write_jsonl
from lehr_testing.exports import transformers_warnings
from lehr_testing.trainer import finish, make_run, training
from lehr_trainer.checkpointing.checkpoint import read_manifest, read_tensors
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.contract import layout
from lehr_trainer.data.tokenizers import load_tokenizer
from lehr_trainer.diagnostics.parameter_stats import sample
from lehr_trainer.export.command import main
from lehr_trainer.models import build_architecture

STEPS = 80
LONGEST = 128
NEW = 50
"""Tokens to write, as in the model card."""
PROMPTS = ("glass kiln", "the", "slow cool even light 7")
LLAMA = {
    "preset": "tiny",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_sequence_length": LONGEST,
}
GPT2 = {
    "preset": "gpt2-tiny",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_sequence_length": LONGEST,
}
MODELS = {
    "llama": LLAMA,
    "llama, untied": {**LLAMA, "tie_embeddings": False},
    "gpt2": GPT2,
    "llama, muP": {**LLAMA, "parametrization": "mup", "base_width": 16},
}


def documents() -> list[str]:
    """Texts of one to four words, so that a model soon learns where one ends."""
    rng = random.Random(0)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, 4))) + f" {n}." for n in range(4000)]


def words_tokenizer(folder: Path) -> Path:
    """Make a tokenizers JSON with merges, an end of a document and another token that pads."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    fast = Tokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<pad>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    fast.train_from_iterator(documents(), trainer)
    fast.save(str(folder / "tokenizer.json"))
    described = {"eos_token": "</s>", "pad_token": "<pad>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
    return folder / "tokenizer.json"


def own_text(attempt: Path, prompt: list[int], eos: int) -> list[int]:
    """Return the prompt and what Lehr's own model writes after it, up to the document's end."""
    newest = layout.checkpoints(attempt)[-1]
    config = TrainConfig.model_validate(json.loads((newest / "state.json").read_text())["config"])
    model = build_architecture(config, device="cpu")
    model.load_state_dict(read_tensors(newest, read_manifest(newest), "model"))
    made = sample(model, prompt, tokens=NEW, temperature=0, seed=0, longest=LONGEST).tolist()
    return prompt + (made[: made.index(eos) + 1] if eos in made else made)


@pytest.mark.nightly  # Each trains. export/test_command.py generates from first weights.
@pytest.mark.parametrize(
    ("model", "tokenizer"),
    [
        ("llama", "json"),
        ("llama, untied", "byte"),
        ("llama, muP", "byte"),
        ("gpt2", "byte"),
        ("gpt2", "json"),
    ],
)
def test_transformers_writes_the_text_of_the_own_model(
    tmp_path: Path, data: Path, caplog, capsys, model: str, tokenizer: str
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    corpus = {"kind": "jsonl", "paths": [str(write_jsonl(tmp_path / "texts.jsonl", documents()))]}
    name = "byte" if tokenizer == "byte" else str(words_tokenizer(tmp_path))
    run = make_run(
        tmp_path / "run",
        tmp_path,
        steps=STEPS,
        model=MODELS[model],
        data={"corpus": corpus, "tokenizer": name},
        batch={"sequences": 8, "sequence_length": LONGEST},
        optimizer={"lr": 1e-2},
        checkpoint={"every": 0},
    )
    with training(run, data=data) as process:
        code, output = finish(process, within_s=1800)
    assert code == 0, output
    out = tmp_path / "out"
    assert main([str(run), str(out)]) == 0
    trained_with = load_tokenizer(name)
    eos = trained_with.eos_id
    pad = 0 if tokenizer == "json" else eos

    def own(prompt: str) -> list[int]:
        return own_text(run / "attempt-1", trained_with.encode(prompt).tolist(), eos)

    with transformers_warnings(caplog) as warnings:
        theirs = AutoTokenizer.from_pretrained(out, padding_side="left")
        exported = AutoModelForCausalLM.from_pretrained(out)
        assert (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id) == (eos, eos, pad)
        expected = [own(prompt) for prompt in PROMPTS]
        for prompt, tokens in zip(PROMPTS, expected, strict=True):
            inputs = theirs(prompt, return_tensors="pt")
            made = exported.generate(**inputs, max_new_tokens=NEW, do_sample=False)[0].tolist()
            assert made == tokens
            text = theirs.decode(made, skip_special_tokens=True)
            assert text == trained_with.decode([token for token in made if token != eos])
        # It learned where a document ends, and generating stops there.
        assert any(tokens[-1] == eos for tokens in expected)
        together = theirs(list(PROMPTS), return_tensors="pt", padding=True)
        rows = exported.generate(**together, max_new_tokens=NEW, do_sample=False)
        for row, mask, tokens in zip(rows, together["attention_mask"], expected, strict=True):
            begin = int((mask == 0).sum())
            assert row[begin : begin + len(tokens)].tolist() == tokens
    assert warnings == []

    [shown] = re.findall(r"```python\n(.*?)```", (out / "README.md").read_text(), re.DOTALL)
    capsys.readouterr()
    exec(shown, {"FOLDER": str(out)})
    assert capsys.readouterr().out == theirs.decode(own("The meaning of life is")) + "\n"
