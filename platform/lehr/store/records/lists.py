"""Lists of runs, sweeps and rollouts: filtered alike, newest first, a page at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic

from sqlalchemy import ColumnElement, func, text
from sqlmodel import Session, col, or_, select

from lehr.errors import UserError
from lehr.store.records.refs import Referable

MAX_PAGE = 1000


@dataclass(frozen=True)
class RowPage(Generic[Referable]):
    items: list[Referable]
    next_cursor: str | None
    """The cursor of the next page; None on the last."""
    total: int
    """The number of rows on all pages."""


def filters(
    table: type[Referable],
    *,
    project: str | None,
    name: str | None,
    tag: str | None,
    archived: bool | None,
    search: str | None,
    note: str | None = None,
) -> list[ColumnElement[bool]]:
    """Return the conditions of a list.

    ``search`` is a part of a name, id, project or tag, ``note`` of a note. A filter that is None is
    left out.
    """
    wanted: list[ColumnElement[bool]] = []
    own = table.__tablename__
    if project is not None:
        wanted.append(col(table.project) == project)
    if name is not None:
        wanted.append(col(table.name) == name)
    if archived is not None:
        wanted.append(col(table.archived) == archived)
    if tag is not None:
        wanted.append(
            text(
                f"EXISTS (SELECT 1 FROM json_each({own}.tags) WHERE value = :tag)"  # noqa: S608 - a table's own name
            ).bindparams(tag=tag)  # type: ignore[arg-type]
        )
    if note:
        wanted.append(col(table.note).icontains(note, autoescape=True))
    if search:
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


def fetch_page(
    session: Session,
    table: type[Referable],
    wanted: Sequence[ColumnElement[bool]],
    limit: int,
    cursor: str | None,
) -> RowPage[Referable]:
    """Fetch one page, newest first. The cursor is the number of the last row of the page before.

    Raises:
        UserError: a limit out of range, or a cursor that is not from a page.
    """
    if not 1 <= limit <= MAX_PAGE:
        raise UserError(f"limit is {limit}; it must be from 1 to {MAX_PAGE}.")
    query: Any = select(table).where(*wanted)
    if cursor is not None:
        if not cursor.isdecimal():
            raise UserError(f"cursor is {cursor!r}; use the next_cursor of the previous page.")
        query = query.where(col(table.number) < int(cursor))
    total = session.exec(select(func.count()).select_from(table).where(*wanted)).one()
    rows = list(session.exec(query.order_by(col(table.number).desc()).limit(limit + 1)).all())
    more = len(rows) > limit
    rows = rows[:limit]
    return RowPage(rows, str(rows[-1].number) if more else None, total)
