"""The messages about runs that webhooks get."""

from __future__ import annotations

from pathlib import Path

from lehr.analysis.diagnosis import Alert
from lehr.store.webhooks import MOST_CHARACTERS, about_alert, about_end, for_host
from lehr_testing.stores import fresh_store, run_spec

ALERT = Alert(
    120,
    "the loss rose from 2 to 5",
    "Try a half of the learning rate",
    "likely",
    "the learning rate is too high",
    "Zhang et al. 2022",
    code="diverging",
)


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
