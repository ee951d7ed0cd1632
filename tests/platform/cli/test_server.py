"""What `lehr up` tells of the server that it started."""

from __future__ import annotations

from pathlib import Path

import pytest

from lehr.cli.daemon import Standing, Wish
from lehr.cli.processes import ProcessId
from lehr.cli.server import port_taken


@pytest.mark.parametrize(
    ("wish", "url", "told"),
    [
        (Wish(), "http://127.0.0.1:5347", None),
        (Wish(), "http://127.0.0.1:5349", "5349, since another program holds 5347"),
        (Wish(port=6000), "http://127.0.0.1:6000", None),
        (Wish(more=("--public-url", "http://x:81")), "http://x:81", None),
        (Wish(), "https://lehr.example", None),
    ],
)
def test_a_port_that_was_not_asked_for_is_explained(wish, url, told):
    there = Standing(Path("home"), url, ProcessId(1, "x"), wish)
    assert port_taken(wish, there) == told
