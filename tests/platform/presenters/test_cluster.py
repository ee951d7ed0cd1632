"""The queue as presented, and the remedy for a cluster without GPUs."""

from __future__ import annotations

import pytest
from sqlalchemy import event

from lehr.cluster.membership import Cluster
from lehr.presenters.cluster import ClusterPresenter
from lehr.specs import parse_spec
from lehr.store import Store
from lehr_testing.api import RUN_SPEC
from lehr_testing.stores import begin


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "home") as opened:
        yield opened


def submit(store, name, **changes):
    return store.runs.create(parse_spec({**RUN_SPEC, "name": name, **changes})).id


def test_queue_follows_the_dispatchers_order_with_new_runs_last(store):
    first, second = submit(store, "first"), submit(store, "second")
    submit(store, "new")
    submit(store, "urgent", priority=5)
    order = [second, "gone", first]
    presenter = ClusterPresenter(store, Cluster({}), lambda: order, embedded=True)
    queue = presenter.queue()
    assert [entry.name for entry in queue] == ["second", "first", "urgent", "new"]
    assert [entry.position for entry in queue] == [1, 2, 3, 4]
    assert queue[-1].reason == "was submitted just now"


@pytest.mark.parametrize(
    ("embedded", "cure"), [(True, "lehr up --gpus 8"), (False, "ray start --num-gpus N")]
)
def test_message_of_a_cluster_without_gpus_names_the_remedy(store, embedded, cure):
    cluster = Cluster({})
    cluster.set_state("up", None)
    cluster.on_news({"news": "members", "nodes": []})
    view = ClusterPresenter(store, cluster, lambda: (), embedded=embedded).cluster()
    assert cure in (view.message or "")


def test_names_of_holders_are_read_in_one_query(store):
    gpus = [{"index": index, "name": "logical GPU", "memory_bytes": None} for index in range(8)]
    cluster = Cluster({})
    cluster.set_state("up", None)
    node = {"name": "n1", "ray_id": "r", "address": "a", "gpus": 8, "alive": True}
    cluster.on_news({"news": "members", "nodes": [node]})
    cluster.on_news({"news": "node", "name": "n1", "hello": {"attempts": {}, "gpus": gpus}})
    presenter = ClusterPresenter(store, cluster, lambda: (), embedded=True)
    queries: list[str] = []
    event.listen(
        store.db._readers,
        "before_cursor_execute",
        lambda *given: queries.append(given[2]) if given[2].startswith("SELECT") else None,
    )

    def names_and_queries() -> tuple[list[str], int]:
        queries.clear()
        [shown] = presenter.cluster().nodes
        return [gpu.run_name for gpu in shown.gpus if gpu.run_name is not None], len(queries)

    begin(store, submit(store, "r0"), placement=[{"node": "n1", "gpus": [0]}])
    names, few = names_and_queries()
    assert names == ["r0"]
    for index in range(1, 8):
        begin(store, submit(store, f"r{index}"), placement=[{"node": "n1", "gpus": [index]}])
    assert names_and_queries() == ([f"r{index}" for index in range(8)], few)
