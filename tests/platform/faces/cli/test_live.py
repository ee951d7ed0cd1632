"""The frames of ``lehr watch``, drawn from views, and its output in a pipe."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from lehr.faces.cli import watch
from lehr.faces.cli.group_table import sweep_eta, trials_table
from lehr.faces.cli.live import LiveState, fitting, gpu_map, run_frame, sweep_frame
from lehr.schemas.cluster import ClusterView, GpuView, NodeView
from lehr.schemas.runs import GpuRef, Latest, RunDetail, RunView, UsedView
from lehr.schemas.streams import EventView
from lehr.schemas.sweeps import SweepDetail, TrialView
from lehr_testing import goldens
from lehr_testing.waiting import until


def progress_fields(runs: Sequence[RunView]) -> dict[str, Any]:
    begun = [run.started_at for run in runs if run.started_at is not None]
    known = [run.total_steps for run in runs if run.total_steps]
    ended = [run.ended_at for run in runs if run.ended_at is not None]
    return {
        "trials_total": len(runs),
        "steps_made": sum(run.step or 0 for run in runs),
        "steps_done": sum(
            run.step or 0 if run.ended_at is None else run.total_steps or run.step or 0
            for run in runs
        ),
        "steps_total": sum(known) if len(known) == len(runs) else 0,
        "started_at": min(begun, default=None),
        "ended_at": max(ended, default=None),
    }


NOW = 1_760_000_000.0
TREND = [11.9, 9.0, 8.0, 7.1, 6.4, 6.0, 5.7, 5.5, 5.4, 5.3, 5.25, 5.2]
RATES = [1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2]


def make_run(number: int, state: str = "running", **more) -> RunView:
    step = more.pop("step", 412)
    latest = {
        "train/loss": Latest(value=5.2 + number / 10, step=step),
        "tokens_per_s": Latest(value=31_200.0, step=step),
        "mfu": Latest(value=0.49, step=step),
    }
    values = {
        "id": f"run{number:05}",
        "name": f"lr-grid-{number}",
        "project": "omk",
        "state": state,
        "placement": [GpuRef(node="n1", gpu=number - 1)] if state == "running" else [],
        "step": step,
        "total_steps": 1000,
        "tokens_per_step": 65_536,
        "tokens": 65_536 * step if step else None,
        "total_tokens": 65_536_000,
        "latest": latest if step else {},
        "trend": TREND if step else [],
        "eta_s": 1260.0 if state == "running" else None,
        "created_at": NOW - 900,
        "used": UsedView(gpu_hours=0 if state == "queued" else 0.25),
        "started_at": NOW - 840 if step else None,
        **more,
    }
    return RunView(**values)


def make_sweep(*runs: RunView, **more) -> SweepDetail:
    counts: dict[str, int] = {}
    for run in runs:
        counts[run.state] = counts.get(run.state, 0) + 1
    trials = [
        TrialView(
            number=n,
            parameters={"train.optimizer.lr": RATES[(n - 1) % len(RATES)]},
            run=run,
            value=5.204 + n / 10 if run.step else None,
            rank=n if run.step else None,
            best=n == 1,
        )
        for n, run in enumerate(runs, start=1)
    ]
    return SweepDetail(
        id="sweep001",
        name="lr-grid",
        project="omk",
        method="grid",
        goal="minimize",
        parameters=["train.optimizer.lr"],
        counts=counts,
        state="running",
        best_value=5.304,
        compared_at_step=400,
        best_parameters={"train.optimizer.lr": 1e-4},
        created_at=NOW,
        spec={},
        trials=trials,
        **{"metric": "val/loss", **progress_fields(runs), **more},
    )


def make_cluster(*busy: str | None, alive: bool = True) -> ClusterView:
    gpus = [
        GpuView(index=n, name="NVIDIA A100-SXM4-80GB", run_id=run, run_name=run)
        for n, run in enumerate(busy)
    ]
    node = NodeView(name="n1", address="10.0.0.5", alive=alive, logical=False, gpus=gpus)
    return ClusterView(
        state="up", nodes=[node], gpus_total=len(gpus), gpus_busy=sum(map(bool, busy))
    )


def screen(width: int = 120, height: int = 40) -> Console:
    return Console(file=io.StringIO(), width=width, height=height)


def drawn(renderable, width: int = 120) -> str:
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(renderable)
    return (
        re.sub(
            r"about \d\d:\d\d",
            "about HH:MM",
            "\n".join(line.rstrip() for line in out.getvalue().splitlines()),
        )
        + "\n"
    )


SWEEP = make_sweep(
    make_run(1),
    make_run(2),
    make_run(3, step=0, reason="tokenized 1.2M tokens, 4.4M tokens/s (30%)"),
    make_run(4, "failed", step=188, reason="loss became NaN (LR too high)", ended_at=NOW),
    make_run(5, "completed", step=1000, ended_at=NOW),
    make_run(6, "queued", step=0, pending_reason="waits for 1 x A100; next in line"),
)
CLUSTER = make_cluster("run00001", "run00002", "run00003", "other", None, None, None, None)


def test_table_has_the_best_first_the_unranked_last_and_names_each_run():
    lines = drawn(trials_table(SWEEP)).splitlines()
    assert lines[0].split() == [
        "#", "run", "lr", "val/loss", "trend", "tok/s", "MFU", "GPU", "state",
    ]  # fmt: skip
    assert lines[1].split()[:5] == ["1", "lr-grid-1", "1.0e-4", "5.304", "best"]
    assert lines[3].endswith("failed: loss became NaN (LR too high)")
    assert [line.split()[:2] for line in lines[-2:]] == [["—", "lr-grid-3"], ["—", "lr-grid-6"]]
    assert lines[-1].endswith("queued: waits for 1 x A100; next in line")


def test_user_text_is_not_markup_and_has_no_terminal_codes():
    reason = "\x1b[2J\x1b]0;title\x07gone [/dim] C:\\temp"
    odd = make_sweep(make_run(1, "failed", step=0, reason=reason), metric="[/val]")
    odd.trials[0].parameters = {"train.optimizer.lr": "[/]"}
    lines = drawn(trials_table(odd)).splitlines()
    assert "[/val]" in lines[0]
    assert lines[1].split()[2] == "[/]"
    assert lines[1].endswith("failed: gone [/dim] C:\\temp")
    assert "\x1b" not in "".join(lines)


def test_frame_of_a_sweep_over_different_held_out_sets_has_no_best():
    mixed = SWEEP.model_copy(update={"held_out": "different"})
    text = drawn(sweep_frame(mixed, LiveState(CLUSTER, heard_at=NOW), screen(100), now=NOW), 100)
    assert "no best trial: val/loss was measured on different held-out sets" in text
    assert "best so far" not in text


def test_frame_of_a_sweep_over_seeds_has_their_mean():
    sweep = SWEEP.model_copy(update={"parameters": ["train.seed"], "best_parameters": {}})
    text = drawn(sweep_frame(sweep, LiveState(CLUSTER, heard_at=NOW), screen(), now=NOW))
    assert "best so far: mean of the seeds   val/loss 5.304 at step 400" in text


@pytest.mark.parametrize("width", [80, 120])
def test_sweep_frame_matches_its_golden(width):
    frame = sweep_frame(SWEEP, LiveState(CLUSTER, heard_at=NOW), screen(width), now=NOW)
    text = drawn(frame, width)
    assert all(len(line) <= width for line in text.splitlines())
    goldens.check(f"watch/sweep-{width}.txt", text)


def test_run_frame_matches_its_golden():
    run = make_run(
        1,
        name="big-run",
        placement=[GpuRef(node="n1", gpu=g) for g in range(8)],
        alerts=["the loss has not fallen for 400 steps"],
        latest={
            "train/loss": Latest(value=2.914, step=412),
            "val/loss": Latest(value=2.951, step=400),
            "tokens_per_s": Latest(value=402_000.0, step=412),
            "mfu": Latest(value=0.42, step=412),
            "step_time_s": Latest(value=0.815, step=412),
            "data_wait_s": Latest(value=0.004, step=412),
            "memory/peak_bytes": Latest(value=61.3e9, step=412),
            "train/lr": Latest(value=3e-4, step=412),
            "train/grad_norm": Latest(value=1.21, step=412),
        },
    )
    events = [
        EventView(at=NOW - 840, kind="started", message="training started on 8 ranks", attempt=1),
        EventView(at=NOW - 100, kind="checkpoint", message="checkpoint at step 400", attempt=1),
    ]
    seen = LiveState(make_cluster(*["run00001"] * 8), events, heard_at=NOW)
    goldens.check("watch/run.txt", drawn(run_frame(run, seen, now=NOW)))


def test_frame_of_a_run_has_a_chart_of_its_loss():
    seen = LiveState(CLUSTER, heard_at=NOW, curve=[(1, 11.9), (200, 6.0), (412, 5.2)])
    lines = drawn(run_frame(make_run(1), seen, now=NOW)).splitlines()
    top = next(i for i, line in enumerate(lines) if line.strip().startswith("11.90"))
    assert "\u2801" <= lines[top].split()[1][0] <= "\u28ff"
    assert lines[top + 7].split()[0] == "5.200"
    assert lines[top + 8].split() == ["step", "1", "412"]


def test_first_losses_do_not_flatten_the_chart():
    curve = [(step, 12.0 - step) for step in range(1, 4)]
    curve += [(step, 5 - step / 100) for step in range(4, 101)]
    lines = drawn(
        run_frame(make_run(1), LiveState(heard_at=NOW, curve=curve), now=NOW)
    ).splitlines()
    assert any(line.strip().startswith("4.940") for line in lines)


def test_event_that_is_an_alert_is_listed_once():
    run = make_run(1, alerts=["the disk is full"])
    event = EventView(at=NOW, kind="warning", message="the disk is full", attempt=1)
    frame = drawn(run_frame(run, LiveState(events=[event], heard_at=NOW), now=NOW))
    assert frame.count("the disk is full") == 1


def test_paused_run_has_no_time_so_far_and_a_script_without_tokens_no_rate():
    run = make_run(1, "paused", latest={"step_time_s": Latest(value=0.02, step=3)})
    frame = drawn(run_frame(run, LiveState(heard_at=NOW), now=NOW))
    assert "so far" not in frame
    assert "tok/s" not in frame
    assert re.search(r"a step +20 ms", frame)


def test_frames_without_a_number_of_steps_show_the_step_alone():
    unknown = {"total_steps": 0, "eta_s": None}
    seen = LiveState(heard_at=NOW)
    frame = drawn(run_frame(make_run(1, **unknown), seen, now=NOW))
    assert "  step 412; the number of its steps is not known\n" in frame
    assert "%" not in frame.splitlines()[1]
    ended = make_run(2, "completed", ended_at=NOW, **unknown)
    sweep = make_sweep(make_run(1, **unknown), ended, make_run(3, "queued", step=0, **unknown))
    text = drawn(sweep_frame(sweep, seen, screen(), now=NOW))
    assert "step 274" not in text  # The mean of the trials.
    assert " 33 %" in text
    assert "step 412" in text


def test_frame_shows_the_reason_of_a_pending_or_starting_run():
    waits = make_run(1, "queued", step=0, pending_reason="waits for 8 x H100")
    assert "queued: waits for 8 x H100" in drawn(run_frame(waits, LiveState(heard_at=NOW), now=NOW))
    attempt = {
        "id": "run00001-1", "number": 1, "open": True, "created_at": NOW, "dispatched_at": NOW - 24
    }  # fmt: skip
    starts = RunDetail(
        **{**make_run(1, "starting", step=0).model_dump(), "spec": {}, "attempts": [attempt]}
    )
    text = drawn(run_frame(starts, LiveState(heard_at=NOW), now=NOW))
    assert "starting: its trainer was launched 24 s ago" in text


def test_a_sweep_of_many_trials_fits_the_terminal_and_counts_the_rest():
    states = ["completed"] * 30 + ["running"] * 8 + ["queued"] * 62
    runs = [
        make_run(n, state, step=0 if state == "queued" else 5) for n, state in enumerate(states, 1)
    ]
    view = make_sweep(*runs)
    text = drawn(sweep_frame(view, LiveState(CLUSTER, heard_at=NOW), screen(height=24), now=NOW))
    assert len(text.splitlines()) <= 24
    assert "queued: lehr show lists all" in text
    shown, left_out = fitting(view, 11)
    assert [trial.number for trial in shown] == [1, 2, *range(31, 39)]
    assert left_out == "and 28 completed, 62 queued: lehr show lists all"


def test_gpus_are_marked_as_own_foreign_free_or_lost():
    [line] = gpu_map(make_cluster("a", "b", None, alive=False), {"a": "1"})
    assert drawn(line).split()[:5] == ["GPUs", "n1", "1", "▪", "·"]
    assert "2 of 3 busy, 1 here" in line
    assert "not reachable" in line
    assert gpu_map(None, {}) == []


def piped(kind: str, views, monkeypatch) -> list[str]:
    printed: list[str] = []
    monkeypatch.setattr(watch, "_note", printed.append)
    states, progress = (getattr(watch, f"{kind}_{part}") for part in ("states", "progress"))
    reporter = watch.PipeLines(states, progress)
    for view in views:
        reporter(view)
    return printed


def test_pipe_gets_a_line_per_state_change_and_per_tenth_of_the_steps(monkeypatch):
    views = [
        make_run(1, "queued", step=0),
        make_run(1, "queued", step=0, pending_reason="waits for 1 GPU (x frees 1); next in line"),
        make_run(1, "queued", step=0, pending_reason="waits for 1 GPU (y frees 1)"),
        *(
            make_run(1, "starting", step=0, reason=f"prepared 4.0M tokens ({share}%)")
            for share in (50, 99, 100, 100)
        ),
        *(make_run(1, step=step) for step in range(0, 1000, 50)),
        make_run(1, "completed", step=1000, ended_at=NOW),
    ]
    printed = piped("run", views, monkeypatch)
    assert printed[:3] == [
        "lr-grid-1: queued: waits for 1 GPU",
        "lr-grid-1: starting",
        "lr-grid-1: running",
    ]
    assert printed[3] == "lr-grid-1: step 100/1,000, loss 5.300, ETA 21 m"
    assert printed[-1] == "lr-grid-1: completed"
    assert len(printed) == 3 + 9 + 1


def test_pipe_without_a_number_of_steps_gets_a_line_when_the_step_has_doubled(monkeypatch):
    views = [make_run(1, step=step, total_steps=0, eta_s=None) for step in range(0, 1000, 50)]
    printed = piped("run", views, monkeypatch)
    steps = [50, 100, 150, 300, 550]
    assert printed[1:] == [f"lr-grid-1: step {step:,}, loss 5.300" for step in steps]
    sweep = make_sweep(*(make_run(n, total_steps=0, eta_s=None) for n in (1, 2)))
    printed = piped("sweep", [sweep] * 2, monkeypatch)
    assert printed == ["lr-grid-1: running", "lr-grid-2: running"]


def test_eta_of_a_sweep_counts_the_starts_of_runs_that_have_not_begun():
    def run(state: str, held_s: float, eta_s: float | None = None) -> RunView:
        return make_run(1, state, gpus=2, used={"gpu_hours": held_s / 1800}, eta_s=eta_s)

    runs = [run("completed", 45), run("running", 30, 15), run("starting", 5)]
    sweep = make_sweep(*runs, *[run("queued", 0)] * 3)
    # A run takes 45 s. The places are free in 15 s and 40 s: the waiting end in 60, 85 and 105 s.
    assert sweep_eta(sweep) == pytest.approx(105)
    assert sweep_eta(sweep.model_copy(update={"trials_remaining": 1})) == pytest.approx(130)
    assert sweep_eta(sweep.model_copy(update={"trials_remaining": 1, "method": "campaign"})) is None
    assert sweep_eta(make_sweep(run("starting", 5))) is None  # Nothing is measured.
    assert sweep_eta(make_sweep(*runs[:2], run("starting", 50))) is None


def test_pipe_gets_changes_and_tenths_of_a_sweep(monkeypatch):
    waits = make_run(2, "queued", step=0)
    views = [make_sweep(make_run(1, step=step), waits) for step in range(0, 1000, 20)]
    printed = piped("sweep", views, monkeypatch)
    assert printed[0] == "lr-grid-1: running"
    assert printed[1].startswith("lr-grid: 10 % of all steps, best now 5.304, ETA ")
    assert len(printed) == 1 + 4


def test_failed_refresh_keeps_the_last_frame():
    from lehr.errors import ServerUnavailable

    class Gone:
        def cluster(self):
            raise ServerUnavailable("gone")

    look = watch.WatchFeed(Gone())
    look.seen.cluster = CLUSTER
    before = time.time()
    look.beside(SWEEP)
    assert look.seen.cluster is CLUSTER
    assert look.seen.heard_at >= before


@pytest.mark.parametrize("width", [40, 120])
def test_display_fits_the_terminal_and_is_erased_at_ctrl_c(monkeypatch, width):
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=width, height=12)
    monkeypatch.setattr(watch, "console", lambda: terminal)
    client = SimpleNamespace(transport=SimpleNamespace(on_silence=None), cluster=lambda: CLUSTER)

    def wait(progress):
        progress(SWEEP)
        until(lambda: "lr-grid" in screen.getvalue(), within_s=30, what="a frame", every_s=0.05)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watch._live(client, wait, watch._sweep_frame)
    plain = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", screen.getvalue())
    assert all(len(line) <= width for line in re.split(r"[\r\n]+", plain))
    assert screen.getvalue().count("\x1b[?25l") == screen.getvalue().count("\x1b[?25h") == 1
    # The last writes go up and clear each line: nothing of the frame stays.
    assert screen.getvalue().endswith("\x1b[1A\x1b[2K")
