"""The model card states where the weights come from."""

from __future__ import annotations

import yaml

from lehr_testing.exports import CONFIG, state_of
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.contract.manifest import Manifest
from lehr_trainer.export.model_card import model_card

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
