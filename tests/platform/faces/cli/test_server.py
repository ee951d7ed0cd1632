"""The output of `lehr up`."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lehr.errors import Unauthorized
from lehr.faces.cli import server
from lehr.faces.cli.daemon import RunningServer
from lehr.faces.cli.last_start import ServerOptions
from lehr.faces.cli.server import cores_shared
from lehr.node import gpu_inventory
from lehr_testing.cli import call


@pytest.mark.parametrize(
    ("options", "cores", "real", "printed"),
    [
        (ServerOptions(), 2, 0, "8 logical ones share 2 CPU cores"),
        (ServerOptions(gpus=4), 2, 0, "4 logical ones share 2 CPU cores"),
        (ServerOptions(), 8, 0, None),
        (ServerOptions(gpus=4), 2, 4, None),
        (ServerOptions(ray_address="auto"), 2, 0, None),
    ],
)
def test_more_logical_gpus_than_cores_are_explained(
    tmp_path, monkeypatch, options, cores, real, printed
):
    monkeypatch.setattr(server.os, "sched_getaffinity", lambda _: range(cores))
    monkeypatch.setattr(gpu_inventory, "real_gpus", lambda: [object()] * real)
    shared = cores_shared(options, tmp_path)
    assert shared is None if printed is None else shared.startswith(printed)


class OfTheNetwork:
    """A client of a server that other machines reach; it gives links to who has the token."""

    def __init__(self, server, token=None):
        self.server, self.token = server, token

    def __enter__(self):
        return self

    def __exit__(self, *_): ...

    def login_link(self):
        if self.token != "the token of the home":
            raise Unauthorized("a token is required.")
        return SimpleNamespace(url=f"{self.server}/login?code=x")


def test_login_address_is_printed_also_for_a_server_with_a_public_url(tmp_path, monkeypatch):
    """The token of a home is sent to other machines only where it is given on purpose."""
    url = "http://10.0.0.1:5347"
    running = RunningServer(tmp_path, url, 1, None)
    (tmp_path / "token").write_text("the token of the home")
    monkeypatch.setattr("lehr.faces.client.Client", OfTheNetwork)
    monkeypatch.setattr(server, "bring_up", lambda _: (running, True))
    printed = call("up", cwd=tmp_path, LEHR_HOME=str(tmp_path)).stdout
    assert f"log in     {url}/login?code=x   (works once, within 5 minutes)" in printed
