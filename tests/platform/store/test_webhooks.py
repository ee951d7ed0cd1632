"""Named webhooks: addresses that are stored, checked and never shown; their messages."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from lehr.analysis.diagnosis import Alert
from lehr.errors import NotFound, UserError
from lehr.store.webhooks import MOST_CHARACTERS, Webhooks, about_alert, about_end, for_host
from lehr_testing.stores import fresh_store, run_spec

URL = "https://hooks.example.com/services/T0/secret"
ALERT = Alert(
    120,
    "the loss rose from 2 to 5",
    "Try a half of the learning rate",
    "likely",
    "the learning rate is too high",
    "Zhang et al. 2022",
    code="diverging",
)


def test_webhooks_are_kept_by_name_in_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    Webhooks(tmp_path).put("team", URL)
    Webhooks(tmp_path).put("alarm", "http://8.8.8.8:9/x")
    Webhooks(tmp_path).put("team", URL + "2")
    found = Webhooks(tmp_path).list()
    assert [(one.name, one.url, one.host) for one in found] == [
        ("alarm", "http://8.8.8.8:9/x", "8.8.8.8"),
        ("team", URL + "2", "hooks.example.com"),
    ]
    [file] = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_unknown_name_gets_the_nearest_one(tmp_path: Path) -> None:
    webhooks = Webhooks(tmp_path)
    with pytest.raises(NotFound, match="lehr admin webhook add"):
        webhooks.get("team")
    webhooks.put("team", URL)
    with pytest.raises(NotFound, match="Did you mean team"):
        webhooks.get("taem")
    with pytest.raises(NotFound):
        webhooks.delete("taem")
    webhooks.delete("team")
    assert webhooks.list() == []


@pytest.mark.parametrize(
    "url",
    ["", "team", "ftp://a/b", "file:///etc/passwd", "https://", "http://a:b@c/", "http://a:99999/", "http://a/\n"],
)  # fmt: skip
def test_text_that_is_no_address_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(UserError, match="not the address of a webhook") as caught:
        Webhooks(tmp_path).put("team", url)
    assert len(url) < 9 or url not in str(caught.value), "it may contain a secret"
    assert not any(tmp_path.iterdir())


def test_message_about_an_alert_says_what_was_seen_and_done(tmp_path: Path) -> None:
    with fresh_store(tmp_path / "home") as store:
        run = store.runs.create(run_spec("big"))
    body = about_alert(run, ALERT, "pause", server="https://lehr.test")
    assert body["text"] == (
        f"big ({run.id}): the loss rose from 2 to 5. Try a half of the learning rate. "
        f"It is being paused, with a checkpoint. https://lehr.test/runs/{run.id}"
    )
    assert body["alert"] == {
        "code": "diverging",
        "step": 120,
        "seen": ALERT.seen,
        "advice": ALERT.advice,
        "sure": "likely",
        "cause": "the learning rate is too high",
        "source": "Zhang et al. 2022",
        "action": "pause",
    }
    assert "paused" not in about_alert(run, ALERT, "warn", server="")["text"]
    long = Alert(1, "x" * 10_000, "y", code="nan")
    assert len(about_alert(run, long, "warn", server="u")["text"]) < MOST_CHARACTERS + 100
    assert about_end(run, server="u")["text"].startswith(f"big ({run.id}) is queued")


def test_discord_gets_the_text_under_its_own_name() -> None:
    body = {"event": "test", "text": "hello"}
    assert for_host(body, "https://discord.com/api/webhooks/1/x") == {"content": "hello"}
    assert for_host(body, "https://notdiscord.com/x") == body
