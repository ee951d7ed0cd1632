"""The licence of each package, and whether an image may have it."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from supply.locks import Locked

RULES = Path(__file__).with_name("licences.toml")


@dataclass(frozen=True)
class Licence:
    package: Locked
    text: str
    """As the package states it; empty if nobody knows."""
    source: str
    """``package``: its own metadata; ``licences.toml``: what somebody read."""
    allowed: bool


@cache
def _rules() -> dict[str, dict[str, str]]:
    return tomllib.loads(RULES.read_text())


def licence(package: Locked) -> Licence:
    rules = _rules()
    text, source = stated(package.name), "package"
    if not text:
        text, source = rules["stated"].get(package.name, ""), "licences.toml"
    allowed = package.name in rules["exceptions"] or is_allowed(text)
    return Licence(package, text, source, allowed)


def stated(name: str) -> str:
    """Return what the installed package says of its licence; empty if it is not installed or silent."""
    try:
        metadata = importlib.metadata.metadata(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
    expression = metadata.get("License-Expression")
    if expression:
        return expression
    classifiers = metadata.get_all("Classifier") or []
    named = [one.split("::")[-1].strip() for one in classifiers if one.startswith("License ::")]
    if named:
        return " OR ".join(named)
    first, *_ = (metadata.get("License") or "").strip().splitlines() or [""]
    return first


def is_allowed(expression: str) -> bool:
    """Return whether it may be used: all parts of an AND, one part of an OR.

    Unknown words are not allowed.
    """
    if not expression:
        return False
    allowed = {_plain(one) for one in _rules()["allowed"]}
    text = re.sub(r"\s+WITH\s+LLVM-exception", "", expression)
    if _plain(text) in allowed:
        return True
    alternatives = _split(text, "OR")
    if len(alternatives) > 1:
        return any(map(is_allowed, alternatives))
    together = _split(text, "AND")
    if len(together) > 1:
        return all(map(is_allowed, together))
    inner = text.strip()
    return inner.startswith("(") and inner.endswith(")") and is_allowed(inner[1:-1])


def _split(text: str, word: str) -> list[str]:
    """Split at a word outside of brackets."""
    parts, depth = [""], 0
    for token in re.split(r"(\(|\)|\s+)", text):
        depth += (token == "(") - (token == ")")
        if token == word and depth == 0:
            parts.append("")
        else:
            parts[-1] += token
    return [part.strip() for part in parts]


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", " ", text.lower()).strip()
