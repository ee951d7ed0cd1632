"""The queue as presented, and the remedy for a cluster without GPUs."""

from __future__ import annotations

import re
import time

import pytest
from sqlalchemy import event

from lehr.app.presenters.cluster import ClusterPresenter, ExpectedStart, PlannedRun, forecast
from lehr.cluster.membership import Cluster
from lehr.specs import load_spec
from lehr.specs.run import Resources
from lehr.store import Store
from lehr_testing import seeding
from lehr_testing.api import RUN_SPEC
from lehr_testing.stores import begin


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "home") as opened:
        yield opened


def submit(store, name, **changes):
    return store.runs.create(load_spec({**RUN_SPEC, "name": name, **changes})).id


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


def test_queue_has_the_expected_start_and_what_it_rests_on(store):
    cluster = cluster_of_gpus(1)
    spec = seeding.run_spec("running", steps=100)
    attempt = seeding.start(store, store.runs.create(spec))
    attempt.train(range(1, 41))
    waits = store.runs.create(seeding.run_spec("waits", steps=100))
    last = store.runs.create(seeding.run_spec("last", steps=100))
    needs = Resources(gpus=1, gpu_type="H100")
    other = store.runs.create(spec.model_copy(update={"name": "other", "resources": needs}))
    order = (waits.id, other.id, last.id)
    presenter = ClusterPresenter(store, cluster, lambda: order, embedded=True)
    before = time.time()
    first, of_another_kind, second = presenter.queue()
    assert of_another_kind.expected_start is None
    assert "H100" in of_another_kind.expected_because
    # Steps of 2.1 s, of which 60 are left.
    assert first.expected_start == pytest.approx(before + 60 * 2.1, abs=40)
    assert re.fullmatch(r"running ends: 60 steps left at 2\.\d+ s", first.expected_because)
    assert second.expected_start is None
    assert second.expected_because == "the time of a step of waits is not known yet"


def cluster_of_gpus(count, names=("A100",)):
    cluster = Cluster({})
    cluster.set_state("up", None)
    nodes = [
        {"name": f"n{n}", "ray_id": f"r{n}", "address": "a", "gpus": count, "alive": True}
        for n in range(1, len(names) + 1)
    ]
    cluster.on_news({"news": "members", "nodes": nodes})
    for node, name in zip(nodes, names, strict=True):
        gpus = [{"index": i, "name": name, "memory_bytes": None} for i in range(count)]
        hello = {"attempts": {}, "gpus": gpus}
        cluster.on_news({"news": "node", "name": node["name"], "hello": hello})
    return cluster


def test_gpus_that_no_run_can_get_are_not_free_and_say_why(store):
    cluster = cluster_of_gpus(2, names=["A100"] * 6)
    presenter = ClusterPresenter(store, cluster, lambda: (), embedded=True)
    assert presenter.cluster().gpus_free == 12
    begin(store, submit(store, "holds"), placement=[{"node": "n1", "gpus": [0]}])
    begin(store, submit(store, "silent"), placement=[{"node": "n2", "gpus": [0]}])
    cluster.on_news({"news": "node", "name": "n2", "error": "it is lost"})
    cluster.on_news({"news": "node", "name": "n3", "attempts": {}, "draining": True})
    store.nodes.note("n4", "excluded", "its fans", actor="user")
    store.nodes.set_until("n5", time.time() + 60)
    store.nodes.set_until("n6", time.time() + 3600)
    view = presenter.cluster()
    why = {node.name: node.no_runs for node in view.nodes}
    assert why.pop("n5").startswith("is available until 2")
    assert why == {
        "n1": None,
        "n2": "does not answer",
        "n3": "cannot be used: it is leaving the cluster",
        "n4": "excluded: its fans",
        "n6": None,
    }
    assert (view.gpus_free, view.gpus_busy) == (1 + 2, 2)
    assert view.model_dump()["gpus_free"] == 3
    cluster.on_news({"news": "node", "name": "n4", "error": "it is lost, too"})
    assert presenter.cluster().nodes[3].no_runs == "does not answer; excluded: its fans"


def test_use_of_a_machine_is_that_of_the_newest_report(store):
    cluster = cluster_of_gpus(1)
    presenter = ClusterPresenter(store, cluster, lambda: (), embedded=True)
    assert presenter.cluster().nodes[0].free_bytes == {}
    now = {"disk_bytes": 100.0, "disk_used_bytes": 30.0, "cpu_utilization": 0.5, "ram_bytes": 9}
    cluster.on_news({"news": "node", "name": "n1", "attempts": {}, "host_now": now})
    [node] = presenter.cluster().nodes
    assert node.free_bytes == {"LEHR_RUNS": 70}
    assert (node.cpu_utilization, node.ram_used_bytes, node.ram_bytes) == (0.5, None, 9)
    cluster.on_news({"news": "node", "name": "n1", "error": "it is lost"})
    assert presenter.cluster().nodes[0].cpu_utilization is None


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


def test_run_starts_when_the_first_holder_that_frees_enough_ends():
    holders = [PlannedRun("", "slow", 4, 1000, 1.0), PlannedRun("", "quick", 2, 100, 0.5)]
    found = forecast(0, holders, [PlannedRun("a", "a", 2), PlannedRun("b", "b", 4)])
    assert found["a"] == ExpectedStart(50.0, "quick ends: 100 steps left at 0.5 s")
    assert found["b"] == ExpectedStart(1000.0, "slow ends: 1,000 steps left at 1 s")


def test_runs_that_start_later_hold_gpus_in_turn():
    waiting = [PlannedRun("a", "a", 2, 100, 2.0), PlannedRun("b", "b", 2)]
    found = forecast(0, [PlannedRun("", "h", 2, 100, 1.0)], waiting)
    assert found["b"] == ExpectedStart(300.0, "a ends: 100 steps left at 2 s")


def test_unmeasured_speed_makes_the_rest_of_the_queue_unknown():
    waiting = [PlannedRun("a", "a", 1), PlannedRun("b", "b", 1), PlannedRun("c", "c", 1)]
    found = forecast(0, [PlannedRun("", "h", 1, 10, 1.0), PlannedRun("", "new", 1)], waiting)
    assert found["a"].in_s == 10.0
    assert found["b"] == ExpectedStart(None, "the time of a step of new is not known yet")
    assert found["c"].in_s is None


def test_no_later_run_is_expected_before_one_that_is_ahead_of_it():
    holders = [PlannedRun("", "big", 4, 100, 1.0), PlannedRun("", "small", 1, 10, 1.0)]
    found = forecast(0, holders, [PlannedRun("a", "a", 4, 5, 1.0), PlannedRun("b", "b", 1)])
    assert (found["a"].in_s, found["b"].in_s) == (100.0, 100.0)


def test_run_over_its_quota_waits_for_its_project_and_others_pass():
    holders = [
        PlannedRun("", "mine", 2, 100, 1.0, project="small"),
        PlannedRun("", "other", 2, 50, 1.0, project="large"),
    ]
    waiting = [
        PlannedRun("over", "over", 2, 10, 1.0, project="small"),
        PlannedRun("behind", "behind", 1, 10, 1.0, project="small"),
        PlannedRun("free", "free", 2, 10, 1.0, project="large"),
        PlannedRun("next", "next", 2, 10, 1.0, project="large"),
    ]
    found = forecast(2, holders, waiting, quotas={"small": 2})
    assert "free" not in found  # It could start now.
    assert found["next"] == ExpectedStart(10.0, "free ends: 10 steps left at 1 s")
    assert found["over"] == ExpectedStart(100.0, "mine ends: 100 steps left at 1 s")
    assert found["behind"].in_s == 110.0


def test_run_above_the_whole_quota_is_never_expected_and_holds_nobody_up():
    waiting = [PlannedRun("a", "a", 4, project="small"), PlannedRun("b", "b", 1, project="small")]
    found = forecast(0, [PlannedRun("", "h", 8, 10, 1.0)], waiting, quotas={"small": 2})
    assert found["a"] == ExpectedStart(None, "its project may hold 2 GPUs")
    assert found["b"].in_s == 10.0
