"""The record of the cluster: excluded nodes, ends of nodes, their history, quotas of projects."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from sqlalchemy import Integer, delete, insert
from sqlalchemy import select as sa_select
from sqlmodel import col, func, select

from lehr.errors import NotFound, UserError, did_you_mean
from lehr.specs.run import NAME
from lehr.store.changes import Change
from lehr.store.database import Records
from lehr.store.tables import Attempt, ClusterSpan, NodeMinute, NodeNote, NodeUntil, QuotaRow

SEEN_EVERY_S = 30.0
_LAPSE_S = 3 * SEEN_EVERY_S
MINUTE_S = 60.0
MINUTES_KEPT_S = 7 * 86_400.0
FIGURES = ("utilization", "memory_used_bytes", "temperature_celsius", "power_watts")
MACHINE = -1
"""In place of a GPU's index: of the machine, the use of its CPUs and its RAM."""
_PRUNED = 5000


def short(mean: float) -> float:
    """Round a figure to what is shown of it: SQLite stores a whole number in fewer bytes."""
    return round(mean, 3) if mean < 10 else round(mean)


class Nodes(Records):
    """The notes that exclude or readmit nodes, and why; the ends of nodes."""

    def notes(self) -> dict[str, NodeNote]:
        """Return the newest note of each node that has any."""
        newest = select(func.max(NodeNote.id)).group_by(col(NodeNote.node))
        rows = self._all(select(NodeNote).where(col(NodeNote.id).in_(newest)))
        return {row.node: row for row in rows}

    def note(
        self, node: str, kind: Literal["excluded", "readmitted"], message: str, *, actor: str
    ) -> bool:
        """Exclude or readmit a node; False if it was excluded before.

        Readmitting a node that is not excluded still clears its earlier failures.
        """
        with self._db.write(what="add_node_note") as session:
            newest = session.exec(
                select(NodeNote)
                .where(NodeNote.node == node)
                .order_by(col(NodeNote.id).desc())
                .limit(1)
            ).one_or_none()
            if kind == "excluded" and newest is not None and newest.kind == kind:
                return False
            # The machine's clock may have gone back since the last attempt ended. A node that is
            # readmitted now must not be excluded again for failures before this.
            last_end = session.exec(select(func.max(Attempt.exited_at))).one()
            at = max(self._clock(), last_end or 0.0)
            session.add(NodeNote(node=node, kind=kind, message=message, actor=actor, at=at))
        self._db.changed(Change("cluster", ""))
        return True

    def until(self) -> dict[str, float]:
        """Return until when nodes are available, in seconds since the epoch. Others have no end."""
        return {row.node: row.until for row in self._all(select(NodeUntil))}

    def set_until(self, node: str, until: float | None) -> None:
        """Record until when a node is available; None: it has no end."""
        with self._db.write(what="set_node_until") as session:
            session.execute(delete(NodeUntil).where(col(NodeUntil.node) == node))
            if until is not None:
                session.add(NodeUntil(node=node, until=until))
        self._db.changed(Change("cluster", ""))


class ClusterSpans(Records):
    """The history of nodes and of the queue, as the server saw them every ``SEEN_EVERY_S``."""

    def see(self, seen: Mapping[str, dict[str, Any]], *, for_s: float = 0.0) -> None:
        """Record what is seen of each node, and of the queue. What has not changed is prolonged.

        ``for_s``: what is new began so many seconds ago.
        """
        now = self._clock()
        with self._db.write(durable=False) as session:
            session.execute(
                delete(ClusterSpan).where(col(ClusterSpan.ended) < now - 400 * 86_400.0)
            )
            recent = select(ClusterSpan).where(ClusterSpan.ended > now - _LAPSE_S)
            last = {row.node: row for row in session.exec(recent.order_by(col(ClusterSpan.id)))}
            for node, facts in seen.items():
                if node in last:
                    last[node].ended = now
                if node not in last or last[node].seen != facts:
                    session.add(ClusterSpan(node=node, seen=facts, began=now - for_s, ended=now))

    def since(self, began: float) -> list[ClusterSpan]:
        """Return what was seen since then, in order. What was seen just now lasts until now."""
        now = self._clock()
        recent = select(ClusterSpan).where(ClusterSpan.ended > began)
        rows = self._all(recent.order_by(col(ClusterSpan.id)))
        for row in {row.node: row for row in rows}.values():
            row.ended = now if row.ended > now - _LAPSE_S else row.ended
        return rows


class NodeMinutes(Records):
    """The figures of nodes and GPUs by the minute, of the last seven days."""

    def add(self, means: Sequence[Mapping[str, Any]]) -> None:
        """Record the means of the last minute, of all nodes by one statement."""
        now = self._clock()
        oldest = sa_select(func.min(NodeMinute.id)).scalar_subquery()
        # Few at a time: after a pause of days no deletion holds the write lock for long.
        old = (col(NodeMinute.id) < oldest + _PRUNED, col(NodeMinute.at) < now - MINUTES_KEPT_S)
        with self._db.write(durable=False) as session:
            session.execute(delete(NodeMinute).where(*old))
            if means:
                session.execute(insert(NodeMinute), [{**one, "at": round(now)} for one in means])

    def parts(self, node: str, began: float, part_s: float) -> list[tuple[Any, ...]]:
        """Return GPU, number of the part of time since then, and the means of its figures."""
        middle = col(NodeMinute.at) - MINUTE_S / 2 - began
        part = (middle / part_s).cast(Integer)
        means = [func.avg(getattr(NodeMinute, name)) for name in FIGURES]
        of = (col(NodeMinute.node) == node, col(NodeMinute.at) > began)
        wanted = sa_select(col(NodeMinute.gpu), part, *means).where(*of)
        with self._db.read() as session:
            return [
                tuple(row) for row in session.execute(wanted.group_by(col(NodeMinute.gpu), part))
            ]


class QuotaRecords(Records):
    """The quotas by project. A project without one has no limit."""

    def all(self) -> list[QuotaRow]:
        """Return the quotas by project."""
        return self._all(select(QuotaRow).order_by(col(QuotaRow.project)))

    def put(self, project: str, gpus: int, *, actor: str) -> QuotaRow:
        """Set the quota of a project, old or new.

        Raises:
            UserError: the name is not that of a project.
        """
        if not re.fullmatch(NAME, project):
            raise UserError(
                f"{project!r} is not the name of a project.",
                hint="Up to 100 letters, digits, dots, dashes and underscores: ablations.",
            )
        with self._db.write() as session:
            row = session.get(QuotaRow, project)
            row = row or QuotaRow(project=project, gpus=0, changed_by="", changed_at=0.0)
            row.gpus, row.changed_by, row.changed_at = gpus, actor, self._clock()
            session.add(row)
        self._db.changed(Change("cluster", ""))
        return row

    def remove(self, project: str) -> QuotaRow:
        """Remove the quota of a project: its runs have no limit.

        Raises:
            NotFound: it has none; the nearest project with one is named.
        """
        with self._db.write() as session:
            row = session.get(QuotaRow, project)
            if row is None:
                raise NotFound(
                    f"project {project!r} has no quota.",
                    hint=did_you_mean(project, session.exec(select(QuotaRow.project)).all())
                    or "List them: lehr admin quota ls",
                )
            session.delete(row)
        self._db.changed(Change("cluster", ""))
        return row
