"""ASHA prunes a trial through the whole control plane, and its GPU goes to the next."""

from __future__ import annotations

import pytest

from lehr_testing.fakes import faked
from lehr_testing.server import events, marked_processes
from lehr_testing.specs import lr_sweep
from lehr_testing.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("restarted"),
]


def test_asha_prunes_a_trial_and_its_gpu_goes_to_the_next(restarted, corpus):
    # Its two GPUs: the third trial has to wait for one.
    client = restarted.client()
    # Long enough that none ends by itself: what ends early, ends because it was pruned.
    spec = lr_sweep(corpus, "asha", [], steps=100_000)
    del spec["parameters"]
    spec |= {"method": "list", "points": [{"train.optimizer.lr": 3e-3}]}
    spec["pruning"] = {"name": "asha", "min_steps": 10, "reduction": 2}
    spec["run"]["train"]["validation"]["every"] = 10
    sweep = client.sweep(faked(spec))

    def trial(number):
        return sweep.trials[number - 1].run

    def pruned():
        sweep.refresh()
        assert trial(2).state != "completed"
        return trial(2).state == "pruned"

    # Successive halving is asynchronous: the first at a rung continues. Start the good one first.
    until(
        lambda: (sweep.refresh().trials[0].step or 0) >= 20,
        within_s=120,
        what="the good trial to pass the second rung",
    )
    sweep.extend(points=[{"train.optimizer.lr": 1e-9}, {"train.optimizer.lr": 2e-3}])
    until(pruned, within_s=120, what="the pruning of the trial that learns nothing")
    assert trial(2).cause == "prune"
    assert "val/loss, asha: " in trial(2).reason
    assert "is not among the best 1/2 at this rung" in trial(2).reason
    last = events(restarted.home, f"{trial(2).id}-1")[-1]
    assert (last["kind"], last["outcome"]) == ("finished", "stopped")
    assert last["step"] < 100_000
    until(
        lambda: sweep.refresh() and trial(3).state in {"running", "pruned"},
        within_s=60,
        what="the third trial on the GPU that was freed",
    )
    assert marked_processes(f"{trial(2).id}-1") == {}
