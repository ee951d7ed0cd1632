"""The Content-Security-Policy of the pages: nothing inline, nothing from other hosts.

Plotly adds two style elements to the page: an empty one, which it fills by rules, and the style
sheet of its map library. Their hashes allow exactly these two. The second is part of Plotly's
script and differs by release, so its hash is computed from the installed script.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache

from lehr_api.dashboard.plotly_script import plotly_script_path

# `e=document.createElement("style");e.id="...",e.textContent='...'`, as the bundler writes it.
_STYLE_ELEMENT = re.compile(
    r"""createElement\("style"\);\w+\.id="[^"]*",\w+\.textContent='((?:[^'\\]|\\.)*)'"""
)
_JS_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_NAMED_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "v": "\v", "0": "\0"}


def _sha256(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _unescape(literal: str) -> str:
    """Return the text of a JavaScript string literal."""

    def value(match: re.Match[str]) -> str:
        escape = match.group(1)
        if escape[0] in "ux" and len(escape) > 1:
            return chr(int(escape[1:], 16))
        return _NAMED_ESCAPES.get(escape, escape)

    return _JS_ESCAPE.sub(value, literal)


@cache
def plotly_style_hashes() -> tuple[str, ...]:
    """Return hashes of the style elements that the installed Plotly adds to a page."""
    script = plotly_script_path().read_text(encoding="utf-8")
    return (_sha256(""), *(_sha256(_unescape(css)) for css in _STYLE_ELEMENT.findall(script)))


@cache
def content_security_policy() -> str:
    return "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "img-src 'self' data: blob:",
            " ".join(("style-src 'self'", *plotly_style_hashes())),
            "connect-src 'self'",
            "font-src 'self'",
            "form-action 'self'",
            "frame-ancestors 'none'",
            "base-uri 'none'",
        )
    )


def security_headers() -> dict[str, str]:
    """Return the headers of every page and file of the dashboard."""
    return {
        "Content-Security-Policy": content_security_policy(),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
    }
