"""Secrets by name: values that runs get as environment variables, in one file of Lehr's home.

A spec holds only names. The file is readable by its owner alone and is in no backup.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lehr.errors import InternalError, NotFound, UserError, did_you_mean
from lehr.specs.run import SECRET_NAME
from lehr_trainer.files import write_atomically

FILE = "secrets.json"
MOST_BYTES = 32_768  # A longer value does not fit in an environment beside others.


@dataclass(frozen=True)
class Secret:
    """What may be shown of a secret."""

    name: str
    changed_at: float  # Seconds since the epoch.
    changed_by: str  # Name of the token that set it.


class SecretStore:
    """The secrets of one home. Thread-safe; each call reads the file, which people may restore."""

    def __init__(self, home: Path) -> None:
        self._path = home / FILE
        self._guard = threading.Lock()

    def all(self) -> list[Secret]:
        return [_view(name, entry) for name, entry in sorted(self._read().items())]

    def set(self, name: str, value: str, *, by: str, at: float) -> Secret:
        """Set the value of a secret, old or new. Attempts that start from now on get it.

        The value has 1 to 32,768 bytes of UTF-8 without NUL. ``by`` is the name of a token, ``at``
        the time in seconds since the epoch.

        Raises:
            UserError: the name or the value is not valid. The value is never quoted.
        """
        if not SECRET_NAME.fullmatch(name):
            raise UserError(
                f"{name!r} is not a name for a secret.",
                hint="Up to 64 letters, digits, dots, dashes and underscores: hf-read.",
            )
        size = len(value.encode("utf-8", "surrogatepass"))
        if not 0 < size <= MOST_BYTES:
            raise UserError(
                f"the value of {name} has {size:,} bytes; it must have 1 to {MOST_BYTES:,} bytes."
            )
        if "\0" in value:
            raise UserError(f"the value of {name} has a NUL character; a variable cannot hold it.")
        entry = {"value": value, "changed_at": at, "changed_by": by}
        with self._guard:
            self._write({**self._read(), name: entry})
        return _view(name, entry)

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
        return _view(name, entry)

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
                hint="Restore it, or remove it and set the secrets again: lehr admin secret set",
            ) from None
        return found

    def _write(self, found: dict[str, dict[str, Any]]) -> None:
        write_atomically(self._path, json.dumps({"version": 1, "secrets": found}), mode=0o600)


def _view(name: str, entry: Mapping[str, Any]) -> Secret:
    changed_at, changed_by = float(entry["changed_at"]), str(entry["changed_by"])
    return Secret(name=name, changed_at=changed_at, changed_by=changed_by)


def unknown(name: str, known: Mapping[str, Any]) -> NotFound:
    return NotFound(
        f"there is no secret {name!r}.",
        hint=did_you_mean(name, list(known)) or f"Set it: lehr admin secret set {name}",
    )
