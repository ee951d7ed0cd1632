"""Commands on runs, with a real server without a cluster."""

from __future__ import annotations

import json
import math

import pyarrow.parquet as pq
import pytest

from lehr import Client
from lehr.control.lifecycle import RunState
from lehr.faces.cli import watch
from lehr.schemas.cluster import QueueEntry
from lehr.specs import load_spec
from lehr_testing import cli, seeding
from lehr_testing.api import (
    RUN_SPEC,
    TOKEN,
    begin,
    end,
    evaluation,
    ingest,
    line,
    metrics,
    served,
    started,
)

TINY_PARAMETERS = 853_120


@pytest.fixture
def api(tmp_path):
    with served(tmp_path / "home") as pair:
        yield pair


@pytest.fixture
def lehr(api, tmp_path):
    def call(*args: str) -> cli.CommandResult:
        return cli.call("--server", api[1], *args, cwd=tmp_path, LEHR_TOKEN=TOKEN)

    return call


def test_the_queue_is_listed_in_order_with_reasons(api, lehr):
    api_, _ = api
    assert lehr("queue").stderr == "The queue is empty.\n"
    reason = "waits for 8 x H100 (node n2 has 6 free); next in line at priority 0"
    entry = QueueEntry(
        position=1,
        run_id="m8c4w9zz",
        name="big-run",
        gpus=16,
        nodes=2,
        gpu_type="H100",
        priority=0,
        reason=reason,
        queued_at=1_760_000_000.0,
    )
    other = entry.model_copy(update={"position": 2, "run_id": "k3f9x2ab", "name": "[b]small"})
    api_.dispatcher.waiting = [entry, other]
    result = lehr("queue")
    head, first, second = (line.rstrip() for line in result.stdout.splitlines())
    assert head.split() == ["#", "id", "run", "GPUs", "priority", "since", "why"]
    assert "16 x H100 on 2 nodes" in first
    assert first.endswith(reason)
    assert second.split()[:3] == ["2", "k3f9x2ab", "[b]small"]
    found = json.loads(lehr("queue", "--json").stdout)["queue"]
    assert [one["run_id"] for one in found] == ["m8c4w9zz", "k3f9x2ab"]


def test_empty_list_explains_why_it_is_empty(api, lehr):
    assert "No runs. Create some: lehr demo" in lehr("ls").stderr
    ended_run(api[0])
    lehr("archive", "one")
    nothing = "No run matches. All runs: lehr ls   Archived ones: lehr ls --archived\n"
    for filtered in (["--tag", "baseline"], ["few"], ["--state", "failed"], ["-p", "other"]):
        result = lehr("ls", *filtered)
        assert (result.returncode, result.stdout, result.stderr) == (0, "", nothing)
    hint = "No name contains tag:base. Try: lehr ls --tag base\n"
    assert lehr("ls", "tag:base").stderr == hint
    assert "one" in lehr("ls", "--archived").stdout
    assert lehr("ls", "--sweeps", "x").stderr == "No sweep matches. All sweeps: lehr ls --sweeps\n"
    result = lehr("ls", "--rollouts", "-p", "x").stderr
    assert result == "No rollout matches. All rollouts: lehr ls --rollouts\n"


def ended_run(api_, name="one"):
    """Create an ended run with metrics; return its id."""
    run = api_.store.runs.create(load_spec({**RUN_SPEC, "name": name}))
    attempt = begin(api_.store, run.id)
    ingest(api_.store, attempt, started() + metrics(1, 5))
    end(api_.store, run.id)
    return run.id


def save(store, run_id, step):
    """Record a checkpoint of a run's first attempt whose files exist."""
    path = f"attempt-1/checkpoints/step-{step:08d}"
    (store.home / "runs" / run_id / path).mkdir(parents=True)
    (store.home / "runs" / run_id / path / "manifest.json").write_text("{}")
    saved = {"size_bytes": 9, "digest": "ab" * 32, "reason": "interval"}
    ingest(store, f"{run_id}-1", line("checkpoint", step=step, path=path, **saved))


def test_cooldown_states_tokens_hours_and_rates_before_and_when_it_is_recorded(api, lehr):
    store = api[0].store
    run_id = ended_run(api[0])
    save(store, run_id, 2)
    args = ("cooldown", "one", "--at", "2", "--tokens", "12.8k", "--to", "0.1")
    refused = lehr(*args, "--at", "3")
    assert refused.returncode == 2
    assert "one has no checkpoint at step 3.\n  The nearest is at step 2." in refused.stderr
    lines = [
        f"continues from step 2 of one ({run_id})",
        "50 steps, 12.8 k tokens; 13.3 k with those before",
        "learning rate 0.0003 at step 2; 3e-05 at step 52",
    ]
    planned = lehr(*args, "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert all(f"  {text}\n" in planned.stdout for text in lines), planned.stdout
    assert "256 a step x 50 steps" in planned.stdout, "without those of the trunk"
    answer = json.loads(lehr(*args, "--dry-run", "--json").stdout)
    assert (answer["plan"]["steps"], answer["cooldown"]["last_rate"]) == (50, pytest.approx(3e-5))
    assert store.runs.page().total == 1
    recorded = lehr(*args)
    assert recorded.stdout.startswith("one-cooldown-12.8k")
    assert all(f"  {text}\n" in recorded.stdout for text in lines), recorded.stdout
    made = json.loads(lehr(*args, "--name", "cool", "--json").stdout)["run"]
    assert (made["name"], made["forked_from"], made["total_steps"]) == ("cool", run_id, 52)


def test_fork_to_another_optimizer_starts_it_without_state(api, lehr):
    store = api[0].store
    save(store, ended_run(api[0]), 3)
    fork = ("fork", "one", "train.optimizer.name=muon", "--json", "--optimizer-state")
    kept = lehr(*fork, "keep")
    assert kept.returncode == 2
    assert "adamw, and muon cannot go on from it" in kept.stdout
    assert "is not one of 'keep', 'fresh'" in lehr(*fork, "new").stderr
    made = json.loads(lehr(*fork, "fresh").stdout)["run"]["spec"]["train"]
    assert (made["optimizer"]["name"], made["optimizer_state"]) == ("muon", "fresh")


def test_metrics_are_exported_exact_in_each_format(api, lehr, tmp_path):
    api_, address = api
    run = api_.store.runs.create(load_spec(RUN_SPEC))
    attempt = begin(api_.store, run.id)
    ingest(api_.store, attempt, started() + metrics(1, 3))
    ingest(api_.store, attempt, evaluation(2, 5.5) + evaluation(4, "NaN"))
    rows = [json.loads(row) for row in lehr("export", "one").stdout.splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert [row.get("train/loss") for row in rows] == [10.0, 5.0, 10.0 / 3, None]
    assert [row.get("val/loss") for row in rows] == [None, 5.5, None, "NaN"]
    assert [row["tokens"] for row in rows] == [256.0, 512.0, 768.0, 1024.0]

    result = json.loads(lehr("export", "one", "-o", "one.parquet", "--json").stdout)["exported"]
    assert (result["run"], result["format"]) == (run.id, "parquet")
    table = pq.read_table(tmp_path / "one.parquet")
    assert table.column_names[:3] == ["step", "tokens", "time"]
    assert table["step"].to_pylist() == [1, 2, 3, 4]
    assert table["train/loss"].to_pylist() == [10.0, 5.0, 10.0 / 3, None]
    first, second, third, fourth = table["val/loss"].to_pylist()
    assert (first, second, third) == (None, 5.5, None)
    assert math.isnan(fourth)
    assert lehr("export", "one", "-o", "one.csv").returncode == 0
    assert (tmp_path / "one.csv").read_text().splitlines()[3].startswith("3,768.0,")
    with Client(address, TOKEN) as client:
        frame = client.run("one").history("train/loss")
    assert list(frame["train/loss"]) == table["train/loss"].to_pylist()[:3]

    empty = api_.store.runs.create(load_spec({**RUN_SPEC, "name": "silent"}))
    for more in ((), ("-o", "none.parquet"), ("-o", "none.csv", "--format", "jsonl")):
        done = lehr("export", empty.id, *more)
        assert (done.returncode, done.stdout) == (2, "")
        assert "has no metrics, so there is nothing to export." in done.stderr
    assert not [*tmp_path.glob("none.*")]
    assert "Add -o FILE" in lehr("export", "one", "--json").stdout
    assert lehr("export", "nothing").returncode == 2


def test_save_works_for_a_running_run_and_is_an_error_otherwise(api, lehr):
    api_, _ = api
    run = api_.store.runs.create(load_spec({**RUN_SPEC, "name": "one"}))
    refused = lehr("checkpoints", "save", "one")
    assert refused.returncode == 2
    assert "only a running run can save" in refused.stderr
    unsaved = lehr("fork", "one")
    assert "To save one while it runs: lehr checkpoints save one" in unsaved.stderr
    begin(api_.store, run.id)
    result = lehr("checkpoints", "save", "one")
    assert f"one ({run.id}) will save after its current step." in result.stdout, result.stderr
    assert api_.store.runs.get(run.id).checkpoint_seq == 1
    answer = json.loads(lehr("checkpoints", "save", "one", "--json").stdout)
    assert answer["run"]["id"] == run.id
    assert api_.store.runs.get(run.id).checkpoint_seq == 2


def test_plan_uses_the_median_speed_of_a_similar_run(api, lehr, tmp_path):
    api_, _ = api
    run = api_.store.runs.create(load_spec({**RUN_SPEC, "name": "before"}))
    attempt = begin(api_.store, run.id)
    lines = [metrics(at, at, tokens_per_s=v) for at, v in enumerate((7.0, 50.0, 900.0), 10)]
    same_size = started().replace(b"1000", str(TINY_PARAMETERS).encode())
    ingest(api_.store, attempt, same_size + b"".join(lines))
    end(api_.store, run.id)
    (tmp_path / "new.yaml").write_text(json.dumps(RUN_SPEC))
    result = lehr("plan", "new.yaml").stdout
    assert "from before, at its median 50 tok/s" in result


def test_resumed_run_that_is_still_paused_is_said_to_be_queued_again(api, lehr):
    run = api[0].store.runs.create(load_spec({**RUN_SPEC, "name": "one"}))
    ingest(api[0].store, begin(api[0].store, run.id), started())
    end(api[0].store, run.id, RunState.STOPPING)
    end(api[0].store, run.id, RunState.PAUSED)
    assert lehr("resume", "one").stdout == f"one ({run.id}): paused, will be queued again\n"


def test_feed_of_a_watched_run_has_its_loss(tmp_path):
    with served(tmp_path / "home") as (api, address):
        attempt = seeding.start(api.store, api.store.runs.create(seeding.run_spec("live")))
        client = Client(address, token=TOKEN)
        feed = watch.WatchFeed(client)
        feed.beside(client.run(attempt.run.id).view)
        assert feed.seen.curve == []
        attempt.train(range(1, 301))
        feed.beside(client.run(attempt.run.id).view)
        assert feed.seen.curve[-1][0] == 300
        assert len(feed.seen.curve) > 90
