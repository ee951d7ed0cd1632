"""Exit reports: their valid parts, those of a gang as one, and those that only agents have."""

from __future__ import annotations

import pytest

from lehr.control.exits import (
    delivered_parts,
    listed_exit,
    merge_exit_reports,
    sound_exit,
    synthetic_exit,
    with_part,
)


def part(at: float, **note) -> dict:
    return {"code": 1, "signal": None, "reason": "", "log_tail": "", "ended_at": at} | note


def test_the_first_failure_of_a_gang_decides():
    parts = {
        "0": part(12.0, log_tail="NCCL"),
        "1": part(10.0, log_tail="CUDA out of memory"),
        "2": part(8.0, code=0),
    }
    whole = merge_exit_reports(parts)
    assert (whole["log_tail"], whole["code"], whole["ended_at"]) == ("CUDA out of memory", 1, 10.0)
    assert whole["parts"] == parts


@pytest.mark.parametrize(
    "rest",
    [
        {"log_tail": "Watchdog caught collective operation timeout: WorkNCCL(...)"},
        {"log_tail": "torch.distributed.DistBackendError: ncclRemoteError: A call failed"},
        {"log_tail": "gloo/transport/tcp/pair.cc:534] Connection reset by peer"},
        {"reason": "peer_lost", "code": None},
        {"reason": "stopped", "code": None, "signal": 9},
    ],
)
def test_clock_that_is_behind_does_not_make_the_rest_of_a_gang_its_cause(rest):
    oom = part(70.0, log_tail="torch.OutOfMemoryError: CUDA out of memory")
    whole = merge_exit_reports({"0": part(10.0, **rest), "1": oom, "2": part(9.0, **rest)})
    assert (whole["log_tail"], whole["ended_at"]) == (oom["log_tail"], 70.0)
    alone = merge_exit_reports({"0": part(10.0, **rest), "1": part(9.0, **rest)})
    assert alone["ended_at"] == 9.0


def test_finished_record_of_a_gang_is_that_of_any_part():
    detail = {"outcome": "completed", "step": 3}
    whole = merge_exit_reports({"1": part(1.0, code=0), "0": part(2.0, code=0, finished=detail)})
    assert whole["finished"] == detail


def test_parts_of_a_gang_are_added_one_by_one():
    second = part(10.0, log_tail="CUDA out of memory", delivered=True)
    one = with_part({}, "1", second)
    assert (one["parts"], delivered_parts(one)) == ({"1": second}, 1)
    both = with_part(one, "0", part(11.0, log_tail="NCCL", delivered=False))
    assert (both["log_tail"], sorted(both["parts"])) == ("CUDA out of memory", ["0", "1"])
    assert delivered_parts(both) == 1
    whole = with_part(both, "0", part(11.0, log_tail="NCCL", delivered=True))
    assert delivered_parts(whole) == 2


def test_part_that_reports_later_does_not_undo_that_its_attempt_was_given_up():
    lost = synthetic_exit("node_lost", "node n2 was lost", 9.0, "n2")
    found = with_part(lost, "0", part(10.0, code=0, delivered=True))
    assert found == {**lost, "parts": {"0": part(10.0, code=0, delivered=True)}}


def test_own_reports_come_before_the_lists_of_agents():
    own = part(10.0, log_tail="its own")
    listed = [part(11.0, log_tail="an agent's"), part(12.0, code=0)]
    found = listed_exit({"parts": {"0": own}}, listed)
    assert found["parts"] == {"0": own, "1": listed[1]}
    assert found["log_tail"] == "its own"
    assert listed_exit({}, listed[:1]) == listed[0]


SOUND = {
    "code": 1,
    "signal": None,
    "reason": "",
    "detail": "d",
    "log_tail": "Traceback",
    "started_at": 1.0,
    "ended_at": 2.0,
    "boot_id": "b",
    "finished": {"outcome": "failed", "step": 3, "cause": "nan_loss", "message": "m"},
}


@pytest.mark.parametrize(
    ("part", "value"),
    [
        *(("code", value) for value in ("x", 2**63, [1], 1.5)),
        *(("signal", value) for value in ("x", 0, 2**63, {})),
        *(("reason", value) for value in (1, ["a"], "x" * 300_000, "\ud800")),
        *(("log_tail", value) for value in (7, {}, "\udfff")),
        *(("ended_at", value) for value in ("x", float("nan"), float("inf"), 10**400)),
        *(("finished", value) for value in ([1], "completed", {"outcome": "?"})),
        ("finished", {"outcome": "completed", "step": 2**63}),
        ("finished", {"outcome": "completed", "step": "abc"}),
    ],
)
def test_invalid_field_of_an_exit_report_is_dropped_and_named(part, value):
    found = sound_exit(SOUND | {part: value})
    [errors] = found.pop("dropped")
    assert errors.startswith(part)
    assert found == {name: sound for name, sound in SOUND.items() if name != part}


@pytest.mark.parametrize("report", [None, [], "x", 7])
def test_exit_report_that_is_not_an_object_is_empty(report):
    assert sound_exit(report) == {"dropped": [f"exit: {type(report).__name__} is not an object"]}


@pytest.mark.parametrize("name", ["synthetic", "parts", "node", "dropped", "delivered"])
def test_exit_report_cannot_set_fields_of_the_server(name):
    assert sound_exit({"code": 0, name: {"0": {}}}) == {"code": 0}
