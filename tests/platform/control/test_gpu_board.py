"""The board of GPUs: what is known of a node is computed again only when the node changes."""

from __future__ import annotations

from collections import Counter

import pytest

from lehr.control.gpu_board import GpuBoard
from lehr.control.queue import plan
from lehr.control.queue_entries import Active, Waiting
from lehr.control.resources import Gpu, Need, Node, NodeShare

NODES = 20


def cluster() -> list[Node]:
    gpus = tuple(Gpu(index, "A100") for index in range(8))
    return [Node(f"n{number:02}", gpus) for number in range(NODES)]


def queue(runs: int) -> list[Waiting]:
    return [Waiting(f"r{number}", number + 100, Need(1)) for number in range(runs)]


@pytest.mark.parametrize("busy", [True, False])
def test_work_for_a_run_does_not_grow_with_the_cluster(
    monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    """A plan of 1,500 runs on 1,000 nodes would look at each GPU of the cluster for each run."""
    looked: Counter[str] = Counter()
    matching = GpuBoard.matching

    def counted(self: GpuBoard, node: Node, need: Need) -> tuple[int, ...]:
        looked[node.name] += 1
        return matching(self, node, need)

    monkeypatch.setattr(GpuBoard, "matching", counted)
    held = tuple(range(8))
    active = [Active(f"a{n}", (NodeShare(f"n{n:02}", held),), number=n) for n in range(NODES)]

    def work(runs: int) -> int:
        looked.clear()
        plan(queue(runs), active if busy else [], cluster())
        return looked.total()

    # One more run changes one node, whose GPUs are then looked at a few times.
    assert work(60) - work(30) <= 30 * 5


def test_changed_node_is_looked_at_again() -> None:
    board = GpuBoard({node.name: node for node in cluster()[:1]})
    node, need = board.nodes["n00"], Need(4)
    assert board.open(node, need) == list(range(8))
    board.take((NodeShare("n00", (0, 1)),))
    assert board.open(node, need) == [2, 3, 4, 5, 6, 7]
    waiting = Waiting("r", 1, Need(4))
    board.reserve(waiting)
    assert board.open(node, need) == [6, 7]
    assert board.open(node, need, held=True) == [2, 3, 4, 5, 6, 7]
    assert (
        board.reserve(Waiting("s", 2, Need(4))) != []
    )  # Two are free, two are taken in this plan.
    assert board.reserve(Waiting("t", 3, Need(4))) == []
