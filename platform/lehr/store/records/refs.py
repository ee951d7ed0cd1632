"""Find a run, sweep or rollout by what a user typed: its id, name, or the id's beginning."""

from __future__ import annotations

from typing import TypeVar

from sqlmodel import Session, col, or_, select

from lehr.errors import NotFound, nearest
from lehr.store.ids import is_part_of_an_id
from lehr.store.tables import RolloutRow, RunRow, SweepRow

Referable = TypeVar("Referable", RunRow, SweepRow, RolloutRow)
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
    kinds = {
        "run": _exists(session, RunRow, ref),
        "sweep": _exists(session, SweepRow, ref),
        "rollout": _exists(session, RolloutRow, ref),
    }
    for kind, there in kinds.items():
        if there and kind != noun:
            raise NotFound(f"{ref!r} is a {kind}, not a {noun}.", hint=_BY_KIND[kind].format(ref))


def _exists(session: Session, table: type[Referable], ref: str) -> bool:
    same = or_(col(table.id) == ref, col(table.name) == ref)
    return session.exec(select(table.id).where(same)).first() is not None
