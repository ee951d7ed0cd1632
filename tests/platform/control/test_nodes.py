"""Nodes with failures: when they are excluded, and when not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.control.error_patterns import PATTERNS
from lehr.control.exits import exit_report
from lehr.control.nodes import (
    AVOIDED_S,
    FAULTS,
    LIMIT,
    Ended,
    avoided,
    ends_of,
    failing,
    faulty_nodes,
)
from lehr.control.retries import classify

BOTH = ("n1", "n2")


def ends(*faults: str | None, node: str = "n1") -> list[Ended]:
    return [Ended(node, f"r{i}-1", float(i + 1), fault) for i, fault in enumerate(faults)]


def excluded(found) -> list[str]:
    return [verdict.node for verdict in found]


def test_two_node_failures_in_a_row_exclude_the_node_and_are_named():
    [verdict] = failing(ends("gpu_busy", "ecc_error"), {}, BOTH)
    assert verdict.node == "n1"
    assert verdict.message == "it failed 2 attempts in a row: r0-1 (gpu_busy), r1-1 (ecc_error)"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["n1", "n2", "n3"]), st.sampled_from([None, "gpu_busy", "node_lost"])
        )
    ),
    st.sets(st.sampled_from(["n1", "n2", "n3"])),
)
def test_one_node_always_remains_and_the_order_of_exits_does_not_matter(seen, usable):
    history = [Ended(n, f"r{i}-1", float(i + 1), fault) for i, (n, fault) in enumerate(seen)]
    found = failing(history, {}, usable)
    assert found == failing(history[::-1], {}, usable)
    assert not usable or usable - set(excluded(found))
    for verdict in found:
        mine = [end.fault for end in history if end.node == verdict.node]
        assert None not in mine[-LIMIT:]


def test_node_fault_is_read_from_the_exit_report():
    assert faulty_nodes(("n1",), {"reason": "gpu_busy", "code": None}) == {"n1": "gpu_busy"}
    assert faulty_nodes(("n1",), {"reason": "", "code": 0}) == {}
    assert faulty_nodes(("n1",), {"reason": "", "code": 1, "log_tail": "ValueError: x"}) == {}
    ecc = {"reason": "", "code": 1, "log_tail": "CUDA error: uncorrectable ECC error encountered"}
    assert faulty_nodes(("n1",), ecc) == {"n1": "ecc_error"}


def test_only_the_faulty_node_of_a_gang_is_blamed():
    fine = {"reason": "stopped", "code": None, "signal": 15}
    parts = {"0": fine, "1": {"reason": "gpu_busy", "code": None}}
    assert faulty_nodes(("n1", "n2"), {**fine, "parts": parts}) == {"n2": "gpu_busy"}
    lost = {"reason": "node_lost", "synthetic": True, "node": "n2", "code": None}
    assert faulty_nodes(("n1", "n2"), lost) == {"n2": "node_lost"}
    nobody = {"reason": "shim_lost", "synthetic": True, "node": None, "code": None}
    assert faulty_nodes(("n1", "n2"), nobody) == {}


@pytest.mark.parametrize(
    ("sentence", "node"),
    [
        ("hang at step 1,204: rank 5 on n2 has not entered all-reduce 4,211; its Python", "n2"),
        ("hang at step 3: ranks 4, 5 on n2 cannot answer: it runs no Python; rank 0 is in x", "n2"),
        ("hang at step 3: rank 0 on n1: it takes no step; its Python is in `f` (a/b.py:3)", "n1"),
        ("hang at step 3: ranks 1 (n1), 5 (n2) have not entered all-reduce 7; rank 1's", None),
        ("hang at step 3: all ranks have entered all-reduce 7, and none waits for another", None),
        ("hang at step 3: rank 5 on elsewhere has not entered all-reduce 7; its Python", None),
    ],
)
def test_hang_is_the_fault_of_the_one_node_that_its_sentence_names(sentence, node):
    failed = {"reason": "", "code": 1}
    by_record = {**failed, "finished": {"outcome": "failed", "message": sentence}}
    by_log = {**failed, "parts": {"0": {**failed, "log_tail": f"error: {sentence}"}, "1": failed}}
    for note in (by_record, by_log):
        assert faulty_nodes(BOTH, note) == ({} if node is None else {node: "hang"})


def test_node_that_hangs_twice_is_avoided_by_that_run_alone():
    history = ends("hang", "hang")
    assert failing(history, {}, BOTH) == []
    assert failing(ends("gpu_busy", "hang"), {}, BOTH) == []
    assert avoided(history, {}, 2.0) == {"n1": AVOIDED_S}


def test_causes_found_in_the_output_are_hardware_faults():
    assert {pattern.cause for pattern in PATTERNS} & FAULTS == {"ecc_error", "gpu_lost"}


def test_run_avoids_a_node_that_failed_it_twice():
    history = [*ends("gpu_busy", None, "ecc_error"), *ends("gpu_busy", node="n2")]
    assert avoided(history, {}, 4.0) == {"n1": AVOIDED_S - 1.0}
    # Readmitted between the two.
    assert avoided(history, {"n1": 2.0}, 4.0) == {}


def test_run_avoids_a_node_only_for_a_time_whatever_the_clock_does():
    history = ends("gpu_busy", "ecc_error")
    assert avoided(history, {}, 2.0 + AVOIDED_S - 0.1) == {"n1": pytest.approx(0.1)}
    assert avoided(history, {}, 2.0 + AVOIDED_S) == {}
    assert avoided(history, {}, 2.0 - 10 * AVOIDED_S) == {}, "the clock was set back"


@pytest.mark.parametrize("reason", ["launch_failed", "code_unreachable", "environment_failed"])
@pytest.mark.parametrize("why", ["No space left on device", "Disk quota exceeded"])
def test_start_without_space_is_a_full_disk_and_not_the_fault_of_the_node(reason, why):
    report = {"code": None, "reason": reason, "log_tail": f"/runs/r1/attempt-1: {why}"}
    assert classify(exit_report(report), None).name == "disk_full"
    assert faulty_nodes(("n1",), report) == {}


def test_attempt_ends_well_on_its_nodes_unless_one_of_them_broke_it():
    busy = {"reason": "gpu_busy", "code": None}
    parts = {"parts": {"0": {"code": 0}, "1": busy}}
    assert ends_of("r-1", 5.0, BOTH, parts) == [Ended("n2", "r-1", 5.0, "gpu_busy")]
    assert ends_of("r-1", 5.0, BOTH, {"code": 0}) == [Ended(n, "r-1", 5.0, None) for n in BOTH]
