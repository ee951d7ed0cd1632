"""Text in Plotly's format, which reads ``<b>``, ``<a href=...>`` and ``&lt;`` in every text."""

from __future__ import annotations

from html import escape, unescape


def literal(text: str) -> str:
    """Return text that Plotly shows as ``text`` is: a name of a user must not become a link."""
    return escape(text, quote=False)


def read(text: str) -> str:
    """Return what Plotly shows for the result of ``literal``."""
    return unescape(text)
