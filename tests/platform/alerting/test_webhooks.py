"""Named webhooks: addresses that are stored, checked and never shown."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from lehr.alerting.webhooks import Webhooks
from lehr.errors import NotFound, UserError

URL = "https://hooks.example.com/services/T0/secret"


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
