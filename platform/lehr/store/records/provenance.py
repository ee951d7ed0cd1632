"""Provenance of runs: stored once for all runs that share it, under the digest of its content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy.dialects.sqlite import insert
from sqlmodel import Session

from lehr.store.tables import ProvenanceRow, RunRow


def provenance_digest(data: Mapping[str, Any]) -> str:
    """Return the digest of the content; the order of keys does not matter."""
    canonical = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def keep_provenance(session: Session, data: Mapping[str, Any] | None) -> str | None:
    """Store provenance, unless it is there already. Return its key; None for an empty one."""
    if not data:
        return None
    key = provenance_digest(data)
    row = {"sha256": key, "data": dict(data)}
    session.connection().execute(insert(ProvenanceRow).on_conflict_do_nothing(), row)
    return key


def provenance_of(session: Session, run: RunRow) -> dict[str, Any]:
    found = None
    if run.provenance_sha256 is not None:
        found = session.get(ProvenanceRow, run.provenance_sha256)
    return {} if found is None else found.data
