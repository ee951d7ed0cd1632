"""Tokenizers by name: text round-trips, and unknown names are errors."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lehr_testing.corpora import documents, prepare_texts
from lehr_trainer.data.tokenizers import TekkenTokenizer, load_tokenizer
from lehr_trainer.errors import BadConfig, BadData

SAMPLE = "The meaning of life is 42.\n\n\tdef f(x): return x²  # naïve, 你好 🙂 </s> <s>[INST]"
text = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.fixture(scope="module")
def tekken() -> TekkenTokenizer:
    return TekkenTokenizer()


@pytest.fixture
def json_path(tmp_path):
    """A byte-level BPE, trained here: real, small, and no download."""
    from tokenizers import ByteLevelBPETokenizer

    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(
        documents(200), vocab_size=330, special_tokens=["<|endoftext|>"], show_progress=False
    )
    path = tmp_path / "tokenizer.json"
    trained.save(str(path))
    return path


@settings(deadline=None)
@given(text)
def test_byte_tokenizer_round_trips_any_text(sample):
    byte = load_tokenizer("byte")
    tokens = byte.encode(sample)
    assert byte.decode([*tokens.tolist(), byte.eos_id]) == sample
    assert all(token < 256 for token in tokens.tolist())


def test_tekken_round_trips_any_text(tekken):
    @settings(deadline=None)
    @given(text)
    def holds(sample):
        tokens = tekken.encode(sample).tolist()
        assert tekken.decode([*tokens, tekken.eos_id]) == sample
        assert all(1000 <= token < 131_072 for token in tokens)

    holds()


def test_tekken_agrees_with_mistral_common(tekken):
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    theirs = Tekkenizer.from_file(tekken._path)
    for sample in (SAMPLE, *documents(20)):
        assert tekken.encode(sample).tolist() == theirs.encode(sample, bos=False, eos=False)
    assert tekken.vocab_size == theirs.n_words == 2**17
    assert tekken.eos_id == theirs.eos_id


@pytest.mark.parametrize("unit", [" ", "a\n", "\u3000", "word "])
def test_tekken_encodes_texts_of_any_length(tekken, unit):
    sample = unit * (1_200_000 // len(unit))
    tokens = tekken.encode(sample).tolist()
    assert tekken.decode(tokens) == sample


def test_tokenizers_json_round_trips_text_and_has_an_end_token(json_path):
    tokenizer = load_tokenizer(str(json_path))
    tokens = tokenizer.encode(SAMPLE)
    assert tokenizer.decode([*tokens.tolist(), tokenizer.eos_id]) == SAMPLE
    assert tokenizer.vocab_size == 1 + max(
        json.loads(json_path.read_text())["model"]["vocab"].values()
    )
    assert tokenizer.eos_id == 0
    assert tokenizer.encode_all(["a", SAMPLE])[1].tolist() == tokens.tolist()


def test_a_tokenizer_without_an_end_is_refused(json_path):
    raw = json.loads(json_path.read_text())
    raw["added_tokens"] = []
    raw["model"]["vocab"] = {
        ("x" * 9 if token == "<|endoftext|>" else token): number
        for token, number in raw["model"]["vocab"].items()
    }
    json_path.write_text(json.dumps(raw))
    with pytest.raises(BadData, match="no token that ends a document"):
        load_tokenizer(str(json_path))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("teken", "did you mean tekken"),
        ("./missing/tokenizer.json", "a tokenizers JSON file that exists"),
    ],
)
def test_an_unknown_name_gets_the_nearest_one(name, says):
    with pytest.raises(BadData, match=says):
        load_tokenizer(name)


def test_a_tokenizer_larger_than_the_models_vocabulary_is_refused_naming_both(tmp_path):
    with pytest.raises(BadConfig, match=r"'tekken' has 131,072 tokens.*vocab_size is 512"):
        prepare_texts(tmp_path, documents(3), tokenizer="tekken")
    assert not (tmp_path / "root").exists()


def test_tokenizer_config_determines_the_end_token(json_path):
    config = json_path.with_name("tokenizer_config.json")
    config.write_text(json.dumps({"eos_token": {"content": "a"}}))
    tokenizer = load_tokenizer(str(json_path.parent))
    assert tokenizer.decode([tokenizer.eos_id]) == ""
    assert tokenizer.eos_id == tokenizer.encode("a").tolist()[0]


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text('{"not": "one"}')
    with pytest.raises(BadData, match="is no tokenizers JSON"):
        load_tokenizer(str(path))
