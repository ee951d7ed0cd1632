"""SQLite files, opened for reading alone."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any
from urllib.parse import quote


def open_read_only(path: Path, **options: Any) -> sqlite3.Connection:
    """Open a database that this connection cannot change; ``options``: of ``sqlite3.connect``.

    Raises:
        sqlite3.Error: there is none, or it cannot be opened.
    """
    uri = f"file:{quote(str(path))}?mode=ro"
    connection: sqlite3.Connection = sqlite3.connect(uri, uri=True, **options)
    return connection
