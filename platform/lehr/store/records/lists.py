"""What runs, sweeps and rollouts have in common: they are found, listed and archived alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypedDict, TypeVar, Unpack

from sqlalchemy import ColumnElement, func, text
from sqlmodel import Session, col, or_, select

from lehr.errors import NotFound, UserError, nearest
from lehr.store.changes import Change
from lehr.store.database import Records
from lehr.store.ids import is_part_of_an_id
from lehr.store.tables import RolloutRow, RunRow, SweepRow

Referable = TypeVar("Referable", RunRow, SweepRow, RolloutRow)
Item = TypeVar("Item")
_NAMES_COMPARED = 2000
_BY_KIND = {
    "run": "Its details: lehr show {}",
    "sweep": "Its runs: lehr ls --sweep {}",
    "rollout": "Its runs: lehr show {}",
}


def find(session: Session, table: type[Referable], ref: str, noun: str) -> Referable:
    """Find by id, else the newest of that name, else the only id that begins with ``ref``.

    Archived rows are used only where no other matches.

    Raises:
        NotFound: nothing matches, or several do.
    """
    newest = col(table.number).desc()
    exact = session.exec(
        select(table)
        .where(or_(col(table.id) == ref, col(table.name) == ref))
        .order_by(col(table.archived), newest)
    ).all()
    if exact:
        return next((row for row in exact if row.id == ref), exact[0])
    begun: list[Referable] = []
    if is_part_of_an_id(ref):
        begun = list(
            session.exec(
                select(table)
                .where(col(table.id).startswith(ref.lower(), autoescape=True))
                .order_by(newest)
                .limit(6)
            ).all()
        )
    if len(begun) == 1:
        return begun[0]
    if begun:
        which = ", ".join(f"{row.id} ({row.name})" for row in begun[:5])
        more = ", ..." if len(begun) > 5 else ""
        raise NotFound(
            f"The ids of several {noun}s begin with {ref}: {which}{more}.",
            hint="Give more of the id, or the name.",
        )
    _refuse_another_kind(session, ref, noun)
    known = session.exec(select(table.name, table.id).order_by(newest).limit(_NAMES_COMPARED)).all()
    near = nearest(ref, dict.fromkeys(text for row in known for text in row))
    if near is not None:
        hint = f"Did you mean {near}?"
    elif known:
        hint = f"The newest {noun}s: {', '.join(dict.fromkeys(name for name, _ in known[:5]))}."
    else:
        hint = f"There are no {noun}s yet."
    raise NotFound(f"There is no {noun} {ref!r}.", hint=hint)


def _refuse_another_kind(session: Session, ref: str, noun: str) -> None:
    """Raise NotFound with what to type if this is the name or id of something else."""
    kinds: dict[str, type[Any]] = {"run": RunRow, "sweep": SweepRow, "rollout": RolloutRow}
    for kind, table in kinds.items():
        same = or_(col(table.id) == ref, col(table.name) == ref)
        if kind != noun and session.exec(select(table.id).where(same)).first() is not None:
            raise NotFound(f"{ref!r} is a {kind}, not a {noun}.", hint=_BY_KIND[kind].format(ref))


MAX_PAGE = 1000


@dataclass(frozen=True)
class RowPage(Generic[Item]):
    items: list[Item]
    next_cursor: str | None  # The cursor of the next page; None on the last.
    total: int  # The number of rows on all pages.


class Filters(TypedDict, total=False):
    """The filters of a list. One that is None, or is not there, is left out."""

    project: str | None
    name: str | None
    tag: str | None
    archived: bool | None  # False where it is not there.
    search: str | None  # A part of a name, id, project or tag.
    note: str | None  # A part of a note.


def filters(table: type[Referable], given: Filters) -> list[ColumnElement[bool]]:
    """Return the conditions of a list."""
    wanted: list[ColumnElement[bool]] = []
    own = table.__tablename__
    if (project := given.get("project")) is not None:
        wanted.append(col(table.project) == project)
    if (name := given.get("name")) is not None:
        wanted.append(col(table.name) == name)
    if (archived := given.get("archived", False)) is not None:
        wanted.append(col(table.archived) == archived)
    if (tag := given.get("tag")) is not None:
        wanted.append(
            text(
                f"EXISTS (SELECT 1 FROM json_each({own}.tags) WHERE value = :tag)"  # noqa: S608 - a table's own name
            ).bindparams(tag=tag)  # type: ignore[arg-type]
        )
    if note := given.get("note"):
        wanted.append(col(table.note).icontains(note, autoescape=True))
    if search := given.get("search"):
        wanted.append(
            or_(
                col(table.name).icontains(search, autoescape=True),
                col(table.id).icontains(search, autoescape=True),
                col(table.project).icontains(search, autoescape=True),
                text(
                    f"EXISTS (SELECT 1 FROM json_each({own}.tags)"  # noqa: S608 - a table's own name
                    " WHERE instr(lower(value), lower(:part)) > 0)"
                ).bindparams(part=search),
            )
        )
    return wanted


def number_of(cursor: str) -> int:
    """Return the number that a cursor is.

    Raises:
        UserError: it is not from a page.
    """
    if not cursor.isdecimal():
        raise UserError(f"cursor is {cursor!r}; use the next_cursor of the previous page.")
    return int(cursor)


def fetch_page(
    session: Session,
    table: type[Referable],
    wanted: Sequence[ColumnElement[bool]],
    limit: int,
    cursor: str | None,
    selected: Any = None,
) -> RowPage[Any]:
    """Fetch one page, newest first. The cursor is the number of the last row of the page before.

    ``selected``: columns to select in place of rows, the number among them.

    Raises:
        UserError: a limit out of range, or a cursor that is not from a page.
    """
    if not 1 <= limit <= MAX_PAGE:
        raise UserError(f"limit is {limit}; it must be from 1 to {MAX_PAGE}.")
    query: Any = (select(table) if selected is None else selected).where(*wanted)
    if cursor is not None:
        query = query.where(col(table.number) < number_of(cursor))
    total = session.exec(select(func.count()).select_from(table).where(*wanted)).one()
    rows = list(session.exec(query.order_by(col(table.number).desc()).limit(limit + 1)).all())
    more = len(rows) > limit
    rows = rows[:limit]
    return RowPage(rows, str(rows[-1].number) if more else None, total)


Group = TypeVar("Group", SweepRow, RolloutRow)
_NOUNS: dict[type, Literal["sweep", "rollout"]] = {SweepRow: "sweep", RolloutRow: "rollout"}


class Groups(Records, Generic[Group]):
    """The rows of one table of groups of runs."""

    _table: type[Group]

    def get(self, group_id: str) -> Group:
        """Return the row with this whole id."""
        with self._db.read() as session:
            return get_group(session, self._table, group_id)

    def find(self, ref: str) -> Group:
        """Find by id, name (the newest wins), or an id's beginning; NotFound names near ones."""
        with self._db.read() as session:
            return find(session, self._table, ref, _NOUNS[self._table])

    def page(
        self, *, limit: int = 100, cursor: str | None = None, **given: Unpack[Filters]
    ) -> RowPage[Group]:
        """Return a page, newest first."""
        with self._db.read() as session:
            return fetch_page(session, self._table, filters(self._table, given), limit, cursor)

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
