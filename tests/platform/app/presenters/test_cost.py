"""Cost of runs and sweeps in the answers of the API, from recorded times of attempts."""

from pathlib import Path

import pytest

from lehr.analysis.plan import plan_run
from lehr.app.presenters import cost
from lehr.app.presenters.cost import priced_gpu
from lehr.app.report import document
from lehr.app.services import budget
from lehr.control.lifecycle import RunState
from lehr.specs import RolloutSpec, RunSpec, load_spec
from lehr.specs.stages import stages
from lehr.store.records.attempts import GpuTime, GpuUse
from lehr_testing import seeding
from lehr_testing.api import SWEEP_SPEC, api_client, begin, ingest, line
from lehr_testing.seeded_rollouts import Seeded

H100 = "NVIDIA H100 80GB HBM3"


@pytest.fixture
def api(tmp_path: Path):
    with api_client(tmp_path / "home") as (api, client):
        yield api, client


def trained(api_, run_id: str, began: float, ended: float | None, *, device: str = H100) -> None:
    """Record an attempt of one GPU with these times."""
    attempt = begin(api_.store, run_id)
    ingest(api_.store, attempt, line("started", step=0, device=device, world_size=1, parameters=9))
    api_.store.attempts.update(attempt, dispatched_at=began, exited_at=ended)


def test_sweep_costs_the_gpu_hours_of_all_its_runs_at_the_price_of_the_gpu_that_trained(api):
    api_, client = api
    sweep = client.post("/api/v1/sweeps", json={"spec": SWEEP_SPEC}).json()
    assert sweep["cost"] is None
    runs = [trial["run"]["id"] for trial in sweep["trials"]]
    trained(api_, runs[0], 0.0, 7200.0)
    trained(api_, runs[1], 1000.0, 2800.0)
    found = client.get(f"/api/v1/sweeps/{sweep['id']}").json()["cost"]
    assert found["gpu_hours"] == pytest.approx(2.5)
    assert (found["attempts"], found["gpu"], found["dollars_per_gpu_hour"]) == (2, "H100", 3.0)
    assert found["dollars"] == pytest.approx(7.5)
    [listed] = client.get("/api/v1/sweeps").json()["items"]
    assert listed["used"] == {"gpu_hours": pytest.approx(2.5), "until": None}
    one = client.get(f"/api/v1/runs/{runs[0]}").json()
    assert one["cost"]["gpu_hours"] == pytest.approx(2.0)
    spec = RunSpec.model_validate(one["spec"])
    resources = spec.resources.model_copy(update={"gpu_type": "H100"})
    hours = plan_run(spec.model_copy(update={"resources": resources})).gpu_hours
    assert one["cost"]["planned_gpu_hours"] == pytest.approx(hours)
    assert found["planned_gpu_hours"] == pytest.approx(len(runs) * hours)
    for face in (one["cost"], found):
        assert face["planned_basis"] == "at 42 % MFU (published runs on H100 reach 35 to 44 %)"
    assert client.get(f"/api/v1/runs/{runs[2]}").json()["cost"] is None


def test_pause_costs_no_gpu_hours_and_every_face_has_the_same_figure(api):
    """2 GPUs for an hour, a pause of 2 h, 2 GPUs for half an hour: 2 x 1.0 + 2 x 0.5 = 3.0."""
    api_, client = api
    store, began = api_.store, api_.store.clock() - 20_000.0
    run = store.runs.create(seeding.run_spec("paused", gpus=2))

    def listed() -> float:
        return client.get("/api/v1/runs").json()["items"][0]["used"]["gpu_hours"]

    first = seeding.start(store, run, gpus=(0, 1))
    first.end(RunState.PAUSED, 5)
    store.attempts.update(first.id, dispatched_at=began, exited_at=began + 3600.0)
    assert listed() == pytest.approx(2.0)
    resumed = {"old": RunState.PAUSED, "new": RunState.QUEUED, "attempt": 1}
    store.transitions.apply(run.id, **resumed, cause="user", actor="user")
    second = seeding.start(store, store.runs.get(run.id), gpus=(0, 1))
    store.attempts.update(second.id, dispatched_at=began + 10_800.0)
    until = client.get(f"/api/v1/runs/{run.id}").json()["used"]["until"]
    lives = 2 + 2 * (until - began - 10_800.0) / 3600
    assert listed() == pytest.approx(lives, abs=0.05)
    second.end(RunState.COMPLETED, 9)
    store.attempts.update(second.id, exited_at=began + 12_600.0)
    assert listed() == pytest.approx(3.0)
    detail = client.get(f"/api/v1/runs/{run.id}").json()
    assert detail["used"] == {"gpu_hours": pytest.approx(3.0), "until": None}
    assert detail["cost"]["text"].startswith("3.00 GPU-hours")
    assert "3.00 GPU-hours" in client.get(f"/api/v1/reports/{run.id}").text
    assert budget._used(api_.services, "user") == pytest.approx(3.0)
    held = store.attempts.held_since(0.0)  # On the page of the cluster.
    hours = sum(2 * (row["ended"] - row["began"]) / 3600 for row in held)
    assert hours == pytest.approx(3.0, abs=0.002)


def test_what_an_attempt_uses_grows_in_lists_until_its_processes_have_ended(api):
    api_, client = api
    run = api_.store.runs.create(seeding.run_spec("lost"))
    seeding.start(api_.store, run)
    lost = {"old": RunState.RUNNING, "new": RunState.FAILED, "attempt": 1, "cause": "node_lost"}
    assert api_.store.transitions.apply(run.id, **lost, actor="dispatcher")
    seen = [client.get("/api/v1/runs").json()["items"][0]["used"]["gpu_hours"] for _ in range(2)]
    assert seen[0] < seen[1]


def test_program_of_ones_own_on_a_known_gpu_has_a_price_and_no_plan(api):
    api_, client = api
    spec = {"kind": "run", "name": "script", "trainer": {"script": "train.py"}}
    run = api_.store.runs.create(load_spec({**spec, "resources": {"gpu_type": "H100"}}))
    attempt = begin(api_.store, run.id)
    api_.store.attempts.update(attempt, dispatched_at=0.0, exited_at=7200.0)
    found = client.get(f"/api/v1/runs/{run.id}").json()["cost"]
    assert (found["dollars"], found["planned_gpu_hours"]) == (pytest.approx(6.0), None)


@pytest.mark.parametrize(("device", "basis"), [
    (H100, "at 42 % MFU (published runs on H100 reach 35 to 44 %)"),
    ("NVIDIA L4", "at 35 % MFU (assumed: no published run on this GPU is known)"),
])  # fmt: skip
def test_every_face_says_how_the_planned_cost_was_obtained(api, device, basis):
    api_, client = api
    sweep = client.post("/api/v1/sweeps", json={"spec": SWEEP_SPEC}).json()
    run = sweep["trials"][0]["run"]["id"]
    trained(api_, run, 0.0, 7200.0, device=device)
    for kind, ref in (("runs", run), ("sweeps", sweep["id"])):
        view = cost.CostView.model_validate(client.get(f"/api/v1/{kind}/{ref}").json()["cost"])
        assert view.planned_basis == basis
        assert view.text.endswith(basis)
        assert document.cost(view)[0][1].endswith(basis)


def test_large_sweep_is_planned_by_some_of_its_trials(api, monkeypatch):
    api_, client = api
    sweep = client.post("/api/v1/sweeps", json={"spec": SWEEP_SPEC}).json()
    trained(api_, sweep["trials"][0]["run"]["id"], 0.0, 7200.0)
    whole = client.get(f"/api/v1/sweeps/{sweep['id']}").json()["cost"]["planned_gpu_hours"]
    monkeypatch.setattr(cost, "_PLANNED", 1)
    runs = [trial["run"]["id"] for trial in sweep["trials"]]
    part = cost.Costs(api_.store).of_runs("s", runs, device=H100, gpu_type=None)
    assert part.planned_gpu_hours == pytest.approx(whole)  # Its trials cost the same.


def of_rollout(client, rollout_id):
    answer = client.get(f"/api/v1/rollouts/{rollout_id}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_rollout_costs_the_gpu_hours_of_its_stages_beside_the_plan_of_all_its_runs(api):
    api_, client = api
    seeded = Seeded(api_.store)
    rollout = seeded.rollout.id
    assert of_rollout(client, rollout)["cost"] is None
    on_cpu = seeded.submit("cpu")
    seeding.start(api_.store, on_cpu, gpus=())
    seeded.judge("cpu", on_cpu)
    assert api_.store.rollout_progress.pass_stage(rollout, seeded.planned["cpu"].number)
    trained(api_, seeded.submit("one_gpu").id, 0.0, 1800.0)
    trained(api_, seeded.submit("one_gpu", "whole").id, 0.0, 7200.0)
    found = of_rollout(client, rollout)
    by_name = {stage["name"]: stage for stage in found["stages"]}
    assert by_name["one_gpu"]["cost"]["dollars"] == pytest.approx(2.5 * 3.0)
    assert by_name["one_gpu"]["gpu_seconds"] == pytest.approx(2.5 * 3600)
    assert by_name["all"]["cost"] is None
    whole = found["cost"]
    assert (whole["gpu_hours"], whole["dollars"]) == pytest.approx((2.5, 7.5))
    assert (whole["gpu"], whole["dollars_per_gpu_hour"], whole["attempts"]) == ("H100", 3.0, 3)
    spec = RolloutSpec.model_validate(found["spec"])
    expected = 0.0
    for stage in stages(spec):
        hours = [cost.stage_hours(stage, "H100")]
        assert None not in hours
        expected += sum(hours)
    assert whole["planned_gpu_hours"] == pytest.approx(expected)
    assert whole["planned_dollars"] == pytest.approx(3.0 * expected)


def test_text_has_what_was_used_beside_what_was_planned_as_far_as_it_is_known():
    used = cost.CostView(
        gpu_hours=1234.5, attempts=1, gpu="H100", dollars_per_gpu_hour=3.0, dollars=3703.5
    )
    assert used.text == "1,234.50 GPU-hours, $3,703.50 at $3.00 a GPU-hour (H100)"
    planned = {"planned_gpu_hours": 0.001, "planned_dollars": 0.003, "planned_basis": "at 42 % MFU"}
    more = "; planned under 0.01 GPU-hours, under $0.01 at 42 % MFU"
    assert used.model_copy(update=planned).text == used.text + more


def test_gpu_hours_count_each_gpu_of_each_attempt_and_living_ones_until_now():
    ended = [GpuTime(8, 0.0, 1800.0), GpuTime(0, 0.0, 9000.0)]
    assert GpuUse.of(ended, now=9000.0) == (pytest.approx(4.0), 2, None)
    lives = GpuTime(2, 3600.0, None)
    assert GpuUse.of([*ended, lives], now=7200.0) == (pytest.approx(4.0 + 2.0), 3, 7200.0)


def test_a_clock_that_went_back_costs_nothing():
    assert GpuUse.of([GpuTime(8, 100.0, 50.0)], now=0.0).hours == 0.0


@pytest.mark.parametrize(
    ("device", "gpu_type", "kind"),
    [
        ("NVIDIA H100 80GB HBM3", "A100", "H100"),
        (None, "a100", "A100"),
        ("cpu (logical GPU)", "A100", None),
        (None, "TPU", None),
        (None, None, None),
    ],
)
def test_price_is_that_of_the_gpu_that_trained(device, gpu_type, kind):
    gpu = priced_gpu(device, gpu_type)
    assert (gpu.kind if gpu else None) == kind
