"""When waiting runs are expected to start."""

from lehr.analysis.queue_forecast import ExpectedStart, GpuHolder, QueuedRun, forecast


def test_run_starts_when_the_first_holder_that_frees_enough_ends():
    holders = [GpuHolder("slow", 4, 1000, 1.0), GpuHolder("quick", 2, 100, 0.5)]
    found = forecast(0, holders, [QueuedRun("a", "a", 2), QueuedRun("b", "b", 4)])
    assert found["a"] == ExpectedStart(50.0, "quick ends: 100 steps left at 0.5 s")
    assert found["b"] == ExpectedStart(1000.0, "slow ends: 1,000 steps left at 1 s")


def test_runs_that_start_later_hold_gpus_in_turn():
    waiting = [QueuedRun("a", "a", 2, 100, 2.0), QueuedRun("b", "b", 2)]
    found = forecast(0, [GpuHolder("h", 2, 100, 1.0)], waiting)
    assert found["b"] == ExpectedStart(300.0, "a ends: 100 steps left at 2 s")


def test_unmeasured_speed_makes_the_rest_of_the_queue_unknown():
    waiting = [QueuedRun("a", "a", 1), QueuedRun("b", "b", 1), QueuedRun("c", "c", 1)]
    found = forecast(0, [GpuHolder("h", 1, 10, 1.0), GpuHolder("new", 1)], waiting)
    assert found["a"].in_s == 10.0
    assert found["b"] == ExpectedStart(None, "no time of a step is measured of new")
    assert found["c"].in_s is None


def test_no_later_run_is_expected_before_one_that_is_ahead_of_it():
    holders = [GpuHolder("big", 4, 100, 1.0), GpuHolder("small", 1, 10, 1.0)]
    found = forecast(0, holders, [QueuedRun("a", "a", 4, 5, 1.0), QueuedRun("b", "b", 1)])
    assert (found["a"].in_s, found["b"].in_s) == (100.0, 100.0)


def test_run_over_its_quota_waits_for_its_project_and_others_pass():
    holders = [
        GpuHolder("mine", 2, 100, 1.0, project="small"),
        GpuHolder("other", 2, 50, 1.0, project="large"),
    ]
    waiting = [
        QueuedRun("over", "over", 2, 10, 1.0, project="small"),
        QueuedRun("behind", "behind", 1, 10, 1.0, project="small"),
        QueuedRun("free", "free", 2, 10, 1.0, project="large"),
        QueuedRun("next", "next", 2, 10, 1.0, project="large"),
    ]
    found = forecast(2, holders, waiting, quotas={"small": 2})
    assert "free" not in found  # It could start now.
    assert found["next"] == ExpectedStart(10.0, "free ends: 10 steps left at 1 s")
    assert found["over"] == ExpectedStart(100.0, "mine ends: 100 steps left at 1 s")
    assert found["behind"].in_s == 110.0


def test_run_above_the_whole_quota_is_never_expected_and_holds_nobody_up():
    waiting = [QueuedRun("a", "a", 4, project="small"), QueuedRun("b", "b", 1, project="small")]
    found = forecast(0, [GpuHolder("h", 8, 10, 1.0)], waiting, quotas={"small": 2})
    assert found["a"] == ExpectedStart(None, "its project may hold 2 GPUs")
    assert found["b"].in_s == 10.0
