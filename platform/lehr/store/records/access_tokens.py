"""Named tokens: who may use the API, as what. Only digests are stored."""

from __future__ import annotations

import hashlib

from sqlalchemy import func
from sqlmodel import col, delete, select

from lehr.errors import NotFound, UserError, did_you_mean
from lehr.store.database import Records
from lehr.store.tables import AccessTokenRow, AuditRow

MOST = 1_000


def digest(token: str) -> str:
    """Return the digest under which a token is stored. Tokens are random, so it needs no salt."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


class AccessTokenRecords(Records):
    """All named tokens."""

    def all(self) -> list[AccessTokenRow]:
        """Return the tokens by name, also revoked and expired ones."""
        return self._all(select(AccessTokenRow).order_by(col(AccessTokenRow.name)))

    def of_token(self, token: str) -> AccessTokenRow | None:
        """Return the row of a token, also if it is revoked or expired."""
        rows = self._all(select(AccessTokenRow).where(AccessTokenRow.sha256 == digest(token)))
        return rows[0] if rows else None

    def of_name(self, name: str) -> AccessTokenRow | None:
        with self._db.read() as session:
            return session.get(AccessTokenRow, name)

    def valid(self, row: AccessTokenRow) -> bool:
        """Return whether the token is neither revoked nor expired."""
        return row.revoked_at is None and not self.expired(row)

    def expired(self, row: AccessTokenRow) -> bool:
        return row.expires_at is not None and row.expires_at <= self._clock()

    def create(
        self,
        name: str,
        role: str,
        token: str,
        expires_at: float | None,
        gpu_hours: float | None = None,
    ) -> AccessTokenRow:
        """Record a token. A revoked or expired one of that name is replaced.

        Raises:
            UserError: there is a valid one of that name, or there are too many.
        """
        with self._db.write() as session:
            row = session.get(AccessTokenRow, name)
            if row is not None and self.valid(row):
                raise UserError(
                    f"there is a token {name!r} already.",
                    hint=f"New value: lehr admin token rotate {name}   To end it: revoke",
                )
            if row is None and len(session.exec(select(AccessTokenRow.name)).all()) >= MOST:
                raise UserError(f"there are {MOST} tokens, the maximum.")
            made = AccessTokenRow(
                name=name,
                role=role,
                sha256=digest(token),
                created_at=self._clock(),
                expires_at=expires_at,
                gpu_hours=gpu_hours,
            )
            return session.merge(made)

    def rotate(self, name: str, token: str) -> AccessTokenRow:
        """Give a valid token another value; the old value ends at once.

        Raises:
            NotFound: there is none of that name.
            UserError: it is revoked or expired.
        """
        with self._db.write() as session:
            row = self._get(session.get(AccessTokenRow, name), name)
            if not self.valid(row):
                raise UserError(
                    f"the token {name!r} is {'revoked' if row.revoked_at else 'expired'}.",
                    hint=f"Create it again: lehr admin token create {name} --role {row.role}",
                )
            row.sha256 = digest(token)
            row.created_at = self._clock()
            session.add(row)
        return row

    def revoke(self, name: str) -> AccessTokenRow:
        """End a token at once. Its row stays, so that its user gets the reason.

        Raises:
            NotFound: there is none of that name.
        """
        with self._db.write() as session:
            row = self._get(session.get(AccessTokenRow, name), name)
            row.revoked_at = row.revoked_at or self._clock()
            session.add(row)
        return row

    def _get(self, row: AccessTokenRow | None, name: str) -> AccessTokenRow:
        if row is None:
            raise NotFound(
                f"There is no token {name!r}.",
                hint=did_you_mean(name, [one.name for one in self.all()])
                or "All of them: lehr admin token ls",
            )
        return row


MOST_ENTRIES = 100_000  # Rows that are kept; about 15 MB. The oldest go first.
_TRIM_EVERY = 1_000


class AuditRecords(Records):
    def add(
        self, name: str, role: str, *, method: str, path: str, status: int, address: str
    ) -> None:
        with self._db.write() as session:
            row = AuditRow(
                at=self._clock(),
                name=name,
                role=role,
                method=method,
                path=path,
                status=status,
                address=address,
            )
            session.add(row)
            session.flush()
            if row.id is not None and row.id % _TRIM_EVERY == 0:
                session.exec(delete(AuditRow).where(col(AuditRow.id) <= row.id - MOST_ENTRIES))

    def page(
        self,
        *,
        name: str | None = None,
        since: float | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> tuple[list[AuditRow], int]:
        """Return rows, newest first, and how many match in all.

        ``since`` is in seconds since the epoch; ``before`` an id, for the next page.
        """
        wanted = []
        if name is not None:
            wanted.append(col(AuditRow.name) == name)
        if since is not None:
            wanted.append(col(AuditRow.at) >= since)
        with self._db.read() as session:
            total = session.exec(select(func.count()).select_from(AuditRow).where(*wanted)).one()
            if before is not None:
                wanted.append(col(AuditRow.id) < before)
            newest = select(AuditRow).where(*wanted).order_by(col(AuditRow.id).desc()).limit(limit)
            return list(session.exec(newest).all()), total
