"""Find files that probably hold secrets, before they are sent anywhere."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

_NAMES = {
    "a file of environment variables": (".env", ".env.*", "*.env"),
    "a private key": ("*.pem", "*.key", "*.p12", "*.pfx", "id_rsa", "id_ed25519", "id_ecdsa"),
    "a file of passwords": (".netrc", "_netrc", ".pypirc", ".npmrc", ".git-credentials", ".pgpass"),
    "credentials of a cloud": ("credentials", "credentials.json", "kubeconfig", "*.kubeconfig"),
}
_HARMLESS = (".env.example", ".env.sample", ".env.template")
_FORMS = {
    "a private key": r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----",
    "a key of AWS": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "a token of Hugging Face": r"\bhf_[A-Za-z0-9]{30,}\b",
    "a token of GitHub": r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{40,})\b",
    "a key of W&B": r"(?i:wandb\w{0,20}\W{1,10}(?:[0-9a-f]{40}\b|wandb_v\d+_\w{20,}))",
    "an API key": r"\bsk-[A-Za-z0-9_-]{32,}",
    "a token of Slack": r"\bxox[abprs]-[A-Za-z0-9-]{20,}",
}
"""Regular expressions of secrets whose form is known."""
_CONTENT = {what: re.compile(form.encode()) for what, form in _FORMS.items()}
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
