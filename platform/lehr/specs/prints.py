"""``trainer.prints``: patterns of lines that a program prints, and the values in them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from string import Formatter
from typing import NamedTuple

STEP = "step"
LONGEST_LINE = 1_000
"""Characters of a line that are looked at."""
_DIGITS = r"\d++(?:,\d{3}(?!\d))*"
NUMBER = rf"[-+]?(?:{_DIGITS}(?:\.\d*+)?|\.\d++)(?:[eE][-+]?\d++)?|[-+]?(?i:nan|inf)\b"
_WHOLE = rf"{_DIGITS}(?!\.\d)"
_OF = re.compile(rf"\s*/\s*({_DIGITS})")
_NAME = re.compile(r"[A-Za-z_][\w./-]{0,199}")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class PrintPattern(NamedTuple):
    text: str
    names: tuple[str, ...]
    """Its fields; ``step`` is the number of the step."""
    expression: re.Pattern[str]


def plain(line: str) -> str:
    """Return the beginning of a line, without colours of a terminal."""
    return _COLOUR.sub("", line[:LONGEST_LINE])


def pattern(text: str) -> PrintPattern:
    """Return ``text`` ready to match. ``{name}`` is a number, ``{}`` any text, ``{{`` a brace.

    Raises:
        ValueError: it is not one line, braces do not match, no field has a name or one has a wrong
            one, or nothing is between two fields.
    """
    parts: list[str] = []
    names: list[str] = []
    before: str | None = None
    """The name of the field before, if no text follows it."""
    if len(text.splitlines()) != 1:
        raise ValueError(f"{text!r} is not one line")
    try:
        pieces = [*Formatter().parse(text.strip())]
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}; a literal brace is written twice") from None
    for literal, name, form, conversion in pieces:
        if literal:
            # Atomic and possessive, so that no line takes long: the first place that fits counts.
            words = r"\s++".join(map(re.escape, re.split(r"\s+", literal)))
            parts.append(f"(?>.*?{words})" if before == "" else words)
            before = None
        if name is None:
            continue
        problems = {
            f" needs some text between {{{name}}} and the field before it": before is not None,
            f": a field is only a name: {{{name}}}": form or conversion,
            f": {name!r} is not the name of a metric, such as {{train/loss}}; any text is {{}}": (
                name and not _NAME.fullmatch(name)
            ),
            f" has {{{name}}} twice; write {{}} for the other one": name in names,
        }
        for problem in (words for words, wrong in problems.items() if wrong):
            raise ValueError(f"{text!r}{problem}")
        before = name
        if name:
            names.append(name)
            gap = r"\s*+" if parts else r"(?<![\w.+-])"
            parts.append(f"{gap}({_WHOLE if name == STEP else NUMBER})")
    if not names:
        raise ValueError(f"{text!r} has no field such as {{step}} or {{train/loss}}")
    return PrintPattern(text, tuple(names), re.compile("".join(parts)))


def checked(texts: list[str]) -> list[str]:
    """Return patterns that can be read together.

    Raises:
        ValueError: one is wrong, or none has a metric.
    """
    if texts and all(pattern(text).names == (STEP,) for text in texts):
        raise ValueError("no pattern has a metric beside {step}, e.g. {train/loss}")
    return texts


class PrintedLines:
    """From lines, one after another, to values with their step.

    The longest pattern that matches a line reads it. A line without ``{step}`` belongs to the step
    of the line before it. If no pattern has one, the lines of the first pattern are counted. A step
    that begins again in a later ``{epoch}`` counts on from the epoch before.
    """

    def __init__(self, texts: Sequence[str], step: int = 0) -> None:
        self._patterns = sorted(map(pattern, texts), key=lambda one: -len(one.text))
        stepless = not any(STEP in one.names for one in self._patterns)
        self._counted = texts[0] if texts and stepless else None
        self._step = step
        self._before = 0  # Steps of the epochs before.
        self._last = (0, 0, 0.0)  # Step within its epoch, steps of that epoch, and the epoch.
        self.unmatched = list(texts)

    def row(self, line: str) -> tuple[int, dict[str, float]] | None:
        """Return step and values of a line; None if it has none."""
        line = plain(line)
        for text, names, expression in self._patterns:
            if match := expression.search(line):
                numbers = (float(number.replace(",", "")) for number in match.groups())
                values = dict(zip(names, numbers, strict=True))
                self.unmatched = [other for other in self.unmatched if other != text]
                if STEP in values:
                    self._step = self._counted_on(values, line[match.end(names.index(STEP) + 1) :])
                self._step += text == self._counted
                return (self._step, values) if values else None
        return None

    def _counted_on(self, values: dict[str, float], rest: str) -> int:
        step, (before, length, epoch) = int(values.pop(STEP)), self._last
        if step < before + (before == length) and values.get("epoch", 0.0) > epoch:
            self._before += max(before, length)  # Its last steps may not be printed: 60/72.
        of = _OF.match(rest)
        length = int(of[1].replace(",", "")) if of else 0
        self._last = (step, length, values.get("epoch", epoch))
        return self._before + step
