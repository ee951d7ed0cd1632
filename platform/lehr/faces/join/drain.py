"""Drain this machine: no new runs, then its trainings save or finish."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lehr.base import home as homes
from lehr.errors import LehrError
from lehr.node import stop
from lehr.node.stop import StoppedTrainings

if TYPE_CHECKING:
    from lehr.faces.join.record import JoinRecord

_POLL_S = 0.5
NOTICE_S = 5.0
"""Agents are read every second or so."""
ANSWER_S = 10.0
"""Limit for the server to answer: without an answer the trainings save all the same."""
DELIVER_S = 60.0
"""Limit for the last bytes of streams to reach the server: this machine may not come back."""


@dataclass(frozen=True)
class Drained:
    trainings: StoppedTrainings
    unreachable: str | None = None
    """Why the server was not informed; None if it was."""
    runs: tuple[str, ...] = ()
    """Names of the runs of the trainings; their ids where the names are unknown."""


def agents(where: Path) -> list[Path]:
    """List the folders of agents in this home, on a node of a Ray cluster without a keeper.

    A server's own home is not drained: `lehr down` is for that.
    """
    if (where / "lehr.db").exists():
        return []
    return sorted(path.parent for path in homes.node_dir(where).glob("*/attempts"))


def drain_agents(
    where: Path,
    folders: Sequence[Path],
    *,
    wait: bool,
    timeout_s: float,
    notice_s: float = NOTICE_S,
    deliver_s: float = DELIVER_S,
) -> Drained:
    """Have the agents report that this node leaves; then wait for trainings, or have them save.

    For nodes of KubeRay and of Ray cluster files. They have no token of the server; their agents
    report to it by Ray, which gets ``notice_s`` before the first training ends. ``wait``: trainings
    may finish first.
    """
    for folder in folders:
        (folder / stop.DRAINING).touch()
    time.sleep(notice_s)
    return _end_trainings(where, None, wait=wait, timeout_s=timeout_s, deliver_s=deliver_s)


def drain(where: Path, joined: JoinRecord, *, wait: bool, timeout_s: float) -> Drained:
    """Have the server place nothing more here; then wait for trainings, or have them save.

    Trainings that save are requeued by the server, and start where there is place. If the server
    cannot be reached, they save all the same: the machine may have to go.
    """
    unreachable, names = None, {}
    try:
        names = _leave(joined)
    except LehrError as error:
        unreachable = error.message
    drained = _end_trainings(where, unreachable, wait=wait, timeout_s=timeout_s)
    return replace(drained, runs=tuple(names.get(run, run) for run in drained.runs))


def _end_trainings(
    where: Path,
    unreachable: str | None,
    *,
    wait: bool,
    timeout_s: float,
    deliver_s: float = DELIVER_S,
) -> Drained:
    if wait:
        deadline = time.monotonic() + timeout_s
        while stop.count_trainings(where) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if left := stop.count_trainings(where):
            raise LehrError(
                f"{left} trainings have not finished after {timeout_s:g} s; the node stays.",
                hint="It gets no new runs. Wait longer: --timeout; or have them save: without "
                "--wait",
            )
    stopped = stop.stop_all(
        where, command="lehr node leave", timeout_s=timeout_s, deliver_s=deliver_s
    )
    return Drained(stopped, unreachable, stopped.runs)


def _leave(joined: JoinRecord) -> dict[str, str]:
    """Return the names of the node's runs by their ids."""
    from lehr.faces.client import Client

    joined.trust_authority()
    with Client(joined.server_url, joined.node_token, timeout_s=ANSWER_S) as client:
        return client.leave_cluster(joined.node).runs
