"""The code around the loop: event stream, orders, run paths, failures, metrics."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml

from lehr_testing.forking import fork
from lehr_testing.specs import train as train_values
from lehr_trainer import process_start
from lehr_trainer.contract import layout
from lehr_trainer.contract.records import Metrics, record_adapter
from lehr_trainer.errors import BadConfig, DataUnreachable, DiskFull, NanLoss, error_of
from lehr_trainer.runtime import launch
from lehr_trainer.runtime.channel import Channel
from lehr_trainer.runtime.distributed import Ranks
from lehr_trainer.runtime.event_stream import EventStream
from lehr_trainer.runtime.failures import Failure, explain
from lehr_trainer.step_control import Interrupted, StepControl, StepDecision, StopSignal

pytestmark = pytest.mark.xdist_group("forks")

ALONE = Ranks(rank=0, world_size=1, device=torch.device("cpu"))


# --- events.jsonl ----------------------------------------------------------------------------


def test_records_are_complete_lines_and_nan_is_a_string(tmp_path: Path) -> None:
    with EventStream(tmp_path / "events.jsonl") as events:
        values = {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 0.5}
        events.write(Metrics(time=1.0, step=3, tokens=30, values=values))
        # Readable at once, not only when the file is closed.
        line = (tmp_path / "events.jsonl").read_text()
        assert events.last_step == 3
    assert line.endswith("\n")
    raw = json.loads(line)["values"]
    assert raw == {"a": "NaN", "b": "Infinity", "c": "-Infinity", "d": 0.5}
    read = record_adapter.validate_json(line)
    assert isinstance(read, Metrics)
    assert math.isnan(read.values["a"])
    assert read.values["b"] == math.inf


def test_records_after_a_failed_write_are_complete(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    script = f"""
import resource, signal
from lehr_trainer.contract.records import Notice
from lehr_trainer.runtime.event_stream import EventStream
import errno, lehr_trainer.runtime.event_stream as s
s.NO_SPACE = frozenset({{*s.NO_SPACE, errno.EFBIG}})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
events = EventStream(__import__("pathlib").Path({str(path)!r}))
events.write(Notice(time=0.0, phase="a", message="first"))
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
try:
    events.write(Notice(time=0.0, phase="a", message="torn" * 50))
except s.DiskFull:
    print("full")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
events.write(Notice(time=0.0, phase="a", message="third"))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "full\n"
    lines = path.read_text().splitlines()
    assert [json.loads(lines[0])["message"], json.loads(lines[2])["message"]] == ["first", "third"]
    assert len(lines) == 3
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


# --- boundary --------------------------------------------------------------------------------


@pytest.fixture
def signals():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield StopSignal()
    for number, handler in before.items():
        signal.signal(number, handler)


def orders(path: Path, **values: object) -> None:
    path.with_suffix(".tmp").write_text(json.dumps(values))
    path.with_suffix(".tmp").replace(path)


def test_each_order_becomes_a_decision_once(tmp_path: Path, signals: StopSignal) -> None:
    path = tmp_path / layout.ORDERS
    boundary = StepControl(path, signals, known_checkpoint_seq=2)
    assert boundary.agree(ALONE) == StepDecision()
    orders(path, desired="run", checkpoint_seq=2)
    assert boundary.agree(ALONE) == StepDecision()
    orders(path, desired="run", checkpoint_seq=4)
    assert boundary.agree(ALONE) == StepDecision(checkpoint=True)
    assert boundary.agree(ALONE) == StepDecision()
    orders(path, desired="pause", checkpoint_seq=4)
    stop = boundary.agree(ALONE).stop
    assert (stop.reason, stop.save) == ("pause", True)
    orders(path, desired="stop", checkpoint_seq=4)
    stop = boundary.agree(ALONE).stop
    assert (stop.reason, stop.save) == ("cancel", False)
    # A failed save decides the outcome, except for a cancel.
    assert boundary.agree(ALONE, save_failed=True).stop == stop
    orders(path, desired="pause", checkpoint_seq=4)
    assert boundary.agree(ALONE, save_failed=True) == StepDecision(save_failed=True)


def test_exchange_of_a_step_counts_once_and_another_one_after_an_evaluation(
    tmp_path: Path, signals: StopSignal
) -> None:
    path = tmp_path / layout.ORDERS
    boundary = StepControl(path, signals, known_checkpoint_seq=2)
    digest = boundary.begin(ALONE, 2**52 - 1)
    orders(path, desired="pause", checkpoint_seq=3)
    # What comes after the exchange has begun, a failed save too, counts in the next step.
    assert boundary.agree(ALONE, save_failed=True) == StepDecision()
    assert digest() == 2**52 - 1
    boundary.begin(ALONE, 0)
    assert boundary.agree(ALONE) == StepDecision(save_failed=True)
    boundary.begin(ALONE, 0)
    orders(path, desired="run", checkpoint_seq=3)
    assert boundary.agree(ALONE, again=True) == StepDecision(checkpoint=True)


def test_a_signal_interrupts_before_the_first_step_and_waits_afterwards(
    tmp_path: Path, signals: StopSignal
) -> None:
    with pytest.raises(Interrupted):
        os.kill(os.getpid(), signal.SIGTERM)
    signals.received, signals.wait_for_boundary = False, True
    os.kill(os.getpid(), signal.SIGTERM)
    stop = StepControl(tmp_path / layout.ORDERS, signals, 0).agree(ALONE).stop
    assert (stop.reason, stop.save) == ("signal", True)


# --- places and configs ----------------------------------------------------------------------


def run_dir(folder: Path, text: str = "") -> Path:
    (folder / layout.CONFIG).write_text(text or yaml.safe_dump(train_values(folder)))
    return folder


def test_a_run_directory_gets_its_next_attempt(tmp_path: Path) -> None:
    run_dir(tmp_path)
    for number in (1, 2):
        place = launch.find_place(tmp_path, make_attempt=True)
        assert (place.attempt, place.standalone) == (number, True)
        assert place.attempt_dir.is_dir()
    assert launch.find_place(tmp_path, make_attempt=False) is None


def test_attempt_directory_is_used_with_its_launch_note(tmp_path: Path) -> None:
    attempt = run_dir(tmp_path) / "attempt-3"
    attempt.mkdir()
    note = {"run_id": "r1", "attempt": 3, "resume": "pinned", "resume_from": "attempt-1/x"}
    (attempt / layout.LAUNCH).write_text(json.dumps(note))
    (attempt / layout.EVENTS).write_text("{}\n")  # A notice: the node has built its environment.
    place = launch.find_place(attempt, make_attempt=True)
    assert (place.attempt, place.standalone) == (3, False)
    assert (place.note.resume, place.note.resume_from) == ("pinned", "attempt-1/x")
    layout.rank_log(attempt, 0).touch()
    with pytest.raises(BadConfig, match="was already used"):
        launch.find_place(attempt, make_attempt=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimiser": {}}, "optimiser is not a field; did you mean optimizer?"),
        ({"optimizer": {"learning_rate": 1e-3}}, "optimizer.learning_rate is not a field"),
        ({"steps": -3}, "steps: Input should be greater than or equal to 1 (it is -3)"),
        ({"steps": "many"}, "steps: Input should be a valid integer"),
        ({"grad_accum": 4}, "grad_accum is not a field (there are: "),
        ({"compile": "blocks"}, "compile.scope: Input should be 'auto', 'none', 'block' or"),
        ({"model": "llama-2b"}, "there is no preset 'llama-2b'; there are: "),
        (
            {"batch": {"sequences": 4, "sequence_length": 99999}},
            "batch.sequence_length 99999 is longer than model.max_sequence_length",
        ),
        (
            {"batch": {"sequences": 4, "sequence_length": 64, "micro_batch": 3}},
            "batch.micro_batch 3 does not divide batch.sequences 4",
        ),
    ],
)
def test_a_bad_config_is_one_clear_line(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    run_dir(tmp_path, yaml.safe_dump({**train_values(tmp_path), **change}))
    with pytest.raises(BadConfig) as raised:
        launch.read_config(tmp_path / layout.CONFIG)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    # No mapping of the whole config.
    assert "(it is {" not in str(raised.value)


# --- failures --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (NanLoss("the loss became NaN"), "nan_loss"),
        (DiskFull("full"), "disk_full"),
        (OSError(28, "No space left on device"), "disk_full"),
        (MemoryError(), "out_of_memory"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "out_of_memory"),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
            "out_of_memory",
        ),
        (RuntimeError("[../gloo/transport/tcp/pair.cc] Connection closed by peer"), "peer_lost"),
        (torch.distributed.DistBackendError("NCCL error"), "peer_lost"),
        (torch.AcceleratorError("CUDA error: uncorrectable ECC error"), "gpu_error"),
        (ValueError("odd"), "error"),
    ],
)
def test_each_failure_has_its_cause(error: Exception, cause: str) -> None:
    assert explain(error, 0).cause == cause
    assert "\n" not in explain(error, 0).message


# As torch 2.13 and Triton 3 write them: the first on a CPU, the others before the first kernel on a GPU.
@pytest.mark.parametrize(
    "message",
    [
        "InvalidCxxCompiler: No working C++ compiler found in torch._inductor.config.cpp.cxx: (None, 'g++')",
        "RuntimeError: Failed to find C compiler. Please specify via CC environment variable.",
        "CalledProcessError: Command '['gcc', '/tmp/x/cuda_utils.c', '-O3']' returned non-zero exit status 1.",
    ],
)  # fmt: skip
def test_missing_compiler_is_named_with_what_to_install(message: str) -> None:
    failure = explain(RuntimeError(f"{message}\n\nSet TORCHDYNAMO_VERBOSE=1 for more"), 1)
    assert (failure.rank, failure.cause) == (1, "bad_config")
    assert failure.message == (
        "torch.compile needs a C and a C++ compiler and Python's headers on this machine: install "
        "them (apt-get install gcc g++ python3-dev), or set compile.scope: none, which is slower "
        f"({message})"
    )


@pytest.fixture
def channels(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Channel]]:
    """The connections of two ranks to one store."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    yield [Channel(rank) for rank in (0, 1)]
    del store


def test_reason_of_a_lost_peer_is_reported(channels: list[Channel]) -> None:
    lost = Failure(0, "peer_lost", "another rank has ended")
    channels[0].fail(lost)
    cause = Failure(1, "out_of_memory", "out of memory: 2 GiB")
    assert channels[1].root_cause(cause) == cause
    assert channels[0].root_cause(lost).message == "rank 1: out of memory: 2 GiB"
    assert channels[0].root_cause(Failure(0, "nan_loss", "m")).cause == "nan_loss"
    assert [one.rank for one in channels[0].failures()] == [1, 0, 0, 0], "what follows comes last"


def test_sentence_of_a_hang_names_its_ranks_itself() -> None:
    assert Failure(-1, "hang", "hang at step 3: rank 1").named.message == "hang at step 3: rank 1"


@pytest.mark.parametrize("own", [{}, {"PYTORCH_ALLOC_CONF": "x"}, {"PYTORCH_CUDA_ALLOC_CONF": "y"}])
def test_memory_pool_grows_in_place_unless_the_environment_decides(
    monkeypatch: pytest.MonkeyPatch, own: dict[str, str]
) -> None:
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    process_start.set_cuda_allocator()
    found = {name: os.environ[name] for name in names if name in os.environ}
    assert found == (own or {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})


@pytest.mark.parametrize(
    ("arguments", "called"),
    [
        (["a-run"], "lehr_trainer.runtime.launch.find_place"),
        (["bench", "gpu"], "lehr_trainer.experiments.command.main"),
    ],
)
def test_runs_and_benches_have_the_memory_pool_that_grows_in_place(
    arguments: list[str], called: str
) -> None:
    module, name = called.rsplit(".", 1)
    code = (
        f"import os, sys, {module} as part\n"
        f"part.{name} = lambda *_, **__: sys.exit(os.environ.get('PYTORCH_CUDA_ALLOC_CONF'))\n"
    )
    unset = {k: v for k, v in os.environ.items() if not k.endswith("_ALLOC_CONF")}
    environment = {**unset, "OMP_NUM_THREADS": "1"}
    process = fork("lehr_trainer", arguments, environment=environment, code=code)
    try:
        output, _ = process.communicate(60)
    finally:
        process.end_session()
        process.close()
    assert "expandable_segments:True" in output


def test_error_keeps_its_type_across_ranks() -> None:
    assert type(error_of("disk_full", "m")) is DiskFull
    assert type(error_of(DataUnreachable.cause, "m")) is DataUnreachable
