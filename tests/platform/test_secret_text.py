"""Secrets are taken out of text, and nothing else is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.secret_text import FORMS, is_secret_name, redact

KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nIBAAKC\n-----END RSA PRIVATE KEY-----"
SAMPLES = {
    "a private key": KEY,
    "a key of AWS": "AKIA" + "Q7" * 8,
    "a token of Hugging Face": "hf_" + "aB3" * 12,
    "a token of GitHub": "ghp_" + "aB3x" * 9,
    "a key of W&B": "WANDB_API_KEY=" + "0123456789" * 4,
    "an API key": "sk-" + "aB3x" * 10,
    "a token of Slack": "xoxb-" + "123456789-" * 3,
}
OTHERS = {
    "address": ("s3 at https://me:pa55word@store:9000/b", "pa55word"),
    "header": ("Authorization: Bearer abc.DEF-123_456", "abc.DEF-123_456"),
    "join": ("lehr node join URL --token lehr-join:1799:9f86d081", "9f86d081"),
    "query": ("GET /?token=s3cr3tvalue&a=1", "s3cr3tvalue"),
    "jwt": ("eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJSMeK", "SflKxwRJSMeK"),
}


def test_every_form_has_a_sample():
    assert set(SAMPLES) == set(FORMS)


@pytest.mark.parametrize("what", SAMPLES)
def test_value_with_the_form_of_a_secret_is_removed(what):
    text = redact(f"before\n{SAMPLES[what]}\nafter")
    assert text == "before\n[removed]\nafter"


@pytest.mark.parametrize("what", OTHERS)
def test_value_that_its_place_shows_to_be_secret_is_removed(what):
    text, secret = OTHERS[what]
    assert secret not in redact(text)
    assert "[removed]" in redact(text)


def test_key_that_is_cut_off_is_removed_to_the_end():
    assert redact("a\n-----BEGIN PRIVATE KEY-----\nMIIEow") == "a\n[removed]"


@given(st.lists(st.text("abc/+", min_size=6, max_size=12), max_size=6), st.text("abc/+ \n"))
def test_known_values_are_removed_also_when_one_contains_another(known, between):
    text = redact(between.join(known), known)
    assert not any(value in text for value in known)


def test_text_of_a_normal_log_stays():
    text = '{"event": "tick", "tokens": 1024, "url": "http://10.0.0.1:5347/api/v1/runs?limit=5"}\n'
    assert redact(text, ["", "abc"]) == text


def test_names_of_secrets():
    for name in ("WANDB_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "token_sha256", "DB_PASSWD"):
        assert is_secret_name(name)
    for name in ("PATH", "key_bindings", "tokens", "TOKENS_SEEN", "run_id"):
        assert not is_secret_name(name)
