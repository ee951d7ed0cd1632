"""An exported run loads in transformers and generates; nothing is ever half-written or replaced."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from lehr_testing.exports import CONFIG, run_with, same_logits, state_of, transformers_warnings
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.contract import layout
from lehr_trainer.contract.manifest import Manifest
from lehr_trainer.diagnostics.diagnostics_logger import sample
from lehr_trainer.export import command
from lehr_trainer.export.command import main
from lehr_trainer.export.model_card import model_card


def checkpoint_of(run: Path, attempt: int, step: int) -> Path:
    return layout.checkpoint_dir(layout.attempt_dir(run, attempt), step)


def refused(capsys, *arguments: object) -> str:
    """The single line of an error."""
    assert main([str(one) for one in arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


GPT2 = {"preset": "gpt2-tiny", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("changes", [{}, {"model": GPT2}], ids=["llama", "gpt2"])
def test_export_loads_and_generates_without_a_warning(
    tmp_path: Path, caplog, changes: dict
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run, models = run_with(tmp_path, [(1, 10)], **changes)
    assert main([str(run), str(tmp_path / "out")]) == 0
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    prompt = "def f(x):"
    inputs = tokenizer(prompt, return_tensors="pt")
    assert inputs["input_ids"][0].tolist() == list(prompt.encode())
    with transformers_warnings(caplog) as warnings:
        made = theirs.generate(**inputs, max_new_tokens=8, do_sample=False)[0].tolist()
    tokens = list(prompt.encode())
    own = sample(models[10], tokens, tokens=8, temperature=0, seed=0, longest=64).tolist()
    assert made == tokens + own
    assert theirs.generation_config.eos_token_id == 256
    assert warnings == []


def test_best_is_the_checkpoint_with_the_lowest_loss(tmp_path: Path, capsys) -> None:
    run, models = run_with(tmp_path, [(1, 2), (1, 4), (1, 6)], {2: 3.0, 4: 2.5})
    assert main([str(run), str(tmp_path / "out"), "--step", "best"]) == 0
    same_logits(models[4], tmp_path / "out")


def test_single_checkpoint_is_exported_with_the_config_that_trained_it(tmp_path: Path) -> None:
    run, models = run_with(tmp_path, [(1, 2)])
    lone = checkpoint_of(run, 1, 2).rename(tmp_path / "downloaded")
    assert main([str(lone), str(tmp_path / "out")]) == 0
    same_logits(models[2], tmp_path / "out")


# --- the folder ----------------------------------------------------------------------------


def test_folder_that_is_not_empty_is_only_replaced_on_request(tmp_path: Path, capsys) -> None:
    run, models = run_with(tmp_path, [(1, 2), (1, 4)])
    out = tmp_path / "out"
    assert main([str(run), str(out), "--step", "2"]) == 0
    (out / "extra").write_text("mine")
    assert "add --overwrite" in refused(capsys, run, out)
    same_logits(models[2], out)
    assert main([str(run), str(out), "--overwrite"]) == 0
    same_logits(models[4], out)
    assert not (out / "extra").exists()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["out", "run"]


def test_failed_export_leaves_the_earlier_one_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, models = run_with(tmp_path, [(1, 2), (1, 4)])
    out = tmp_path / "out"
    assert main([str(run), str(out), "--step", "2"]) == 0

    def fail(*_: object, **__: object) -> str:
        assert any(one.name.startswith(".out-") for one in tmp_path.iterdir())
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(command, "model_card", fail)
    assert main([str(run), str(out), "--overwrite"]) == 2
    same_logits(models[2], out)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["out", "run"]


# --- the tokenizer -------------------------------------------------------------------------


def test_another_tokenizer_than_the_run_s_is_refused(tmp_path: Path, capsys) -> None:
    run, _ = run_with(tmp_path, [(1, 2)])
    error = refused(capsys, run, tmp_path / "out", "--tokenizer", "tekken")
    assert "it has 131,072 tokens and ends documents with 2; the run's has 257 and 256" in error


def test_model_of_a_project_is_not_exported(tmp_path: Path, capsys) -> None:
    run, _ = run_with(tmp_path, [(1, 10)])
    folder = checkpoint_of(run, 1, 10)
    state = json.loads((folder / "state.json").read_text())
    if "config" in state:
        state["config"]["parts"] = {"model": "own:Gated"}
    changed = command.ExportSource(
        folder,
        command.checkpoint.read_manifest(folder),
        command.TrainConfig.model_validate(state["config"]),
        state,
    )
    with pytest.raises(command.BadConfig, match="model class own:Gated is not Lehr's"):
        command.require_own_model(changed)


def test_export_error_is_one_line(tmp_path: Path, capsys) -> None:
    run, _ = run_with(tmp_path, [(1, 2)])
    out = tmp_path / "out"
    assert "no checkpoint of step 3; there are: 2" in refused(capsys, run, out, "--step", "3")
    assert "neither a run directory" in refused(capsys, tmp_path, out)
    assert "is of step 2, not of step 5" in refused(
        capsys, checkpoint_of(run, 1, 2), out, "--step", "5"
    )
    error = refused(capsys, run, out, "--average")
    assert "holds no average of weights; export without --average" in error
    damage(checkpoint_of(run, 1, 2) / "model.safetensors")
    assert "is damaged" in refused(capsys, run, out)
    assert not out.exists()


def test_tokenizer_that_is_not_on_this_machine_is_named(tmp_path: Path, capsys) -> None:
    missing = str(tmp_path / "gone" / "tokenizer.json")
    data = {"corpus": {"kind": "stdlib"}, "tokenizer": missing}
    run, models = run_with(tmp_path, [(1, 2)], data=data)
    error = refused(capsys, run, tmp_path / "out")
    assert missing in error
    assert "--tokenizer PATH" in error
    assert main([str(run), str(tmp_path / "out"), "--tokenizer", "none"]) == 0
    assert not (tmp_path / "out" / "tokenizer.json").exists()
    assert json.loads((tmp_path / "out" / "config.json").read_text())["eos_token_id"] is None
    same_logits(models[2], tmp_path / "out")
    assert main([str(run), str(tmp_path / "with"), "--tokenizer", "byte"]) == 0
    assert (tmp_path / "with" / "tokenizer.json").is_file()


HUB = {"kind": "hub", "id": "owner/texts", "name": "ten", "revision": "abc"}
FACTS = {
    "run": {"id": "r1", "name": "grid-3", "project": "p", "forked_from": "r0"},
    "lehr_version": "0.1.0",
    "provenance": {
        "git": {"commit": "c" * 40, "dirty": True},
        "host": "secret-host",
        "user": "secret-user",
        "folder": "/secret",
        "command": ["secret"],
    },
}


def card(facts=None, val_loss=2.5, has_tokenizer=True, state=None, **changes) -> str:
    config = TrainConfig.model_validate({**CONFIG, **changes})
    manifest = Manifest(step=8, tokens=256, val_loss=val_loss, reason="last")
    return model_card(
        config,
        manifest,
        state_of(config) if state is None else state,
        digest="f" * 64,
        has_tokenizer=has_tokenizer,
        facts=facts or {},
    )


def parts(text: str) -> tuple[dict, dict]:
    """The block at the top, and the config."""
    top = yaml.safe_load(text.split("---\n")[1])
    return top, yaml.safe_load(text.split("```yaml\n")[1].split("```", maxsplit=1)[0])


def test_card_has_the_whole_provenance() -> None:
    text = card(FACTS, data={"corpus": HUB, "tokenizer": "byte"})
    for fact in (
        "8 of 10 steps", "| Tokens trained on | 256 |", "| Tokens of the corpus | 1,000,000 |",
        "`owner/texts/ten/train` of the Hugging Face hub, abc", "| Seed | 3 ",
        "32 (2 sequences of 16)", "d" * 64, "e" * 64, "f" * 64, "c" * 40,
        "with uncommitted changes", "grid-3 (`r1`), project p", "Forked from | run `r0`",
        "lehr 0.1.0, torch 2.13.0", "Exported by | lehr 0.1.0",
    ):  # fmt: skip
        assert fact in text
    top, config = parts(text)
    assert top["datasets"] == ["owner/texts"]
    assert TrainConfig.model_validate(config).seed == 3


def test_card_says_what_each_stage_was_trained_on() -> None:
    kinds = {"web": {"kind": "text", "paths": ["web"]}, "own": {"kind": "stdlib"}}
    parts = {name: {"weight": 1, "corpus": corpus} for name, corpus in kinds.items()}
    chats = {"kind": "chat", "paths": ["c"], "template": "chatml"}
    stages = [
        {"tokens": 128},
        {"name": "mixed", "tokens": 64, "data": {"corpus": {"kind": "mix", "parts": parts}}},
        {"name": "sft", "tokens": 64, "data": {"corpus": chats}},
    ]
    text = card(steps=None, stages=stages)
    assert "of 50.0% text files: `web`; 50.0% sources of the Python standard library" in text
    assert "It was trained on chats, written by the template chatml." in text
    stages[0]["tokens"] = 256
    assert "not tuned to follow instructions" in card(steps=None, stages=stages)


def test_loss_of_these_weights_is_told_from_the_best_loss_of_the_run() -> None:
    # 5,000 held-out tokens are 312 sequences of 16.
    of_these = card(val_loss=2.5)
    assert "**2.5000**, of these weights, at step 8" in of_these
    assert "over 4,992 tokens" in of_these
    assert "1.00% of all" in of_these
    other = card(val_loss=None)
    assert (
        "These weights were not evaluated. The lowest loss of the run until this step is 2.25"
        in (other)
    )
    assert "These weights were not evaluated." in card(val_loss=None, state={})
