"""The line of a program's output that shows why it failed."""

from __future__ import annotations

import re
from collections.abc import Iterator

_LONGEST = 300
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_RANK = re.compile(r"^\[(?:rank|default)(\d+)\]: ?")
_HEADER = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception|Interrupt)(?::|$)")
_LAUNCHERS = ("ChildFailedError", "CalledProcessError")
"""They end a launcher after its program, which has printed why."""
_IGNORED = re.compile("Exception ignored ")
"""Python prints it before the traceback of an error that ends nothing, mostly at its exit."""
_ASIDE = re.compile("Exception (?:ignored|in thread) ")
_CHAIN = re.compile("During handling of|The above exception was")
_ROOT_CAUSE = re.compile(r"Root Cause.*?rank\s*: (\d+)", re.DOTALL)
_NO_ERROR = re.compile(
    r"\d%\||it/s\b|s/it\b|[Ww]arning: |^\[[WI]\d|^[\W_]*$|^\s|HYDRA_FULL_ERROR=1"
    "|^Exception ignored "
)
"""Progress bars, warnings, rulers, details of another line, and what Hydra adds to each error."""


def raised(output: str) -> str | None:
    """Return the exception that ended a program: that of its last traceback, or of the rank that
    failed first if a launcher names it. None if it raised none.
    """
    exceptions: list[tuple[str | None, str]] = []
    inside = False
    for line in _lines(output, _ASIDE):
        match = _RANK.match(line)
        rank, text = (match[1], line[match.end() :]) if match else (None, line)
        if not text:
            continue
        if text.endswith(_HEADER):
            inside = True
        elif (inside and not text[0].isspace()) or _EXCEPTION.match(text):
            exceptions.append((rank, text))
            inside = False
        elif exceptions and exceptions[-1][1].endswith(":"):  # The message begins on the next line.
            exceptions[-1] = (rank, f"{exceptions[-1][1]} {text.strip()}")
    causes = [one for one in exceptions if not any(name in one[1] for name in _LAUNCHERS)]
    first = _ROOT_CAUSE.search(output)
    of_first = [one for one in causes if first and one[0] == first[1]]
    named = of_first or causes or exceptions
    return _cut(named[-1][1]) if named else None


def last_line(output: str) -> str | None:
    """Return the last line that may be an error: no progress bar, and no warning."""
    found = [line for line in _lines(output, _IGNORED) if not _NO_ERROR.search(line)]
    return _cut(found[-1]) if found else None


def _lines(output: str, aside: re.Pattern[str]) -> Iterator[str]:
    """Yield the lines without control characters, and without tracebacks after ``aside``. A
    carriage return ends a line as well.
    """
    before, skips, inside = "", False, False
    for raw in output.splitlines():
        line = "".join(c if c.isprintable() else " " for c in _COLOURS.sub("", raw)).rstrip()
        if not line:
            continue
        if line.endswith(_HEADER):
            skips = bool(aside.match(before) or (skips and _CHAIN.match(before)))
            inside = skips
        if not inside:
            yield line
        elif not (line[0].isspace() or line.endswith(_HEADER)):  # The error itself.
            inside = False
        before = line


def _cut(line: str) -> str:
    line = line.strip()
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."
