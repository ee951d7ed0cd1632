"""Find files that probably hold secrets, before they are sent anywhere."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

from lehr import secret_text

_NAMES = {
    "a file of environment variables": (".env", ".env.*", "*.env"),
    "a private key": ("*.pem", "*.key", "*.p12", "*.pfx", "id_rsa", "id_ed25519", "id_ecdsa"),
    "a file of passwords": (".netrc", "_netrc", ".pypirc", ".npmrc", ".git-credentials", ".pgpass"),
    "credentials of a cloud": ("credentials", "credentials.json", "kubeconfig", "*.kubeconfig"),
}
_HARMLESS = (".env.example", ".env.sample", ".env.template")
_CONTENT = {what: re.compile(form.encode()) for what, form in secret_text.FORMS.items()}
_READ = 1 << 20
"""Bytes of a file that are searched: secrets are in small text files."""


def likely_secret(path: Path) -> str | None:
    """Return what a file probably holds, without its value; None if nothing is suspicious."""
    name = path.name
    if name not in _HARMLESS:
        for what, patterns in _NAMES.items():
            if any(fnmatch(name, pattern) for pattern in patterns):
                return what
    with path.open("rb") as file:
        head = file.read(_READ)
    if b"\0" in head[:4096]:
        return None
    for what, expression in _CONTENT.items():
        match = expression.search(head)
        if match is not None:
            line = 1 + head[: match.start()].count(b"\n")
            return f"{what} in line {line}"
    return None
