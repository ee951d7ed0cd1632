"""Answers of the server as files."""

from __future__ import annotations

from pathlib import Path

from lehr.errors import UserError


def save(data: bytes, path: Path | str) -> Path:
    """Write an answer to a file; return its path.

    Raises:
        UserError: the file cannot be written.
    """
    target = Path(path)
    try:
        target.write_bytes(data)
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror}.") from error
    return target
