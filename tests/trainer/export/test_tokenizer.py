"""The exported tokenizer gives the tokens of the training, and the same text back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lehr_trainer.data.tokenizers import ByteTokenizer, JsonTokenizer, TekkenTokenizer
from lehr_trainer.export.weights import SpecialIds, write_tokenizer

TEXTS = [
    "",
    "The meaning of life is 42.",
    "def f(x):\n    return  x**2\t# ok\r\n\r\n\n\n",
    "Ñandú, façade, naïve, Straße, ǅ; 日本語のテキスト, עברית, हिन्दी, 👨‍👩‍👧🙂🙂 \u200d",
    "12345678901234567890 1,000.5 €",
    "[INST] <unk> <s> <SPECIAL_20>",
    " " * 300 + "x" + "a" * 300,
    "\x00\x01\x7f\x80\ufffd",
    Path(json.__file__).read_text(),
]


def loaded(folder: Path):
    from transformers import AutoTokenizer

    (folder / "config.json").write_text('{"model_type": "llama"}')
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """By name: a built-in tokenizer, its exported folder, its special tokens."""
    found = {}
    for own in (ByteTokenizer(), TekkenTokenizer()):
        folder = tmp_path_factory.mktemp("exported")
        found[own.name] = own, folder, write_tokenizer(own, folder, longest=2048)
    return found


@pytest.mark.parametrize("name", ["byte", "tekken"])
def test_transformers_gives_the_tokens_of_the_training(written: dict[str, Any], name: str) -> None:
    own, folder, ids = written[name]
    theirs = loaded(folder)
    for text in TEXTS:
        tokens = own.encode(text).tolist()
        assert theirs(text)["input_ids"] == tokens
        assert theirs.decode(tokens) == own.decode(tokens) == text
    assert (theirs.bos_token_id, theirs.eos_token_id) == (own.eos_id, own.eos_id)
    assert theirs.pad_token_id == ids.pad
    assert theirs.model_max_length == 2048
    assert theirs.decode([*own.encode("x").tolist(), own.eos_id], skip_special_tokens=True) == "x"


@pytest.mark.parametrize("every", [256, pytest.param(1, marks=pytest.mark.nightly)])
def test_each_token_of_tekken_is_cut_as_in_training(written: dict[str, Any], every: int) -> None:
    from tokenizers import Tokenizer

    own, folder, _ = written["tekken"]
    fast = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = [
        text for token in own.token_ids if "\ufffd" not in (text := token.decode(errors="replace"))
    ][::every]
    # Doubled, most texts are no longer a token, and need merges.
    texts += [2 * text for text in texts]
    assert len(texts) > 200_000 // every
    theirs = fast.encode_batch_fast(texts, add_special_tokens=False)
    wrong = [
        text
        for text, found in zip(texts, theirs, strict=True)
        if "</s>" not in text and "<pad>" not in text and own.encode(text).tolist() != found.ids
    ]
    assert wrong == []


def test_ids_of_the_built_in_tokenizers(written: dict[str, Any]) -> None:
    assert written["byte"][2] == SpecialIds(256, 256, 256)
    # tekken has a token for padding: 11, as in mistral-common.
    assert written["tekken"][2] == SpecialIds(2, 2, 11)


def llama_like(folder: Path, config: dict | None = None) -> JsonTokenizer:
    """A tokenizers JSON that puts <s> before each text, cuts it, and fills it up."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = {"<s>": 0, "</s>": 1, "<fill>": 2, "a": 3, "b": 4, "c": 5}
    fast = Tokenizer(models.WordLevel(words, unk_token="c"))
    fast.pre_tokenizer = pre_tokenizers.Whitespace()
    fast.add_special_tokens(["<s>", "</s>", "<fill>"])
    fast.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    fast.enable_truncation(2)
    fast.enable_padding(length=9)
    fast.save(str(folder / "tokenizer.json"))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return JsonTokenizer("mine", folder / "tokenizer.json")


def test_tokens_that_training_never_had_are_not_added(tmp_path: Path) -> None:
    own = llama_like(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    assert write_tokenizer(own, out, longest=64) == SpecialIds(1, 1, 1)
    assert own.encode("a b c a").tolist() == [3, 4, 5, 3]
    assert loaded(out)("a b c a")["input_ids"] == [3, 4, 5, 3]


def test_padding_token_is_that_of_the_config_beside_the_file(tmp_path: Path) -> None:
    own = llama_like(tmp_path, {"eos_token": {"content": "</s>"}, "pad_token": "<fill>"})
    out = tmp_path / "out"
    out.mkdir()
    assert write_tokenizer(own, out, longest=64).pad == 2
    assert loaded(out).pad_token_id == 2
