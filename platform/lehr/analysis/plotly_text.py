"""Text for Plotly, which takes ``<b>``, ``<a href=...>`` and ``&lt;`` in any text as markup."""

from __future__ import annotations

from html import escape, unescape


def literal(text: str) -> str:
    """Return the text escaped, so that Plotly shows it as it is and makes no link of it."""
    return escape(text, quote=False)


def plain(text: str) -> str:
    """Return the text that ``literal`` has escaped."""
    return unescape(text)
