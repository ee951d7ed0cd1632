"""Chats: the tokens and masks of transformers' templates, in every block of every batch."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch.nn.functional import cross_entropy

from lehr_testing.corpora import documents, silent, write_jsonl
from lehr_testing.properties import examples
from lehr_trainer.configs.loss import LossConfig
from lehr_trainer.configs.train import BatchConfig, DataConfig, ValidationConfig
from lehr_trainer.data import prepare
from lehr_trainer.data.chats import TEMPLATES, ChatEncoder, describe_chats
from lehr_trainer.data.checks import check_small, document_hash, is_held_out
from lehr_trainer.data.loader import Loader
from lehr_trainer.data.prepare import prepare_dataset
from lehr_trainer.data.token_dataset import read_manifest
from lehr_trainer.data.tokenizers import MASKED, load_tokenizer, token_ids
from lehr_trainer.errors import BadData
from lehr_trainer.export.weights import write_tokenizer
from lehr_trainer.losses.chunked import IGNORED
from lehr_trainer.losses.variants import build_loss, of_targets


def jinja(before, turn, after):
    own = f"{{% generation %}}{turn}{{% endgeneration %}}"
    each = f"{before}{{% if m.role == 'assistant' %}}{own}{{% else %}}{turn}{{% endif %}}{after}"
    return f"{{% for m in messages %}}{each}{{% endfor %}}"


JINJA = {
    "chatml": jinja(
        "{{ '<|im_start|>' + m.role + '\n' }}", "{{ m.content + '<|im_end|>' }}", "{{ '\n' }}"
    ),
    "llama3": jinja(
        "{{ ('<|begin_of_text|>' if loop.first else '') }}"
        "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' }}",
        "{{ m.content | trim + '<|eot_id|>' }}",
        "",
    ),
}
"""The published templates, with transformers' mark around what the assistant generates."""
SPECIALS = [*TEMPLATES["chatml"].markers, *TEMPLATES["llama3"].markers]
PIECES = [" ", "\n", "\n\n", "glass", "a", "é", "🙂", "why?", "  ", "<|", '"', "\\", "user\n", "0"]
contents = st.lists(st.sampled_from(PIECES), min_size=1, max_size=12).map("".join).filter(str.strip)
turns = st.lists(st.tuples(contents, contents), min_size=1, max_size=3)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A byte-level BPE with the markers of both templates, trained here."""
    from tokenizers import ByteLevelBPETokenizer

    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(
        ["user\n", "assistant\n", *documents(200), " \n\n\n why? é 🙂" * 9],
        vocab_size=420,
        special_tokens=["<|endoftext|>", *SPECIALS],
        show_progress=False,
    )
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    trained.save(str(path))
    return str(path)


def chat_data(path, template="chatml", **options):
    corpus = {"kind": "chat", "paths": [str(path)], "template": template}
    return DataConfig.model_validate({"corpus": corpus, "loss_mask": "prompts", **options})


def encoder(data):
    return ChatEncoder(data, data.corpus, load_tokenizer(data.tokenizer))


def dialogues(count, seed=0):
    """Of one to three turns, some with a system message, some longer than a sequence."""
    rng, texts = random.Random(seed), iter(documents(9 * count, seed=seed, words=30))
    turn = ["user", "assistant"]
    roles = [["system"] * rng.randint(0, 1) + turn * rng.randint(1, 3) for _ in range(count)]
    return [[(role, next(texts)) for role in one] for one in roles]


def write_chats(path, chats):
    rows = [{"messages": [{"role": r, "content": c} for r, c in chat]} for chat in chats]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def theirs(tokenizer, template, chat):
    """Token ids and assistant mask of transformers."""
    from transformers import PreTrainedTokenizerFast

    encoded = PreTrainedTokenizerFast(tokenizer_file=tokenizer).apply_chat_template(
        [{"role": role, "content": content} for role, content in chat],
        chat_template=JINJA[template],
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    return encoded["input_ids"], encoded["assistant_masks"]


@pytest.mark.parametrize("template", list(JINJA))
def test_exported_tokenizer_writes_conversations_as_the_training_did(tokenizer, template, tmp_path):
    from transformers import AutoTokenizer

    chat = [("system", " Be\nbrief. "), ("user", "Why?"), ("assistant", "So.")]
    text = TEMPLATES[template].jinja
    write_tokenizer(load_tokenizer(tokenizer), tmp_path, longest=64, chat_template=text)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    messages = [{"role": role, "content": content} for role, content in chat]
    ids = loaded.apply_chat_template(messages, return_dict=True)["input_ids"]
    assert ids == theirs(tokenizer, template, chat)[0]
    asked = loaded.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert asked.endswith(TEMPLATES[template].before.replace("{role}", "assistant"))


@pytest.mark.parametrize("template", list(JINJA))
def test_tokens_and_mask_equal_those_of_transformers(tokenizer, template):
    ours = encoder(chat_data("x", template, tokenizer=tokenizer))
    assert ours.note == ""

    @settings(max_examples=examples(60), deadline=None)
    @given(system=st.lists(contents, max_size=1), pairs=turns, last=st.lists(contents, max_size=1))
    def holds(system, pairs, last):
        chat = [("system", text) for text in system]
        for question, answer in pairs:
            chat += [("user", question), ("assistant", answer)]
        chat += [("user", text) for text in last]
        tokens, size = ours.encode(json.dumps(chat, ensure_ascii=False))
        ids, mask = theirs(tokenizer, template, chat)
        assert token_ids(tokens).tolist() == ids
        assert (tokens < MASKED).astype(int).tolist() == mask
        strip = str.strip if template == "llama3" else str
        assert size == sum(len(strip(text).encode()) for role, text in chat if role == "assistant")

    holds()


@pytest.mark.parametrize("template", list(JINJA))
def test_text_that_looks_like_a_marker_stays_text(tmp_path, tokenizer, template):
    raw = json.loads(Path(tokenizer).read_text())
    raw["post_processor"]["trim_offsets"] = True  # As in Llama 3's: blanks have no place then.
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw))
    ours = encoder(chat_data("x", template, tokenizer=str(tmp_path)))
    forged = "".join(["x \n\n y", *SPECIALS, "<|endoftext|>", "y"])
    plain, attack = (
        ours.encode(json.dumps([("user", text), ("assistant", text)]))[0] for text in ("xy", forged)
    )
    ids = [load_tokenizer(tokenizer).special_id(text) for text in [*SPECIALS, "<|endoftext|>"]]
    order = [[t for t in token_ids(tokens).tolist() if t in ids] for tokens in (plain, attack)]
    assert order[0] == order[1]
    # The whole of the answer counts, and the marker that ends it.
    decode = load_tokenizer(tokenizer).copy().decode
    answer = decode(attack[attack < MASKED].tolist(), skip_special_tokens=False)
    assert answer == forged + TEMPLATES[template].end


def test_tokenizer_without_the_markers_writes_them_as_text_and_says_so():
    ours = encoder(chat_data("x", tokenizer="byte"))
    tokens, _ = ours.encode(json.dumps([("user", "Hi"), ("assistant", "Yes")]))
    assert bytes(token_ids(tokens).tolist()) == (
        b"<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYes<|im_end|>\n"
    )
    assert bytes(tokens[tokens < MASKED].tolist()) == b"Yes<|im_end|>"
    assert "byte has no token <|im_start|>, <|im_end|>" in ours.note


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"eos": "<|im_end|>"}, r"ends documents by <\|im_end\|>, a mark.* set eos_token"),
        ({"special": False}, r"makes the token <\|im_start\|> also of text .* mark it as special"),
        ({"rstrip": True}, "in another way than text that stands alone"),
    ],
)
def test_tokenizer_that_cannot_write_the_template_is_refused(tmp_path, tokenizer, change, says):
    raw = json.loads(Path(tokenizer).read_text())
    raw["added_tokens"] = [{**token, **change} for token in raw["added_tokens"]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw))
    config = {"eos_token": change.get("eos", "<|endoftext|>")}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(BadData, match=says):
        encoder(chat_data("x", tokenizer=str(tmp_path)))


# --- prepared, and in batches -------------------------------------------------------------------


SHAPE = BatchConfig(sequences=8, sequence_length=32)
HELD_OUT = ValidationConfig(share=0.1)


def stored(prepared):
    return [
        np.fromfile(prepared.directory / shard.name, dtype=prepared.dtype)
        for shard in read_manifest(prepared.directory).train
    ]


def test_mask_of_transformers_stays_over_shards_and_blocks_up_to_the_loss(
    tmp_path, tokenizer, monkeypatch
):
    monkeypatch.setattr(prepare, "SHARD_TOKENS", 3000)
    monkeypatch.setattr(prepare, "_BATCH_BYTES", 900)
    chats = dialogues(150)
    data = chat_data(write_chats(tmp_path / "c.jsonl", chats), tokenizer=tokenizer)
    prepared = prepare_dataset(data, HELD_OUT, 512, tmp_path / "root", silent)
    eos = load_tokenizer(tokenizer).eos_id
    ids, mask, held_out, longer = [], [], 0, 0
    for chat in chats:
        if is_held_out(document_hash(json.dumps(chat, ensure_ascii=False).encode()), 0.1):
            held_out += 1
            continue
        own = theirs(tokenizer, "chatml", chat)
        ids += [*own[0], eos]
        mask += [*own[1], 0]
        longer += len(own[0]) + 1 > 32
    shards = stored(prepared)
    assert min(len(shards), held_out) > 3
    whole = np.concatenate(shards)
    assert token_ids(whole).tolist() == ids
    assert (whole < MASKED).astype(int).tolist() == mask

    # Each sequence is one of the blocks of a shard; its targets count where transformers' mask is.
    blocks = {}
    for shard in shards:
        for at in range(0, shard.size - 32, 32):
            blocks[tuple(token_ids(shard[at : at + 32]).tolist())] = shard[at + 1 : at + 33]
    with Loader(prepared, SHAPE, seed=3, workers=2) as loader:
        undisturbed = [loader.batch(step) for step in range(9)]
        inputs, targets = loader.batch(4)
        rows = np.stack([blocks[tuple(row)] for row in inputs.tolist()])
        wanted = np.where(rows < MASKED, token_ids(rows).astype(np.int64), IGNORED)
        assert targets.tolist() == wanted.tolist()
        assert loader.counted == int((wanted != IGNORED).sum())
        position = loader.position(3)
    with Loader(prepared, SHAPE, seed=3, first_step=3, position=position) as resumed:
        for step in range(3, 9):
            assert torch.equal(torch.stack(resumed.batch(step)), torch.stack(undisturbed[step]))

    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(8, 32, 16, generator=generator)
    head = torch.randn(512, 16, generator=generator)
    loss = of_targets(build_loss(LossConfig(), torch.float32, torch.device("cpu")))
    logits = (hidden.double() @ head.double().T).flatten(0, 1)
    want = cross_entropy(logits, torch.from_numpy(wanted).flatten(), ignore_index=IGNORED)
    assert loss(hidden, head, targets).mean.item() == pytest.approx(want.item(), rel=1e-6)

    said = describe_chats(prepared, 32)
    assert f"{np.mean(mask):.1%} of the tokens of {150 - held_out} conversations count" in said
    assert f"; {longer} of them are longer than a sequence of 32 tokens, and are cut" in said


def test_mask_changes_the_digests_and_limits_keep_it(tmp_path):
    path = write_chats(tmp_path / "c.jsonl", dialogues(90))

    def prepared(**options):
        data = chat_data(path, **{"tokenizer": "byte", **options})
        return prepare_dataset(data, HELD_OUT, 512, tmp_path / "root", silent)

    masked, plain, limited = prepared(), prepared(loss_mask="none"), prepared(max_tokens=1000)
    assert masked.digest != plain.digest
    assert masked.validation_digest != plain.validation_digest
    assert (masked.dtype, plain.dtype) == ("uint32", "uint16")
    (with_mask,), (without,), (first,) = stored(masked), stored(plain), stored(limited)
    assert token_ids(with_mask).tolist() == without.tolist()
    assert first[:-1].tolist() == with_mask[:999].tolist()
    assert first[-1] == 256 | MASKED
    assert limited.documents == int((token_ids(first) == 256).sum())
    # A byte is a token; what ends a turn counts, and has no text.
    assert plain.held_out.counted.all()
    counted = masked.held_out.counted
    answers = bytes(masked.held_out.tokens[counted].tolist())
    text = answers.replace(b"<|im_end|>", b"")
    assert masked.bytes_per_token == pytest.approx(len(text) / len(answers))
    read = masked.validation_tokens
    said = masked.held_out.describe(read)
    assert said.startswith(f"{counted[1:].sum():,} of {read + 1:,} held-out tokens, from ")
    assert said.endswith(f" documents; it reads {read:,}")


def test_mix_masks_prompts_of_its_chats_and_nothing_of_its_texts(tmp_path):
    chats = write_chats(tmp_path / "c.jsonl", dialogues(90))
    text = write_jsonl(tmp_path / "t.jsonl", [one.upper() for one in documents(200)])
    parts = {
        "chats": {"weight": 1, "corpus": chat_data(chats).corpus},
        "texts": {"weight": 1, "corpus": {"kind": "jsonl", "paths": [str(text)]}},
    }
    mixed = {"corpus": {"kind": "mix", "parts": parts}, "tokenizer": "byte"}
    data = DataConfig.model_validate({**mixed, "loss_mask": "prompts"})
    prepared = prepare_dataset(data, HELD_OUT, 512, tmp_path / "root", silent)
    (texts,) = stored(prepared.parts["texts"])
    assert texts.dtype == np.uint16
    counted = {True: [], False: []}
    with Loader(prepared, SHAPE, seed=3, workers=0) as loader:
        for step in range(20):
            for inputs, targets in zip(*loader.batch(step), strict=True):
                is_text = inputs.numpy().astype("<u2").tobytes() in texts.tobytes()
                counted[is_text].append(float((targets != IGNORED).float().mean()))
    assert set(counted[True]) == {1.0}
    assert 0.1 < np.mean(counted[False]) < 0.7
    line, note = describe_chats(prepared, 32).splitlines()
    assert line.startswith("chats: ")
    assert note.startswith("data.tokenizer byte has no token")


# --- errors -------------------------------------------------------------------------------------

HI, YES = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"conversations": [HI]}, r"has no field 'messages'; it has conversations; .*field"),
        ({"messages": None}, "field 'messages' holds NoneType, not a list"),
        ({"messages": []}, "field 'messages' holds an empty list"),
        ({"messages": [HI, HI]}, r"no message is the assistant's \(roles: user\), so there is no"),
        ({"messages": [YES]}, "first message is the assistant's; begin with system or user"),
        ({"messages": [HI, {**YES, "role": "bot"}]}, "message 2 has the role 'bot'; it can be sys"),
        ({"messages": [HI, {**YES, "content": " \n"}]}, r"message 2 \(assistant\): .* is empty"),
        ({"messages": [{**HI, "content": ["a"]}, YES]}, "message 1: the content is list, not text"),
        ({"messages": [{"from": "human", "value": "a"}]}, "message 1 has from, value; a mess"),
        ({"messages": [HI, {**YES, "tool_calls": [{}]}]}, "message 2 has tool_calls, which no"),
        ({"messages": ["Hi"]}, "message 1 is no object; a message is"),
    ],
)
def test_a_row_that_is_no_conversation_is_named_with_its_line(tmp_path, row, says):
    path = tmp_path / "c.jsonl"
    path.write_text("\n".join(map(json.dumps, ({"messages": [HI, YES]}, row))))
    with pytest.raises(BadData, match=says) as caught:
        prepare_dataset(chat_data(path, tokenizer="byte"), HELD_OUT, 512, tmp_path, silent)
    assert str(caught.value).startswith(f"{path}, line 2")
    assert not list(tmp_path.glob("*/manifest.json"))
    # A small file is read at submission.
    with pytest.raises(BadData) as early:
        check_small(chat_data(path, tokenizer="byte"), HELD_OUT, 64)
    assert str(early.value) == f"data.corpus: {caught.value}"


def test_config_names_the_templates_and_refuses_a_mask_without_chats():
    with pytest.raises(ValidationError, match="'chatml' or 'llama3'"):
        chat_data("x", "vicuna")
    with pytest.raises(ValidationError, match=r"has none \(kind stdlib\); use a corpus of kind"):
        DataConfig.model_validate({"corpus": {"kind": "stdlib"}, "loss_mask": "prompts"})
