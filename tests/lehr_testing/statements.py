"""The statements that a store executes, counted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, event

from lehr.store import Store


@contextmanager
def written_statements(store: Store) -> Iterator[list[str]]:
    """The statements of the block's write transactions; one that takes many rows counts once."""
    with _executed(store.db._writer) as found:
        yield found


@contextmanager
def read_statements(store: Store) -> Iterator[list[str]]:
    """The statements that the block reads with, outside of write transactions."""
    with _executed(store.db._readers) as found:
        yield found


def transactions(statements: list[str]) -> int:
    return statements.count("BEGIN IMMEDIATE")


@contextmanager
def _executed(engine: Engine) -> Iterator[list[str]]:
    found: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        found.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        event.remove(engine, "before_cursor_execute", note)
