"""Checks of HTML pages: elements are balanced, nothing is fetched, nothing runs."""

from __future__ import annotations

from html.parser import HTMLParser

_VOID = frozenset({"meta", "link", "br", "hr", "img", "input"})
_FETCHING = frozenset({"script", "link", "img", "iframe", "object", "embed", "audio", "video"})
_ADDRESSES = frozenset({"src", "srcset", "href", "xlink:href", "action", "data", "poster"})


class PageCheck(HTMLParser):
    """Parses a page, and collects its text and its faults."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.faults: list[str] = []
        self.text: list[str] = []
        self.tags: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        self.faults += [f"{tag} is not closed" for tag in self._open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag in _FETCHING:
            self.faults.append(f"{tag} fetches")
        for name, value in attrs:
            if name in _ADDRESSES or name.startswith("on") or name == "style":
                self.faults.append(f"{tag} has {name}={value}")
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag in _VOID or not self._open or self._open.pop() != tag:
            self.faults.append(f"{tag} is closed out of order")

    def handle_data(self, data: str) -> None:
        self.text.append(data)
