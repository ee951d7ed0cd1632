"""A node's measurements, from its agent through Ray to the client, while a training runs."""

from __future__ import annotations

import pytest

from lehr_testing import specs
from lehr_testing.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("platform")]


@pytest.mark.nightly  # platform/system_history has each part.
def test_node_of_a_run_is_measured_while_it_runs(server, corpus) -> None:
    client = server.client()
    run = client.submit(specs.run(corpus, "measured", steps=40)).wait(timeout_s=300)
    [node] = [node for node in client.cluster().nodes if node.alive]
    history = until(
        lambda: next((h for h in [client.node_history(node.name)] if h.host.cpu), None),
        within_s=60,
        what="the first measurement",
    )
    assert 0 <= next(value for value in history.host.cpu if value is not None) <= 1
    assert max(value or 0 for value in history.host.ram_used_bytes) > 1e6
    assert history.step_s == 10
    [attempt] = run.system().attempts
    assert [one.node for one in attempt.nodes] == [node.name]
