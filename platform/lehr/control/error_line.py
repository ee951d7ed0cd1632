"""The line of a program's output that shows why it failed."""

from __future__ import annotations

import re

_LONGEST = 300
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_RANK = re.compile(r"^\[(?:rank|default)(\d+)\]: ?")
_HEADER = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception|Interrupt)(?::|$)")
_LAUNCHERS = ("ChildFailedError", "CalledProcessError")
"""They end a launcher after its program, which has printed why."""
_ROOT_CAUSE = re.compile(r"Root Cause.*?rank\s*: (\d+)", re.DOTALL)
_NO_ERROR = re.compile(
    r"\d%\||it/s\b|s/it\b|[Ww]arning: |^\[[WI]\d|^[\W_]*$|^\s|HYDRA_FULL_ERROR=1"
)
"""Progress bars, warnings, rulers, details of another line, and what Hydra adds to each error."""


def raised(output: str) -> str | None:
    """Return the exception that ended a program: that of its last traceback, or of the rank that
    failed first if a launcher names it. None if it raised none.
    """
    exceptions: list[tuple[str | None, str]] = []
    inside = False
    for line in _lines(output):
        match = _RANK.match(line)
        rank, text = (match[1], line[match.end() :]) if match else (None, line)
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
    found = [line for line in _lines(output) if not _NO_ERROR.search(line)]
    return _cut(found[-1]) if found else None


def _lines(output: str) -> list[str]:
    """Return the lines without control characters. A carriage return ends a line as well."""
    lines = (_COLOURS.sub("", line) for line in output.splitlines())
    clean = ("".join(c if c.isprintable() else " " for c in line).rstrip() for line in lines)
    return [line for line in clean if line]


def _cut(line: str) -> str:
    line = line.strip()
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."
