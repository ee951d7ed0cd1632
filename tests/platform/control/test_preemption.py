"""Preemption: who is paused for whom, over random clusters; and what follows from it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lehr.control.preemption import preemptions
from lehr.control.queue import plan
from lehr.control.queue_entries import Active, Waiting
from lehr.control.resources import Need, Node, NodeShare
from lehr_testing.properties import examples
from lehr_testing.queue_histories import node


def holder(run_id: str, *shares: tuple[str, tuple[int, ...]], **more) -> Active:
    more = {"preemptible": True, "attempt": 1, **more}
    placement = tuple(NodeShare(name, gpus) for name, gpus in shares)
    return Active(run_id, placement, name=run_id, **more)


def paused(waiting: list[Waiting], held: list[Active], nodes: list[Node]) -> list[str]:
    decided = plan(waiting, held, nodes)
    found = preemptions(decided.turn, decided.starts, held, nodes)
    return [one.run_id for one in found]


def test_higher_priority_pauses_the_lowest_and_newest_that_suffice():
    held = [
        holder("old", ("n0", (0, 1)), number=1),
        holder("new", ("n0", (2, 3)), number=2),
        holder("low", ("n0", (4, 5)), number=3, priority=-5),
        holder("kept", ("n0", (6, 7)), number=4, preemptible=False),
    ]
    nodes = [node("n0", 8)]
    assert paused([Waiting("a", 9, Need(2), priority=1)], held, nodes) == ["low"]
    assert paused([Waiting("a", 9, Need(4), priority=1)], held, nodes) == ["low", "new"]
    assert paused([Waiting("a", 9, Need(6), priority=1)], held, nodes) == ["low", "new", "old"]
    # Not for what it cannot help, and not for its own priority.
    assert paused([Waiting("a", 9, Need(8), priority=1)], held, nodes) == []
    assert paused([Waiting("a", 9, Need(2), priority=0)], held, nodes) == ["low"]
    assert paused([Waiting("a", 9, Need(4), priority=0)], held, nodes) == []


def test_nothing_is_paused_for_a_run_that_fits_or_that_what_ends_suffices_for():
    held = [holder("a", ("n0", (0, 1))), holder("b", ("n0", (2, 3)), ending=True)]
    nodes = [node("n0", 4)]
    assert paused([Waiting("w", 9, Need(2), priority=5)], held, nodes) == []
    assert paused([Waiting("w", 9, Need(1), priority=5)], [held[0]], nodes) == []
    # What ends is for one run only.
    two = [Waiting("w", 9, Need(2), priority=5), Waiting("v", 10, Need(2), priority=5)]
    assert paused(two, held, nodes) == ["a"]


def test_gang_over_two_nodes_is_paused_once_and_its_other_gpus_help_the_next():
    held = [
        holder("gang", ("n0", (0, 1)), ("n1", (0, 1))),
        holder("other", ("n2", (0, 1)), priority=3),
    ]
    nodes = [node("n0", 2), node("n1", 2), node("n2", 2)]
    waiting = [Waiting("w", 8, Need(2), priority=5), Waiting("v", 9, Need(2), priority=5)]
    assert paused(waiting[:1], held, nodes) == ["other"]  # Fewer GPUs stop.
    assert paused([Waiting("w", 8, Need(4, 2), priority=2)], held, nodes) == ["gang"]


@st.composite
def clusters(draw):
    nodes = [
        node(f"n{n}", draw(st.sampled_from([1, 2, 4, 8]))) for n in range(draw(st.integers(1, 3)))
    ]
    held: list[Active] = []
    for one in nodes:
        left = list(range(len(one.gpus)))
        while left and draw(st.booleans()):
            size = draw(st.integers(1, len(left)))
            gpus, left = tuple(left[:size]), left[size:]
            held.append(
                holder(
                    f"h{len(held)}",
                    (one.name, gpus),
                    number=len(held),
                    priority=draw(st.integers(-2, 2)),
                    preemptible=draw(st.booleans()),
                    project=draw(st.sampled_from(["p", "q"])),
                )
            )
    sizes = st.sampled_from([Need(1), Need(2), Need(4), Need(8), Need(2, 2), Need(4, 2)])
    waiting = [
        Waiting(f"w{n}", 100 + n, draw(sizes), priority=draw(st.integers(-2, 3)))
        for n in range(draw(st.integers(1, 5)))
    ]
    return nodes, held, waiting


@settings(max_examples=examples(300), deadline=None)
@given(clusters())
def test_random_preemptions_are_few_legal_and_worth_it(cluster):
    nodes, held, waiting = cluster
    decided = plan(waiting, held, nodes)
    found = preemptions(decided.turn, decided.starts, held, nodes)
    victims = {one.run_id: next(h for h in held if h.run_id == one.run_id) for one in found}
    assert len(victims) == len(found)
    assert all(victim.preemptible for victim in victims.values())
    if not victims:
        return
    highest = max(run.priority for run in decided.turn)
    assert all(victim.priority < highest for victim in victims.values())
    # When they have saved and wait again, a run starts that could not before, of a higher priority
    # than all of them; and none of them comes back in its place.
    left = [one for one in held if one.run_id not in victims]
    left += [Active(one.run_id, one.placement, number=0, name=one.run_id) for one in decided.starts]
    again = [
        Waiting(
            v.run_id, v.number, Need(sum(len(s.gpus) for s in v.placement)), priority=v.priority
        )
        for v in victims.values()
    ]
    after = plan([*decided.turn, *again], left, nodes)
    started = [one.run_id for one in after.starts]
    helped = [run for run in decided.turn if run.run_id in started]
    assert helped
    assert min(v.priority for v in victims.values()) < max(run.priority for run in helped)
    # The next tick, with all of them ending, pauses nothing more.
    ending = [
        Active(
            **{f: getattr(one, f) for f in one.__dataclass_fields__}
            | {
                "ending": one.run_id in victims,
                "preemptible": one.preemptible and one.run_id not in victims,
            }
        )
        for one in held
    ]
    ending += [Active(one.run_id, one.placement, name=one.run_id) for one in decided.starts]
    later = plan(list(decided.turn), ending, nodes)
    assert preemptions(later.turn, later.starts, ending, nodes) == []
