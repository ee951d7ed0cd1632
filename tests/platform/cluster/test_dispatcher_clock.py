"""The dispatcher against a clock that jumps and a training that stops stepping: no Ray, no processes.

What agents would say is told to it; what it asks of them is written down.
"""

from __future__ import annotations

import time
from concurrent.futures import Future

import pytest

from lehr.cluster.dispatcher import Dispatcher
from lehr.control.silence import Silence, Thresholds
from lehr.specs import parse_spec
from lehr.store import Store
from lehr_testing.specs import run as run_spec
from lehr_testing.specs import text_corpus

DAY = 86_400.0


class Clock:
    def __init__(self) -> None:
        self.jumped = 0.0

    def __call__(self) -> float:
        return time.time() + self.jumped


class Bench:
    """A dispatcher with one node of one GPU whose agent does whatever it is told."""

    def __init__(self, tmp_path, monkeypatch) -> None:
        self.clock = Clock()
        self.elapsed = 0.0
        self.store = Store.open(tmp_path / "home", clock=self.clock)
        self.corpus = text_corpus(tmp_path / "corpus", documents=3)
        self.dispatcher = Dispatcher(
            self.store,
            tmp_path / "home",
            gpus=1,
            node="n1",
            server_url="http://127.0.0.1:1",
            thresholds=Thresholds(unreachable_s=20.0, stalled_floor_s=30.0),
        )
        self.dispatcher.pulses._clock = lambda: self.elapsed
        self.asked: list[tuple[str, dict]] = []
        self.listed: dict[str, dict] = {}
        monkeypatch.setattr(self.dispatcher._keeper, "request", self.request)
        member = {"name": "n1", "ray_id": "r", "address": "a", "gpus": 1, "alive": True}
        self.dispatcher._hear({"news": "members", "nodes": [member]})
        self.news(hello=True)

    def request(self, op: str, node: str, **fields) -> Future:
        self.asked.append((op, fields))
        if op == "start":
            attempt = fields["launch"]["attempt_id"]
            self.listed[attempt] = {"state": "live", "gpus": [0], "exit": None}
        done: Future = Future()
        done.set_result("started")
        return done

    def news(self, *, hello: bool = False) -> None:
        said = {"attempts": dict(self.listed)}
        if hello:
            gpus = [{"index": 0, "name": "logical GPU", "memory_bytes": None, "uuid": None}]
            said = {"hello": {**said, "gpus": gpus, "cpus": 2}}
        self.dispatcher._hear({"news": "node", "name": "n1", **said})

    def running(self, **changes):
        spec = run_spec(self.corpus, "one", steps=1000) | changes
        run = self.store.create_run(parse_spec(spec))
        self.tick()
        attempt = f"{run.id}-1"
        self.beat(attempt, step=None)
        line = '{"kind": "started", "time": 1.0, "schema_version": 1, "attempt": 1}\n'
        self.store.append_stream(attempt, "events.jsonl", 0, line.encode())
        self.tick()
        return run.id, attempt

    def beat(self, attempt: str, step: int | None):
        return self.dispatcher.on_beat(
            attempt, {"step": step, "elapsed_s": self.elapsed, "node_rank": 0}
        )

    def tick(self, seconds: float = 1.0) -> None:
        self.elapsed += seconds
        self.news()
        self.dispatcher.tick()
        self.dispatcher.tick()

    def state(self, run_id: str) -> tuple[str, int]:
        run = self.store.run(run_id)
        return run.state, run.attempt


@pytest.fixture
def bench(tmp_path, monkeypatch):
    made = Bench(tmp_path, monkeypatch)
    yield made
    made.store.close()


@pytest.mark.parametrize("jump", [DAY, -DAY, 400 * DAY])
def test_a_clock_that_jumps_ends_nothing_and_starts_nothing_again(bench, jump):
    run, attempt = bench.running(time_limit_s=3_600)
    assert bench.state(run)[1] == 1
    bench.beat(attempt, step=1)
    bench.clock.jumped = jump
    for step in range(2, 6):
        bench.beat(attempt, step=step)
        bench.tick(2.0)
    assert bench.state(run) == ("running", 1)
    assert bench.dispatcher.silences() == {run: Silence.NONE}
    assert [op for op, _ in bench.asked] == ["start"]


def test_a_clock_that_jumps_before_the_first_beat_does_not_use_up_the_time_limit(bench):
    spec = run_spec(bench.corpus, "two", steps=1000) | {"time_limit_s": 3_600}
    run = bench.store.create_run(parse_spec(spec))
    bench.tick()
    bench.clock.jumped = DAY
    bench.store.append_stream(
        f"{run.id}-1",
        "events.jsonl",
        0,
        b'{"kind": "started", "time": 1.0, "schema_version": 1, "attempt": 1}\n',
    )
    bench.dispatcher._spoke.add(f"{run.id}-1")
    bench.tick()
    bench.tick()
    assert bench.state(run.id) == ("running", 1)


def test_a_training_that_lives_and_does_not_step_is_shown_as_stalled_and_left_alone(bench):
    run, attempt = bench.running()
    for step in range(1, 5):
        bench.beat(attempt, step=step)
        bench.tick(2.0)
    for _ in range(40):
        bench.beat(attempt, step=4)
        bench.tick(2.0)
    assert bench.dispatcher.silences() == {run: Silence.STALLED}
    assert bench.state(run) == ("running", 1)
    assert [op for op, _ in bench.asked] == ["start"]


def test_one_with_a_stall_limit_is_ended_and_its_retry_is_paid_by_infrastructure(bench):
    run, attempt = bench.running(stall_limit_s=60)
    bench.beat(attempt, step=7)
    bench.tick(59)
    bench.beat(attempt, step=7)
    bench.tick(0.5)
    assert [op for op, _ in bench.asked] == ["start"]
    bench.tick(2)
    [(_, stop)] = [pair for pair in bench.asked if pair[0] == "stop"]
    assert (stop["pressure"], stop["reason"]) == ("kill", "no step for 62 s: stall_limit_s is 60")
    assert bench.beat(attempt, step=7)["pressure"] == "kill"
    bench.listed.clear()
    note = {"code": None, "signal": 9, "reason": "stopped", "log_tail": stop["reason"]}
    bench.dispatcher.on_exit(attempt, {"exit": note, "sizes": {}, "node_rank": 0})
    row = bench.store.run(run)
    assert (row.state, row.cause, row.infrastructure_failures) == ("queued", "stalled", 1)
    bench.tick()
    assert bench.state(run) == ("starting", 2)


def test_one_that_is_not_heard_of_is_not_called_stalled(bench):
    run, attempt = bench.running(stall_limit_s=60)
    bench.beat(attempt, step=7)
    bench.tick()
    bench.tick(300)
    assert bench.dispatcher.silences() == {run: Silence.UNREACHABLE}
    assert [op for op, _ in bench.asked] == ["start"]


def test_one_that_spoke_and_never_beat_is_left_alone_however_long_it_is_silent(bench):
    """Its server's network went away in the seconds between its first words and its first beat."""
    run = bench.store.create_run(parse_spec(run_spec(bench.corpus, "cut-off", steps=1000)))
    bench.tick()
    line = b'{"kind": "started", "time": 1.0, "schema_version": 1, "attempt": 1}\n'
    bench.store.append_stream(f"{run.id}-1", "events.jsonl", 0, line)
    bench.tick()
    bench.tick(1_000)
    assert bench.state(run.id) == ("running", 1)
    assert [op for op, _ in bench.asked] == ["start"]


def test_one_of_which_nothing_was_ever_heard_is_given_up_and_begun_again(bench):
    run = bench.store.create_run(parse_spec(run_spec(bench.corpus, "mute", steps=1000)))
    bench.tick()
    bench.tick(1_000)
    assert bench.store.run(run.id).infrastructure_failures == 1
    assert (
        "can that node reach this server's address?"
        in bench.store.attempts(run.id)[0].exit["detail"]
    )
