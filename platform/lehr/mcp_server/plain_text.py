"""The text of a report's HTML page, without its style and its figures."""

from __future__ import annotations

import re
from html.parser import HTMLParser

_HIDDEN = frozenset({"style", "script", "svg", "head"})
_LINES = frozenset(
    {"p", "div", "section", "li", "tr", "h1", "h2", "h3", "h4", "pre", "table", "dt"}
)
_CELLS = frozenset({"td", "th", "dd"})


def plain(html: str) -> str:
    """Return what a reader of the page sees as lines of text."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    lines = (re.sub(r"[ \t\r\f]+", " ", line).strip(" |") for line in reader.text.split("\n"))
    return "\n".join(line for line in lines if line)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        if tag in _HIDDEN:
            self._hidden += 1
        elif tag in _LINES or tag == "br":
            self.text += "\n"
        elif tag in _CELLS:
            self.text += " | "

    def handle_endtag(self, tag: str) -> None:
        if tag in _HIDDEN:
            self._hidden = max(self._hidden - 1, 0)
        elif tag in _LINES:
            self.text += "\n"

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.text += data
