"""Tokens of machines: what they open, for whom, and until when."""

from __future__ import annotations

import pytest

from lehr.base import signed_tokens

SECRET = "the home's token"


def test_join_token_is_valid_for_any_name_until_it_expires():
    token = signed_tokens.join_token(SECRET, 1000.0)
    assert signed_tokens.check(SECRET, token, now=999.0) == signed_tokens.NodeToken(None)
    assert signed_tokens.check(SECRET, token, now=1000.0) is None
    assert signed_tokens.expired(SECRET, token, now=1000.0)
    assert not signed_tokens.expired(SECRET, token, now=999.0)


def test_node_token_is_valid_for_its_name_and_does_not_expire():
    token = signed_tokens.node_token(SECRET, "gpu-2")
    assert signed_tokens.check(SECRET, token, now=1e12) == signed_tokens.NodeToken("gpu-2")


@pytest.mark.parametrize(
    "change",
    [
        lambda token: token.replace("1000", "9999"),
        lambda token: token.replace("lehr-join", "lehr-node"),
        lambda token: token[:-1] + ("0" if token[-1] != "0" else "1"),
        lambda token: token + "0",
        lambda token: token.rpartition(":")[0],
        lambda _: "lehr-join:",
        lambda _: "lehr-join::" + "0" * 64,
        lambda _: SECRET,
        lambda _: "",
    ],
)
def test_changed_token_is_invalid(change):
    token = change(signed_tokens.join_token(SECRET, 1000.0))
    assert signed_tokens.check(SECRET, token, now=0.0) is None
    assert not signed_tokens.expired(SECRET, token, now=2000.0)


def test_token_of_another_home_is_invalid():
    token = signed_tokens.node_token("another home's token", "gpu-2")
    assert signed_tokens.check(SECRET, token, now=0.0) is None
