"""The part of a run's history that ``lehr show`` prints."""

from __future__ import annotations

from lehr.cli.show import relevant_events
from lehr.schemas.streams import EventView


def event(at: int, kind: str, message: str = "", **data: str | None) -> EventView:
    return EventView(at=float(at), kind=kind, message=message, attempt=1, data=data)


def test_history_keeps_a_lost_attempt_despite_many_removals():
    lost = event(
        0,
        "transition",
        "running -> queued: its launcher was killed",
        **{"from": "running"},
        to="queued",
    )
    later = []
    for step in range(1, 31):
        later += [event(step, "checkpoint"), event(step, "checkpoint_removed")]
    shown = relevant_events([lost, *later])
    assert shown[0] == lost
    assert [e.at for e in shown[1:]] == [float(step) for step in range(19, 31)]
    assert {e.kind for e in shown[1:]} == {"checkpoint"}


def test_a_retried_failure_is_shown_but_the_first_queueing_is_not():
    submitted = event(0, "transition", **{"from": None}, to="queued")
    failed = event(1, "transition", **{"from": "running"}, to="failed")
    retried = event(2, "transition", **{"from": "failed"}, to="queued")
    later = [event(3 + n, "evaluation") for n in range(20)]
    assert relevant_events([submitted, failed, retried, *later]) == [failed, *later[-12:]]


def test_a_short_history_is_shown_whole():
    history = [event(n, "notice") for n in range(5)]
    assert relevant_events(history) == history
