"""What a server adds to plans: the GPU of its cluster, and measured runs of the same kind."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from lehr.analysis.plan import plan_run, plan_spec
from lehr.control.lifecycle import RunState
from lehr.errors import PlanRefused
from lehr.faces.cli.plan_text import missing_gpus, plan_text
from lehr.faces.client import Client
from lehr.faces.client.plan_server import PlanServer, places
from lehr.faces.mcp.reading import Reading
from lehr.schemas.cluster import ClusterView, GpuView, NodeView
from lehr.specs import Resources, RunSpec, load_spec
from lehr_testing import cli, seeding
from lehr_testing.api import TOKEN, Api, served

H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"
PARAMETERS = 754_977_792
"""Of the seeded runs, as their trainers report them."""


@pytest.fixture
def lehr(tmp_path: Path) -> Iterator[tuple[Api, Client]]:
    with served(tmp_path / "home") as (api, address), Client(address, TOKEN) as client:
        yield api, client


def cluster(*names: str) -> ClusterView:
    return cluster_of(names)


def cluster_of(*nodes: Sequence[str], cpus: int = 1) -> ClusterView:
    """Return a cluster of nodes with GPUs of these names."""
    views = [
        NodeView(
            name=f"n{number}",
            address=f"10.0.0.{number}",
            alive=True,
            logical=False,
            cpus=cpus,
            gpus=[GpuView(index=n, name=name) for n, name in enumerate(names)],
        )
        for number, names in enumerate(nodes, 1)
    ]
    gpus = sum(map(len, nodes))
    return ClusterView(state="up", nodes=views, gpus_total=gpus, gpus_busy=0)


def has(api: Api, *names: str) -> None:
    api.dispatcher.cluster = lambda: cluster(*names)  # type: ignore[method-assign]


def test_nodes_with_one_folder_of_runs_have_its_free_space_once(lehr):
    api, client = lehr
    spec = seeding.run_spec("planned", steps=20)
    size = plan_run(spec).checkpoints.size_bytes
    there = cluster_of((H100,), (H100,))
    for node, folder in zip(there.nodes, ("a", "a"), strict=True):
        node.runs_folder, node.free_bytes = folder, {"LEHR_RUNS": 3 * size}
    api.dispatcher.cluster = lambda: there  # type: ignore[method-assign]
    runs = [(spec, plan_run(spec))] * 3
    with pytest.raises(PlanRefused, match=r"the folders of runs have .* free, as the agents"):
        PlanServer(lambda: client).refuse(runs)
    there.nodes[1].runs_folder = "b"
    PlanServer(lambda: client).refuse(runs)
    there.nodes[1].runs_folder = "a"
    there.nodes[1].free_bytes = {}
    PlanServer(lambda: client).refuse(runs)


def completed(api: Api, name: str, *, steps: int = 20, device: str = H100, **changes: Any) -> None:
    run = api.store.runs.create(seeding.run_spec(name, steps=steps, **changes))
    attempt = seeding.start(api.store, run)
    attempt.started(device=device)
    attempt.train(range(1, steps + 1), logs=False)
    attempt.end(RunState.COMPLETED, steps)


def measured(client: Client, **changes: Any) -> dict[str, dict[str, str]]:
    """Return how each measured run differs from a planned one, by its name."""
    server = PlanServer(lambda: client)
    spec = server.on_this_cluster(seeding.run_spec("planned", **changes))
    return {run.run_name: dict(run.differs) for run in server.measured(spec, PARAMETERS)}


def test_only_a_run_with_the_same_precision_length_compiler_and_device_is_of_the_same_kind(lehr):
    api, client = lehr
    has(api, H100, H100)
    completed(api, "same", lr=1e-2, seed=3)
    completed(api, "too-short", steps=9)
    completed(api, "other-card", device=A100)
    completed(api, "not-compiled", compile={"scope": "none"})
    completed(api, "tf32", precision={"compute": "fp32"})
    completed(api, "longer", batch={"sequences": 16, "sequence_length": 4096})
    assert measured(client) == {
        "longer": {
            "batch": "16 sequences a step",
            "length": "sequences of 4,096",
            "micro-batch": "micro-batch 16",
        },
        "tf32": {"precision": "TF32"},
        "not-compiled": {"compile": "not compiled"},
        "other-card": {"GPU": A100},
        "same": {},
    }


def test_each_trial_is_planned_from_a_run_of_its_own_kind(lehr):
    api, client = lehr
    has(api, H100)
    completed(api, "tf32", precision={"compute": "fp32"})
    completed(api, "bf16")
    server = PlanServer(lambda: client)
    for name, compute in (("tf32", "fp32"), ("bf16", "auto")):
        spec = server.on_this_cluster(seeding.run_spec("p", precision={"compute": compute}))
        assert [run.run_name for run in server.measured(spec, PARAMETERS) if not run.differs] == [
            name
        ]


def test_on_a_mixed_cluster_the_measured_card_is_named(lehr):
    api, client = lehr
    has(api, H100, A100)
    completed(api, "one")
    server = PlanServer(lambda: client)
    [found] = server.measured(seeding.run_spec("p"), PARAMETERS)
    assert (found.differs, found.device) == ({}, H100)


@pytest.mark.parametrize(
    ("names", "gpus", "kind"),
    [
        ([H100, H100], 1, "H100"),
        ([H100, A100], 1, None),
        (["Acme One"], 1, None),
        ([H100], 0, None),
    ],
)
def test_run_that_names_no_gpu_is_planned_for_the_only_kind_of_the_cluster(lehr, names, gpus, kind):
    api, client = lehr
    has(api, *names)
    spec = seeding.run_spec("p", gpus=gpus)
    assert PlanServer(lambda: client).on_this_cluster(spec).resources.gpu_type == kind


def big(**resources: Any) -> dict[str, Any]:
    """A run that fits in no known GPU as it is."""
    batch = {"sequences": 512, "sequence_length": 2048}
    train = seeding.train(model="llama-1b", batch=batch, steps=10)
    return {"kind": "run", "name": "big", "train": train, "resources": {"gpus": 1, **resources}}


def test_what_does_not_fit_in_the_only_kind_of_the_cluster_is_refused_everywhere(lehr, tmp_path):
    api, client = lehr
    has(api, H100)
    (tmp_path / "big.json").write_text(json.dumps(big()))
    sweep = {
        "kind": "sweep",
        "name": "grid",
        "parameters": {"train.seed": {"values": [1, 2]}},
        "run": big(),
    }
    (tmp_path / "grid.json").write_text(json.dumps(sweep))
    for command in (
        ["plan", "big.json"],
        ["submit", "big.json"],
        ["submit", "big.json", "--json"],
        ["plan", "grid.json"],
        ["sweep", "grid.json", "--yes"],
        ["sweep", "grid.json", "--json"],
    ):
        done = cli.call("--server", client.server, *command, cwd=tmp_path, LEHR_TOKEN=TOKEN)
        assert done.returncode == 3, command
        assert "too much: an H100 has 85 GB" in done.stdout + done.stderr
        assert "This cluster has no other kind of GPU." in done.stdout + done.stderr
    assert client.runs() == []
    spec = load_spec(big())
    assert isinstance(spec, RunSpec)
    with pytest.raises(Exception, match="too much: an H100 has 85 GB"):
        Reading(client).plan(spec.model_dump_json())


def test_types_of_gpus_are_counted_by_whole_words():
    assert places(Resources(gpu_type="A100"), cluster(A100, "NVIDIA RTX A1000")) == 1
    assert places(Resources(), cluster(A100, H100)) == 2


@pytest.mark.parametrize(
    ("gpus", "nodes", "on_nodes", "expected"),
    [
        (4, 1, [8], 2),
        (8, 1, [4, 4], 0),
        (8, 2, [4, 4], 1),
        (8, 2, [8], 0),
        (4, 2, [8, 2, 2], 2),
        (2, 2, [1, 1, 1, 1, 1], 2),
        (0, 1, [1, 2], 4),
    ],
)
def test_places_are_counted_by_node(
    gpus: int, nodes: int, on_nodes: list[int], expected: int
) -> None:
    here = cluster_of(*([A100] * number for number in on_nodes), cpus=32)
    assert places(Resources(gpus=gpus, nodes=nodes), here) == expected


def test_a_node_that_does_not_answer_has_no_place() -> None:
    here = cluster_of([A100], [A100])
    here.nodes[1].alive = False
    assert places(Resources(), here) == 1


def test_plan_names_the_nodes_that_get_no_runs() -> None:
    here = cluster_of([A100], [A100], [A100])
    here.nodes[1].excluded = "its fans"
    here.nodes[2].alive = False
    assert places(Resources(), here) == 1
    spec = seeding.run_spec("gang", gpus=2)
    gang = plan_run(spec.model_copy(update={"resources": Resources(gpus=2, nodes=2)}))
    waits = f"waits: this cluster has 1 x {A100} on one node"
    away = "no runs on n2: excluded: its fans; no runs on n3: does not answer"
    assert missing_gpus(gang, here) == f"{waits}; {away}"
    here.nodes[0].ending = "is available until 18:00"
    none = "waits: no node with GPUs gets runs now; no runs on n1: is available until 18:00"
    assert missing_gpus(gang, here) == f"{none}; {away}"


@pytest.mark.parametrize(
    ("on_nodes", "place"),
    [
        ([2, 2], "4 GPUs of any kind on 2 nodes"),
        ([4], f"4 GPUs of any kind on 2 nodes; waits: this cluster has 4 x {A100} on one node"),
        ([3, 1], f"4 GPUs of any kind on 2 nodes; waits: this cluster has 4 x {A100} on 2 nodes,"),
    ],
)
def test_plan_of_a_run_on_several_nodes_names_them(on_nodes: list[int], place: str) -> None:
    here = cluster_of(*([A100] * number for number in on_nodes))
    alone = seeding.run_spec("gang", gpus=4)
    spec = alone.model_copy(update={"resources": Resources(gpus=4, nodes=2)})
    assert f"  place    {place}" in plan_text(plan_spec(spec), here)
