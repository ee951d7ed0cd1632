"""Messages are tried again where that makes sense, and one that fails delays no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from lehr.alerting import sender as module
from lehr.alerting.delivery import Undelivered
from lehr.alerting.sender import AGAIN_AFTER_S, Sender
from lehr.alerting.webhooks import Webhooks
from lehr_testing.waiting import until


@pytest.fixture
def webhooks(tmp_path: Path) -> Webhooks:
    found = Webhooks(tmp_path)
    found.put("good", "http://good.test/x")
    found.put("bad", "http://bad.test/x")
    return found


def sent(monkeypatch: pytest.MonkeyPatch, *, again: bool) -> list[str]:
    """Let messages to bad.test fail; return the hosts of all tries, as they happen."""
    tries: list[str] = []

    def post(url: str, body: dict, *, allowed_hosts: frozenset[str]) -> None:
        tries.append(url.split("/")[2])
        if "bad" in url:
            raise Undelivered("no", again=again)

    monkeypatch.setattr(module, "post", post)
    return tries


@pytest.mark.parametrize(("again", "tries"), [(True, 1 + len(AGAIN_AFTER_S)), (False, 1)])
def test_message_is_tried_again_only_where_that_may_help(
    webhooks: Webhooks, monkeypatch: pytest.MonkeyPatch, again: bool, tries: int
) -> None:
    monkeypatch.setattr(module, "AGAIN_AFTER_S", (0.0,) * len(AGAIN_AFTER_S))
    found = sent(monkeypatch, again=again)
    sender = Sender(webhooks)
    sender.start()
    try:
        sender.put("bad", {"text": "a"})
        until(lambda: found.count("bad.test") == tries, within_s=30, what="all tries")
        sender.put("good", {"text": "b"})
        until(lambda: "good.test" in found, within_s=30, what="the other message")
    finally:
        sender.stop()
    assert found.count("bad.test") == tries


def test_message_that_waits_for_another_try_delays_no_other(
    webhooks: Webhooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = sent(monkeypatch, again=True)
    sender = Sender(webhooks)
    sender.start()
    try:
        sender.put("bad", {})
        sender.put("missing", {})
        sender.put("good", {})
        until(lambda: found == ["bad.test", "good.test"], within_s=30, what="the other message")
    finally:
        sender.stop()
