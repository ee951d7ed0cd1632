"""Recognize secrets in text by their form, and take known ones out of it."""

from __future__ import annotations

import re
from collections.abc import Iterable

FORMS = {
    "a private key": r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----",
    "a key of AWS": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "a token of Hugging Face": r"\bhf_[A-Za-z0-9]{30,}\b",
    "a token of GitHub": r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{40,})\b",
    "a key of W&B": r"(?i:wandb\w{0,20}\W{1,10}(?:[0-9a-f]{40}\b|wandb_v\d+_\w{20,}))",
    "an API key": r"\bsk-[A-Za-z0-9_-]{32,}",
    "a token of Slack": r"\bxox[abprs]-[A-Za-z0-9-]{20,}",
}
"""Regular expressions of secrets whose form is known."""

REMOVED = "[removed]"

_IN_LOGS = re.compile(
    "|".join(
        [
            # A whole block, since what follows the first line is the key.
            f"{FORMS['a private key']}.*?(?:{FORMS['a private key'].replace('BEGIN', 'END')}|\\Z)",
            *(form for what, form in FORMS.items() if what != "a private key"),
            r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)",
            r"(?i:(?<=bearer )[\w.~+/=-]{8,})",
            r"\blehr-join:[\w:.-]+",
            r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,}",
            r"(?i:(?<=token=)|(?<=password=)|(?<=secret=)|(?<=api_key=))[^\s&\"']{4,}",
        ]
    ),
    re.DOTALL,
)
_SECRET_NAME = re.compile(r"(?i)token(?!s)|secret|passw|api_?key|access_?key|credential")
_SHORTEST = 6
"""Shorter values are no secrets, and would be found everywhere."""


def is_secret_name(name: str) -> bool:
    """Return whether a variable or field of this name probably holds a secret."""
    return _SECRET_NAME.search(name) is not None


def redact(text: str, known: Iterable[str] = ()) -> str:
    """Return ``text`` without the values in ``known`` and without what has a secret's form."""
    for value in sorted(set(known), key=len, reverse=True):
        if len(value) >= _SHORTEST:
            text = text.replace(value, REMOVED)
    return _IN_LOGS.sub(REMOVED, text)
