"""``--dry-run`` of ``submit``, ``sweep`` and ``rollout``: it refuses what the server would refuse."""

from __future__ import annotations

import json

import pytest

from lehr.app.services.code import installed
from lehr.code.capsule_store import CapsuleStore
from lehr.schemas.cluster import ClusterView, GpuView, NodeView
from lehr_testing import cli, rollouts
from lehr_testing.api import RUN_SPEC, SWEEP_SPEC, TOKEN, changed, counts, served
from lehr_testing.campaigns import TARGET

VERBS = {
    "submit": ("run.json", RUN_SPEC, ()),
    "sweep": ("sweep.json", SWEEP_SPEC, ("--yes",)),
    "rollout": ("rollout.json", rollouts.plain(name="up"), ("--yes",)),
}


@pytest.fixture
def lehr(tmp_path):
    with served(tmp_path / "home") as (api, address):
        for file, spec, _ in VERBS.values():
            (tmp_path / file).write_text(json.dumps(spec))

        def run(*args, token=TOKEN, server=address):
            environment = {"LEHR_SERVER": server, "LEHR_TOKEN": token, "COLUMNS": "200"}
            return cli.call(*args, cwd=tmp_path, LEHR_HOME=str(tmp_path / "none"), **environment)

        yield api, run


def nodes(*free, excluded=None):
    """A cluster of nodes n1, n2, ... with two GPUs each, of which so many are free."""
    views = [
        NodeView(
            name=f"n{number}",
            address=f"10.0.0.{number}",
            alive=True,
            logical=False,
            gpus=[
                GpuView(index=n, name="H100", run_name=None if n < count else "busy")
                for n in range(2)
            ],
            excluded=excluded if number == 1 else None,
        )
        for number, count in enumerate(free, 1)
    ]
    return ClusterView(state="up", nodes=views, gpus_total=2 * len(free), gpus_busy=0)


GANG = ["resources.gpus=4", "resources.nodes=2", "train.batch.sequences=16"]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    "overrides",
    [["resources.gpus=16", "train.batch.sequences=16"], GANG, ["secrets={HF_TOKEN: no-such}"]],
    ids=["too many GPUs", "cannot resume", "unknown secret"],
)
def test_dry_run_is_refused_with_the_error_of_the_submission(lehr, verb, overrides):
    api, run = lehr
    api.dispatcher.separate = ["n1", "n2"]
    file, _, yes = VERBS[verb]
    real = run(verb, file, *overrides, *yes)
    dry = run(verb, file, *overrides, "--dry-run")
    assert real.returncode == dry.returncode == 2
    assert dry.stdout == ""
    assert dry.stderr == real.stderr
    error = json.loads(run(verb, file, *overrides, "--dry-run", "--json").stdout)
    assert error == json.loads(run(verb, file, *overrides, "--json").stdout)
    assert counts(api) == (0, 0)


@pytest.mark.parametrize("verb", ["submit", "sweep"])
def test_dry_run_of_a_program_is_checked_too(lehr, tmp_path, verb):
    _, run = lehr
    program = {"trainer": {"module": "mine.train"}, "secrets": {"KEY": "no-such"}}
    spec = {"kind": "run", "name": "one", **program}
    if verb == "sweep":
        spec = changed(SWEEP_SPEC, "parameters", {"trainer.args.lr": {"values": [1, 2]}})
        spec["run"] = program
    (tmp_path / "program.json").write_text(json.dumps(spec))
    dry = run(verb, "program.json", "--dry-run")
    assert dry.returncode == 2
    assert "no-such" in dry.stderr


def test_dry_run_prints_the_plan_and_the_warnings_of_the_run_and_records_nothing(lehr):
    api, run = lehr
    api.dispatcher.separate = ["n1", "n2"]
    for verb in ("submit", "sweep"):
        dry = run(verb, VERBS[verb][0], "--dry-run")
        assert dry.returncode == 0, dry.stderr
        assert "! Its checkpoints stay on the node that writes them" in dry.stdout
        assert "free now: n1" in dry.stdout
    assert run("rollout", "rollout.json", "--dry-run").returncode == 0
    assert counts(api) == (0, 0)


def test_campaign_is_planned_launched_paused_and_extended(lehr, tmp_path):
    api, run = lehr
    spec = {"kind": "campaign", "name": "c", "target": TARGET, "budget": {"gpu_hours": 1}}
    (tmp_path / "c.json").write_text(json.dumps(spec))
    plan = json.loads(run("plan", "c.json", "resources.gpu_type=H100", "--json").stdout)
    assert [one["parameters"]["train.model.hidden_size"] for one in plan["trials"]][::2] == [
        32,
        64,
        96,
    ]
    assert plan["gpu_hours"] == pytest.approx(1.0)
    dry = run("campaign", "c.json", "--dry-run")
    assert "a campaign for train.optimizer.lr, 6 rungs, 1.00 GPU-hours at most" in dry.stdout
    assert counts(api) == (0, 0)
    assert "c is a sweep, not a run" in run("submit", "c.json").stderr.replace(".json", "")
    launched = run("campaign", "c.json", "--yes")
    assert launched.returncode == 0, launched.stderr
    assert "1 run queued" in launched.stdout
    [sweep] = api.store.sweeps.page().items
    assert run("pause", "c").returncode == 0
    assert [one.desired for one in api.store.sweeps.runs(sweep.id)] == ["pause"]
    assert run("extend", "c", "gpu_hours=2").returncode == 0
    sweep = api.store.sweeps.get(sweep.id)
    assert sweep.spec["campaign"]["gpu_hours"] == 3
    assert "c does not know enough of its target yet" in run("show", "c", "--rollout").stderr


def test_plan_names_the_nodes_that_are_free_for_the_run_now(lehr, monkeypatch):
    api, run = lehr

    def place(cluster, *overrides, verb="submit"):
        monkeypatch.setattr(api.dispatcher, "cluster", lambda: cluster)
        args = [verb, VERBS[verb][0], *overrides, "--dry-run"]
        [line] = [one for one in run(*args).stdout.splitlines() if one.startswith("  place")]
        plan = json.loads(run(*args, "--json").stdout)
        first = plan["plan"] if verb == "submit" else plan["trials"][0]
        return line.partition("; ")[2].strip(), first["free_nodes"]

    assert place(nodes(1, 2)) == ("free now: n1, n2", ["n1", "n2"])
    assert place(nodes(1, 2), "resources.gpus=2") == ("free now: n2", ["n2"])
    assert place(nodes(2, 2), *GANG) == ("free now: n1, n2", ["n1", "n2"])
    none = "waits: fewer than 2 nodes have 2 GPUs free now"
    assert place(nodes(1, 2), *GANG) == (none, [])
    assert place(nodes(0, 0)) == ("waits: no node has 1 GPU free now", [])
    assert place(nodes(2, 2, excluded="its fans"), verb="sweep") == ("free now: n2", ["n2"])
    assert place(nodes(1, 1), "resources.gpus=0", "train.device=cpu") == ("", None)
    assert place(nodes(*[1] * 6))[0] == "free now: n1, n2, n3, n4 and 2 more"


def test_dry_run_without_a_server_says_what_was_not_checked(lehr):
    _, run = lehr
    for verb, (file, _, _) in VERBS.items():
        dry = run(verb, file, "--dry-run", server="http://127.0.0.1:9")
        assert dry.returncode == 0
        assert dry.stderr.startswith("! No server answers, so this is not checked: ")
        assert "free now" not in dry.stdout


def test_dry_run_sends_no_code_and_refuses_code_that_cannot_be_collected(lehr, tmp_path):
    api, run = lehr
    (tmp_path / "mine.py").write_text("print(1)\n")
    args = ["submit", "run.json", "--dry-run"]
    assert run(*args, "code.include=[mine.py]").returncode == 0
    kept = CapsuleStore(api.settings.home).digests()
    assert list(kept) in ([], [installed(api.settings.home).digest()])
    refused = run(*args, "code.include=[your.py]")
    assert refused.returncode == 2
    assert "matches your.py" in refused.stderr
