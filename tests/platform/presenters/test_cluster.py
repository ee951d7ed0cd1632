"""The queue as presented, and the remedy for a cluster without GPUs."""

from __future__ import annotations

import pytest

from lehr.cluster.membership import Cluster
from lehr.presenters.cluster import ClusterPresenter
from lehr.specs import parse_spec
from lehr.store import Store
from lehr_testing.api import RUN_SPEC


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
