"""What sweeps and rollouts have in common: both are found, listed and archived alike."""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

from sqlmodel import Session, select

from lehr.errors import NotFound
from lehr.store.changes import Change
from lehr.store.database import Clock, Database
from lehr.store.records.lists import RowPage, fetch_page, filters, find
from lehr.store.tables import RolloutRow, SweepRow

Group = TypeVar("Group", SweepRow, RolloutRow)
_NOUNS: dict[type, Literal["sweep", "rollout"]] = {SweepRow: "sweep", RolloutRow: "rollout"}


class Groups(Generic[Group]):
    """The rows of one table of groups of runs."""

    _table: type[Group]

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    def get(self, group_id: str) -> Group:
        """Return the row with this whole id."""
        with self._db.read() as session:
            return get_group(session, self._table, group_id)

    def find(self, ref: str) -> Group:
        """Find by id, name (the newest wins), or an id's beginning; NotFound names near ones."""
        with self._db.read() as session:
            return find(session, self._table, ref, _NOUNS[self._table])

    def page(
        self,
        *,
        project: str | None = None,
        name: str | None = None,
        tag: str | None = None,
        archived: bool | None = False,
        search: str | None = None,
        note: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> RowPage[Group]:
        """Return a page, newest first."""
        wanted = filters(
            self._table,
            project=project,
            name=name,
            tag=tag,
            archived=archived,
            search=search,
            note=note,
        )
        with self._db.read() as session:
            return fetch_page(session, self._table, wanted, limit, cursor)

    def set_note(self, group_id: str, note: str) -> Group:
        """Replace the note; the runs do not change."""
        return self._set(group_id, note=note)

    def set_archived(self, group_id: str, archived: bool) -> Group:
        """Archive or unarchive; the runs do not change."""
        return self._set(group_id, archived=archived)

    def _set(self, group_id: str, **fields: str | bool) -> Group:
        with self._db.write() as session:
            found = get_group(session, self._table, group_id)
            found.sqlmodel_update(fields)
            session.add(found)
            self._db.changed(Change(_NOUNS[self._table], found.id))
            return found


def get_group(session: Session, table: type[Group], group_id: str) -> Group:
    found = session.exec(select(table).where(table.id == group_id)).one_or_none()
    if found is None:
        raise NotFound(f"There is no {_NOUNS[table]} {group_id!r}.")
    return found
