"""Reconcile: the actions for each attempt, and those that must never happen."""

from __future__ import annotations

from lehr.control.lifecycle import Desired
from lehr.control.reconcile import (
    GANG_KILL_S,
    Adopt,
    AttemptPhase,
    Launch,
    MarkLost,
    NodeSeen,
    OpenAttempt,
    RecordExit,
    StopAttempt,
    StopLevel,
    Timeouts,
    judge,
    orphans,
)

TIMEOUTS = Timeouts()


def reconcile(attempts, nodes, *, known: bool = True):
    """Return what `step` decides on open attempts and on what agents list."""
    seen = {node.name: node for node in nodes}
    judged = [judge(one, seen, TIMEOUTS, membership_known=known) for one in attempts]
    ids = {one.id for one in attempts}
    return [action for each in (*judged, orphans(ids, seen.values())) for action in each]


def attempt(**changes) -> OpenAttempt:
    values = {"id": "r-1", "nodes": ("n1",), "current": True, "dispatched": True, "contacted": True}
    return OpenAttempt(**{**values, **changes})


def node(
    name: str = "n1", *, alive: bool = True, answered: bool = True, **seen: AttemptPhase
) -> NodeSeen:
    return NodeSeen(name, alive, answered, {key.replace("_", "-"): s for key, s in seen.items()})


def decide(one: OpenAttempt, *nodes: NodeSeen, known: bool = True):
    return reconcile([one], nodes, known=known)


def test_attempt_of_a_lost_node_is_lost_when_its_lease_expires():
    gone = node(alive=False, answered=False)
    assert decide(attempt(since_contact_s=TIMEOUTS.lease_s - 1), gone) == []
    [action] = decide(attempt(since_contact_s=TIMEOUTS.lease_s + 1), gone)
    assert action == MarkLost("r-1", "node_lost", "node n1 was lost", "n1")


def test_each_node_of_a_gang_has_its_own_lease():
    seen = [node("n1", r_1=AttemptPhase.LIVE), node("n2", alive=False, answered=False)]
    silent = attempt(nodes=("n1", "n2"), silent_nodes={"n2": TIMEOUTS.lease_s + 1})
    assert [type(action) for action in decide(silent, *seen)] == [StopAttempt, MarkLost]
    contacted = attempt(nodes=("n1", "n2"), since_contact_s=1e6, silent_nodes={"n2": 1.0})
    assert decide(contacted, *seen) == []


def test_gang_is_stopped_when_one_of_its_nodes_does_not_know_it():
    stop, lose = decide(attempt(nodes=("n1", "n2")), node("n1", r_1=AttemptPhase.LIVE), node("n2"))
    assert stop == StopAttempt("r-1", ("n1",), StopLevel.KILL, lose.message)
    assert (lose.cause, lose.message) == ("shim_lost", "node n2 has no trace of it")


def test_a_recorded_but_unstarted_attempt_is_started():
    fresh = attempt(dispatched=False, contacted=False)
    assert decide(fresh, node()) == [Launch("r-1")]
    # But not while a call is in flight, nor while its node has not listed its attempts.
    assert decide(attempt(dispatched=False, contacted=False, in_flight=True), node()) == []
    assert decide(fresh, node(answered=False)) == []
    # The server was killed after the agent's start and before it recorded the start.
    assert decide(fresh, node(r_1=AttemptPhase.LIVE)) == [Adopt("r-1")]
    # A part of a gang that has ended must not be started again with the others.
    gang = attempt(dispatched=False, nodes=("n1", "n2"), ended_nodes=frozenset({"n1"}))
    [lose] = decide(gang, node("n1"), node("n2"))
    assert (lose.cause, lose.message) == ("shim_lost", "node n2 has no trace of it")


def test_cancel_escalates_to_a_kill_within_thirty_seconds():
    live = node(r_1=AttemptPhase.LIVE)
    stop_levels = []
    for seconds in (0, 5, 7, 13, 15, 29):
        actions = decide(attempt(desired=Desired.CANCEL, since_request_s=float(seconds)), live)
        stop_levels.append(actions[0].stop_level if actions else None)
    assert stop_levels == [
        None,
        None,
        StopLevel.TERM,
        StopLevel.TERM,
        StopLevel.KILL,
        StopLevel.KILL,
    ]


def test_pause_leaves_time_to_save():
    live = node(r_1=AttemptPhase.LIVE)
    assert decide(attempt(desired=Desired.PAUSE, since_request_s=200.0), live) == []
    [action] = decide(attempt(over_time_limit=True, since_request_s=400.0), live)
    assert action.stop_level is StopLevel.TERM


def test_program_is_killed_after_its_own_grace_whether_cancelled_or_paused():
    live = node(r_1=AttemptPhase.LIVE)

    def stop_level(desired: Desired, grace_s: float, seconds: float) -> StopLevel | None:
        asked = {"desired": desired, "stop_grace_s": grace_s, "since_request_s": seconds}
        actions = decide(attempt(**asked), live)
        return actions[0].stop_level if actions else None

    assert stop_level(Desired.CANCEL, 60.0, 5.0) is None
    assert stop_level(Desired.CANCEL, 60.0, 65.0) is StopLevel.TERM
    assert stop_level(Desired.PRUNE, 60.0, 65.0) is StopLevel.TERM
    assert stop_level(Desired.CANCEL, 60.0, 75.0) is StopLevel.KILL
    assert stop_level(Desired.CANCEL, 1.0, 16.0) is StopLevel.KILL
    assert stop_level(Desired.PAUSE, 3600.0, 3599.0) is StopLevel.TERM
    assert stop_level(Desired.PAUSE, 3600.0, 4000.0) is StopLevel.KILL
    assert stop_level(Desired.PAUSE, 60.0, 370.0) is StopLevel.KILL


def test_exit_is_taken_from_the_agent_if_the_shipper_cannot_report_it():
    ended = node(r_1=AttemptPhase.ENDED)
    assert decide(attempt(since_ended_s=5.0), ended) == []
    assert decide(attempt(since_ended_s=TIMEOUTS.collect_s + 1), ended) == [RecordExit("r-1")]


def test_an_attempt_without_contact_since_its_start_is_lost_with_a_hint():
    mute = attempt(contacted=False, since_contact_s=TIMEOUTS.first_heartbeat_s + 1)
    stop, lose = decide(mute, node(r_1=AttemptPhase.LIVE))
    assert stop.stop_level is StopLevel.KILL
    assert (lose.cause, lose.node) == ("no_contact", "n1")
    assert "reach this server's address" in lose.message
    # It is unknown which node of the gang it was.
    both = [node("n1", r_1=AttemptPhase.LIVE), node("n2", r_1=AttemptPhase.LIVE)]
    gang = attempt(
        nodes=("n1", "n2"), contacted=False, since_contact_s=TIMEOUTS.first_heartbeat_s + 1
    )
    assert decide(gang, *both)[1].node is None


def test_gang_is_stopped_when_one_part_ends():
    gang = attempt(nodes=("n1", "n2"))
    both = [node("n1", r_1=AttemptPhase.LIVE), node("n2", r_1=AttemptPhase.LIVE)]
    assert decide(gang, *both) == []
    part = [node("n1", r_1=AttemptPhase.LIVE), node("n2", r_1=AttemptPhase.ENDED)]
    [action] = decide(gang, *part)
    assert (action.nodes, action.stop_level) == (("n1",), StopLevel.TERM)
    lost = [node("n1", r_1=AttemptPhase.LIVE), node("n2", alive=False, answered=False)]
    stop, lose = decide(attempt(nodes=("n1", "n2"), since_contact_s=100.0), *lost)
    assert (stop.nodes, stop.stop_level, lose.cause) == (("n1",), StopLevel.KILL, "node_lost")


def test_part_of_a_broken_gang_gets_no_time_to_save():
    """A pause or a time limit waits minutes for a save, which needs all parts."""
    seen = [node(r_1=AttemptPhase.ENDED), node("n2", r_1=AttemptPhase.LIVE)]
    for asked in ({"desired": Desired.PAUSE}, {"over_time_limit": True}):
        gang = {"nodes": ("n1", "n2"), "since_request_s": 1.0, **asked}
        [action] = decide(attempt(since_ended_s=1.0, **gang), *seen)
        assert (action.nodes, action.stop_level) == (("n2",), StopLevel.TERM)
        [action] = decide(attempt(since_ended_s=GANG_KILL_S + 1, **gang), *seen)
        assert action.stop_level is StopLevel.KILL
        # A part that has ended well has saved, and the other may be saving.
        assert decide(attempt(since_ended_s=60.0, ended_well=True, **gang), *seen) == []
    # The limit of a cancel holds, however recently the other part has ended.
    late = {"since_request_s": TIMEOUTS.cancel_kill_s + 1, "desired": Desired.CANCEL}
    [action] = decide(attempt(nodes=("n1", "n2"), since_ended_s=0.1, **late), *seen)
    assert action.stop_level is StopLevel.KILL


def test_part_of_a_gang_may_save_after_the_other_completed():
    """torchrun's own exit barrier gives up after 300 s: the first rank's last save may take longer."""
    seen = [node(r_1=AttemptPhase.ENDED), node("n2", r_1=AttemptPhase.LIVE)]
    ends = {"nodes": ("n1", "n2"), "since_ended_s": 600.0}
    assert reconcile([attempt(ended_well=True, **ends)], seen) == []
    [action] = reconcile([attempt(ended_well=False, **ends)], seen)
    assert (action.nodes, action.stop_level) == (("n2",), StopLevel.KILL)
    late = attempt(ended_well=True, **(ends | {"since_ended_s": TIMEOUTS.gang_drain_s + 1}))
    [action] = reconcile([late], seen)
    assert action.stop_level is StopLevel.KILL


def test_an_unknown_node_counts_as_lost():
    assert decide(attempt(since_contact_s=TIMEOUTS.lease_s - 1)) == []
    [action] = decide(attempt(since_contact_s=TIMEOUTS.lease_s + 1))
    assert action == MarkLost("r-1", "node_lost", "node n1 was lost", "n1")
