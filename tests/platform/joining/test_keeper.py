"""The keeper of a joined machine. ``tests/faults/test_cluster.py`` has real ones."""

from __future__ import annotations

import errno

import pytest

from lehr.errors import ServerUnavailable, Unauthorized
from lehr.joining import keeper


@pytest.fixture
def joining(tmp_path, monkeypatch):
    """Return a function that runs a keeper whose questions to the server have these results."""
    monkeypatch.setattr(keeper, "AGAIN_S", (0.0, 0.0))

    def run(*results):
        left = iter(results)
        node = keeper.NodeKeeper(tmp_path, record=None)

        def ask(_):
            result = next(left, None)
            if result is None:
                node.stop()
                raise ServerUnavailable("stopped")
            raise result

        monkeypatch.setattr(keeper, "ask", ask)
        node.run()
        return next(left, None)

    return run


def test_full_disk_and_lost_server_do_not_end_the_keeper(joining, caplog):
    full = OSError(errno.ENOSPC, "No space left on device")
    assert joining(full, ServerUnavailable("no answer"), full) is None
    tries = [line for line in caplog.messages if line.startswith("cannot join")]
    assert len(tries) == 4
    assert "No space left on device" in tries[0]


def test_keeper_with_another_token_ends(joining):
    with pytest.raises(Unauthorized):
        joining(Unauthorized("the token is unknown"))
