"""The output of `lehr up`."""

from __future__ import annotations

from pathlib import Path

import pytest

from lehr.cli.daemon import RunningServer, ServerOptions
from lehr.cli.processes import ProcessId
from lehr.cli.server import port_taken


@pytest.mark.parametrize(
    ("options", "url", "printed"),
    [
        (ServerOptions(), "http://127.0.0.1:5347", None),
        (ServerOptions(), "http://127.0.0.1:5349", "5349 (another program uses 5347)"),
        (ServerOptions(port=6000), "http://127.0.0.1:6000", None),
        (ServerOptions(more=("--public-url", "http://x:81")), "http://x:81", None),
        (ServerOptions(), "https://lehr.example", None),
    ],
)
def test_fallback_port_is_explained(options, url, printed):
    there = RunningServer(Path("home"), url, ProcessId(1, "x"), options)
    assert port_taken(options, there) == printed
