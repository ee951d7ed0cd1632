"""Which nodes are excluded, and since when: notes, of which the newest of a node holds."""

from __future__ import annotations

from typing import Literal

from sqlmodel import col, func, select

from lehr.store.base import StoreBase
from lehr.store.changes import Change
from lehr.store.tables import Attempt, NodeNote


class Nodes(StoreBase):
    def node_notes(self) -> dict[str, NodeNote]:
        """The newest note of each node that has any."""
        with self.db.read() as session:
            newest = select(func.max(NodeNote.id)).group_by(col(NodeNote.node))
            rows = session.exec(select(NodeNote).where(col(NodeNote.id).in_(newest)))
            return {row.node: row for row in rows.all()}

    def note_node(
        self, node: str, kind: Literal["excluded", "readmitted"], message: str, *, actor: str
    ) -> bool:
        """Excludes or readmits a node; False if it was excluded before.

        To readmit one that is not excluded still forgives what it failed until now.
        """
        with self.db.write(what="note_node") as session:
            newest = session.exec(
                select(NodeNote)
                .where(NodeNote.node == node)
                .order_by(col(NodeNote.id).desc())
                .limit(1)
            ).one_or_none()
            if kind == "excluded" and newest is not None and newest.kind == kind:
                return False
            session.add(
                NodeNote(node=node, kind=kind, message=message, actor=actor, at=self.clock())
            )
        self.db.changed(Change("cluster", ""))
        return True

    def recent_ends(self, limit: int = 200) -> list[Attempt]:
        """The attempts that ended last, newest first."""
        with self.db.read() as session:
            rows = session.exec(
                select(Attempt)
                .where(col(Attempt.exited_at).is_not(None))
                .order_by(col(Attempt.exited_at).desc())
                .limit(limit)
            )
            return list(rows.all())
