"""Secrets by name: values that runs get as environment variables, in one file of Lehr's home.

A spec holds only names. The file is readable by its owner alone and is in no backup.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lehr.errors import InternalError, NotFound, nearest
from lehr_trainer.files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FILE = "secrets.json"


@dataclass(frozen=True)
class Secret:
    name: str
    changed_at: float
    """When its value was last set, in seconds since the epoch."""
    changed_by: str
    """The name of the token that set it."""


class SecretStore:
    """The secrets of one server. Thread-safe; each call reads the file, which people may restore.

    Args:
        home: Lehr's home.
    """

    def __init__(self, home: Path) -> None:
        self._path = home / FILE
        self._guard = threading.Lock()

    def all(self) -> list[Secret]:
        """Return the secrets by name, without their values."""
        return [
            Secret(name, float(entry["changed_at"]), str(entry["changed_by"]))
            for name, entry in sorted(self._read().items())
        ]

    def set(self, name: str, value: str, *, by: str, at: float) -> Secret:
        """Set the value of a secret, old or new. Attempts that start from now on get it."""
        with self._guard:
            found = self._read()
            found[name] = {"value": value, "changed_at": at, "changed_by": by}
            self._write(found)
        return Secret(name, at, by)

    def remove(self, name: str) -> Secret:
        """Remove a secret.

        Raises:
            NotFound: there is none of this name.
        """
        with self._guard:
            found = self._read()
            entry = found.pop(name, None)
            if entry is None:
                raise unknown(name, found)
            self._write(found)
        return Secret(name, float(entry["changed_at"]), str(entry["changed_by"]))

    def values(self, names: Mapping[str, str]) -> dict[str, str]:
        """Return the value of each variable; ``names`` has the name of its secret.

        Raises:
            NotFound: one of them does not exist, or no longer.
        """
        if not names:
            return {}
        found = self._read()
        for name in names.values():
            if name not in found:
                raise unknown(name, found)
        return {variable: str(found[name]["value"]) for variable, name in names.items()}

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            text = self._path.read_text()
        except FileNotFoundError:
            return {}
        try:
            found: dict[str, dict[str, Any]] = json.loads(text)["secrets"]
            for entry in found.values():
                str(entry["value"]), float(entry["changed_at"]), str(entry["changed_by"])
        except (ValueError, KeyError, TypeError, AttributeError):
            # Without the parser's words: they quote the file.
            raise InternalError(
                f"{self._path} cannot be read.",
                hint="Restore it, or remove it and set the secrets again: lehr secret set NAME.",
            ) from None
        return found

    def _write(self, found: dict[str, dict[str, Any]]) -> None:
        write_atomically(self._path, json.dumps({"version": 1, "secrets": found}), mode=0o600)


def unknown(name: str, known: Mapping[str, Any]) -> NotFound:
    """Return the error for a name that no secret has."""
    near = nearest(name, list(known))
    return NotFound(
        f"there is no secret {name!r}.",
        hint=f"Did you mean {near}?" if near else f"Set it: lehr secret set {name}",
    )
