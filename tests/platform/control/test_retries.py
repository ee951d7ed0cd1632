"""Why attempts end, from the messages that torch, NCCL and the driver really print."""

from __future__ import annotations

import pytest

from lehr.control.lifecycle import MOVES, Desired, RunState
from lehr.control.outcome import outcome, path
from lehr.control.retries import PATTERNS, Budget, Budgets, Exit, Finished, classify

PLENTY = Budgets(user=9, infrastructure=9, preemption=9)
NONE_LEFT = Budgets(user=0, infrastructure=0, preemption=0)

# Verbatim, as torch 2.x, NCCL 2.2x, the NVIDIA driver, glibc and the kernel write them.
MESSAGES = [
    (
        "out_of_memory",
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
            "capacity of 79.10 GiB of which 1.13 GiB is free. Including non-PyTorch memory, this process "
            "has 77.96 GiB memory in use."
        ),
    ),
    (
        "out_of_memory",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ),
    (
        "out_of_memory",
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't "
            "allocate memory: you tried to allocate 68719476736 bytes. Error code 12 (Cannot allocate "
            "memory)"
        ),
    ),
    (
        "out_of_memory",
        "Memory cgroup out of memory: oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task=python",
    ),
    (
        "ecc_error",
        (
            "RuntimeError: CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be "
            "asynchronously reported at some other API call"
        ),
    ),
    (
        "ecc_error",
        "NVRM: Xid (PCI:0000:3b:00): 48, pid=1234, name=python, DBE (Double Bit Error) ECC Error",
    ),
    (
        "gpu_lost",
        "NVRM: Xid (PCI:0000:86:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    ),
    (
        "gpu_lost",
        (
            "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable\nCUDA kernel errors "
            "might be asynchronously reported"
        ),
    ),
    ("gpu_lost", "Failed to initialize NVML: Driver/library version mismatch"),
    (
        "nccl_timeout",
        (
            "[rank3]:[E1119 10:11:12.131 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective "
            "operation timeout: WorkNCCL(SeqNum=8817, OpType=ALLREDUCE, NumelIn=26214400, "
            "NumelOut=26214400, Timeout(ms)=600000) ran for 600021 milliseconds before timing out."
        ),
    ),
    (
        "nccl_error",
        (
            "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/"
            "ProcessGroupNCCL.cpp:3384, remote process exited or there was a network error, NCCL version "
            "2.27.3\nncclRemoteError: A call failed possibly due to a network error or a remote process "
            "exiting prematurely."
        ),
    ),
    (
        "network",
        (
            "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while "
            "trying to connect to (10.0.0.7, 29500)."
        ),
    ),
    (
        "network",
        (
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
            "[127.0.0.1]:40123"
        ),
    ),
    (
        "network",
        (
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network "
            "address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
        ),
    ),
    (
        "disk_full",
        "OSError: [Errno 28] No space left on device: '/runs/x/attempt-1/checkpoints/step-5.tmp/m'",
    ),
    ("disk_full", "OSError: [Errno 122] Disk quota exceeded"),
    (
        "shared_memory_full",
        (
            "RuntimeError: DataLoader worker (pid 4242) is killed by signal: Bus error. It is possible that "
            "dataloader's workers are out of shared memory. Please try to raise your shared memory limit.\n"
            "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared "
            "memory (shm)."
        ),
    ),
    (
        "download_failed",
        (
            "requests.exceptions.ConnectionError: (MaxRetryError(\"HTTPSConnectionPool(host='huggingface.co', "
            "port=443): Max retries exceeded with url: /api/datasets"
        ),
    ),
    (
        "device_assert",
        (
            "../aten/src/ATen/native/cuda/Indexing.cu:1553: indexSelectLargeIndex: block: [0,0,0], thread: "
            "[0,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\nRuntimeError: CUDA error: device-side "
            "assert triggered"
        ),
    ),
    ("stalled", "no step for 612 s: stall_limit_s is 600"),
    ("user_code", "Traceback (most recent call last):\n  File \"x.py\", line 1\nKeyError: 'wte'"),
]
RETRIED = {
    *("ecc_error", "gpu_lost", "nccl_timeout", "nccl_error", "network", "download_failed"),
    "stalled",
}
NEVER = {"out_of_memory", "disk_full", "shared_memory_full"}


@pytest.mark.parametrize(("cause", "text"), MESSAGES, ids=lambda v: v[:40])
def test_real_messages_are_told_apart(cause, text):
    tail = f"step 100 loss 3.2\n{text}\n"
    found = classify(Exit(code=1, log_tail=tail), None)
    assert found.name == cause
    expected = (
        Budget.INFRASTRUCTURE
        if cause in RETRIED
        else Budget.NONE
        if cause in NEVER
        else Budget.USER
    )
    assert found.budget is expected
    # What people read has the line that says it, not just our word for it.
    assert any(line.strip()[:60] in found.message for line in text.splitlines())


def test_every_pattern_is_held_to_a_real_message():
    assert {pattern.cause for pattern in PATTERNS} == {cause for cause, _ in MESSAGES} - {
        "user_code"
    }


def test_the_hardware_is_blamed_before_the_nccl_error_that_it_causes():
    tail = (
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed\n"
        "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    )
    assert classify(Exit(code=1, log_tail=tail), None).name == "ecc_error"


@pytest.mark.parametrize(
    "cause", ["out_of_memory", "bad_config", "bad_data", "bad_checkpoint", "nan_loss", "disk_full"]
)
def test_what_would_only_fail_again_is_never_retried(cause):
    finished = Finished("failed", cause, "it says why", step=3)
    found = classify(Exit(code=1), finished)
    assert (found.name, found.budget, found.message) == (cause, Budget.NONE, "it says why")
    assert decide(finished=finished).state is RunState.FAILED


@pytest.mark.parametrize(
    ("cause", "budget"),
    [
        ("peer_lost", Budget.INFRASTRUCTURE),
        ("gpu_error", Budget.INFRASTRUCTURE),
        ("data_unreachable", Budget.INFRASTRUCTURE),
        ("error", Budget.USER),
    ],
)
def test_what_the_trainer_lays_at_the_machines_door_is_not_the_users(cause, budget):
    said = Finished(outcome="failed", cause=cause, message="it ended")
    assert classify(Exit(code=1), said).budget is budget


def test_an_unnamed_failure_of_the_trainer_is_looked_up_in_its_words():
    finished = Finished("failed", "error", "NCCL gave up: ncclRemoteError: a remote process exited")
    found = classify(Exit(code=1), finished)
    assert (found.name, found.budget) == ("nccl_error", Budget.INFRASTRUCTURE)
    assert (
        classify(Exit(code=1), Finished("failed", "error", "shape mismatch")).budget is Budget.USER
    )


@pytest.mark.parametrize(
    ("signal", "cause", "budget"),
    [
        (9, "killed", Budget.INFRASTRUCTURE),
        (15, "terminated", Budget.PREEMPTION),
        (11, "crashed", Budget.USER),
        (6, "crashed", Budget.USER),
    ],
)
def test_signals_are_told_apart_also_in_torchruns_report(signal, cause, budget):
    alone = classify(Exit(signal=signal), None)
    assert (alone.name, alone.budget) == (cause, budget)
    report = (
        "lehr_trainer FAILED\nRoot Cause (first observed failure):\n  rank      : 1 (local_rank: 1)\n"
        f"  exitcode  : -{signal} (pid: 4242)\n  traceback : Signal {signal} (SIGX) received by PID 4242\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
    )
    by_torchrun = classify(Exit(code=1, log_tail=report), None)
    assert (by_torchrun.name, by_torchrun.budget) == (cause, budget)


@pytest.mark.parametrize(
    ("reason", "budget"),
    [
        ("shim_lost", Budget.INFRASTRUCTURE),
        ("node_rebooted", Budget.INFRASTRUCTURE),
        ("node_lost", Budget.INFRASTRUCTURE),
        ("gpu_busy", Budget.INFRASTRUCTURE),
        ("launch_failed", Budget.INFRASTRUCTURE),
        ("no_contact", Budget.INFRASTRUCTURE),
        ("terminated", Budget.PREEMPTION),
    ],
)
def test_what_the_shim_says_of_the_end_has_its_budget(reason, budget):
    found = classify(Exit(reason=reason, log_tail="node n2 was lost"), None)
    assert (found.name, found.budget) == (reason, budget)


# --- what becomes of the run ----------------------------------------------------------------------


def decide(
    *, desired=Desired.RUN, over=False, ended=None, finished=None, budgets=PLENTY, limit=None
):
    return outcome(
        desired=desired,
        time_limit_s=limit,
        over_time_limit=over,
        ended=ended if ended is not None else Exit(code=1),
        finished=finished,
        budgets=budgets,
    )


def test_each_kind_of_failure_is_paid_from_its_own_budget_and_from_no_other():
    killed = Exit(signal=9)
    only_user = Budgets(user=5, infrastructure=0, preemption=5)
    assert decide(ended=killed).state is RunState.QUEUED
    assert decide(ended=killed).spends is Budget.INFRASTRUCTURE
    refused = decide(ended=killed, budgets=only_user)
    assert refused.state is RunState.FAILED
    assert "no retry is left" in refused.message
    code = Exit(code=1, log_tail="KeyError: 'x'")
    assert decide(ended=code, budgets=Budgets(0, 5, 5)).state is RunState.FAILED
    assert decide(ended=code, budgets=Budgets(1, 0, 0)).spends is Budget.USER


def test_completed_is_completed_whatever_was_wanted_meanwhile():
    done = Finished("completed", step=10)
    for desired in Desired:
        assert (
            decide(desired=desired, finished=done, ended=Exit(code=0)).state is RunState.COMPLETED
        )


@pytest.mark.parametrize(
    ("ended", "says"),
    [
        (Exit(code=0), None),
        (Exit(signal=6), "its process ended with signal 6 after it had finished and saved"),
        (
            Exit(code=1, log_tail="  exitcode  : -6 (pid: 42)"),
            "its process ended with exit code 1 (a rank's: -6) after it had finished and saved",
        ),
        (Exit(reason="node_lost"), None),
    ],
)
def test_a_crash_after_the_last_word_is_said_and_costs_nothing(ended, says):
    found = decide(ended=ended, finished=Finished("completed", step=10), budgets=NONE_LEFT)
    assert (found.state, found.message, found.spends) == (RunState.COMPLETED, says, Budget.NONE)


def test_a_crash_after_a_save_asked_for_from_outside_is_no_fault_of_the_code():
    log = "RuntimeError: [gloo/transport/tcp/pair.cc:1] Connection closed by peer"
    for ended in (Exit(signal=6), Exit(code=1, log_tail=log)):
        found = decide(ended=ended, finished=Finished("stopped", "signal", step=3))
        assert (found.state, found.spends) == (RunState.QUEUED, Budget.PREEMPTION)


@pytest.mark.parametrize(
    ("desired", "state"),
    [
        (Desired.CANCEL, RunState.CANCELLED),
        (Desired.PRUNE, RunState.PRUNED),
        (Desired.PAUSE, RunState.PAUSED),
    ],
)
def test_a_run_asked_to_stop_ends_so_however_its_process_went_down(desired, state):
    for ended, finished in [
        (Exit(code=0), Finished("stopped", step=3)),
        (Exit(signal=9, reason="stopped"), None),
        (Exit(reason="node_lost"), None),
        (Exit(code=1, log_tail="KeyError: 1"), None),
    ]:
        assert (
            decide(desired=desired, ended=ended, finished=finished, budgets=NONE_LEFT).state
            is state
        )


def test_a_pause_that_could_not_save_says_so_and_one_that_failed_by_itself_fails():
    killed = decide(desired=Desired.PAUSE, ended=Exit(signal=9, reason="stopped"))
    assert "last checkpoint" in killed.message
    nan = decide(desired=Desired.PAUSE, finished=Finished("failed", "nan_loss", "loss is NaN"))
    assert (nan.state, nan.cause) == (RunState.FAILED, "nan_loss")


def test_the_time_limit_fails_the_run_and_says_whether_it_saved():
    saved = decide(over=True, limit=60.0, finished=Finished("stopped", step=7), ended=Exit(code=0))
    assert (saved.state, saved.cause) == (RunState.FAILED, "time_limit")
    assert saved.message == "stopped at its time limit of 60 s, and saved"


def test_a_stop_that_nobody_at_lehr_asked_for_is_a_preemption():
    spot = decide(finished=Finished("stopped", step=7), ended=Exit(code=0))
    assert (spot.state, spot.spends, spot.cause) == (
        RunState.QUEUED,
        Budget.PREEMPTION,
        "terminated",
    )


def test_every_way_a_settled_run_goes_is_made_of_moves_that_exist():
    for old in (RunState.STARTING, RunState.RUNNING, RunState.STOPPING):
        for new in RunState:
            steps = path(old, new)
            state = old
            for step in steps:
                assert step in MOVES[state]
                state = step
            if steps:
                assert state is new
    assert path(RunState.STARTING, RunState.COMPLETED) == (RunState.RUNNING, RunState.COMPLETED)
    assert path(RunState.STOPPING, RunState.QUEUED) == ()
