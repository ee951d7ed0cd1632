"""``trainer.prints``: patterns of lines that a program prints, and the values in them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from string import Formatter

STEP = "step"
LONGEST_LINE = 1_000
"""Characters of a line that are looked at."""
_DIGITS = r"\d++(?:,\d{3}(?!\d))*"
NUMBER = rf"[-+]?(?:{_DIGITS}(?:\.\d*+)?|\.\d++)(?:[eE][-+]?\d++)?|[-+]?(?i:nan|inf)\b"
_WHOLE = rf"{_DIGITS}(?!\.\d)"
_NAME = re.compile(r"[A-Za-z_][\w./-]{0,199}")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True)
class PrintPattern:
    text: str
    names: tuple[str, ...]
    """Its fields; ``step`` is the number of the step."""
    expression: re.Pattern[str]

    def values(self, line: str) -> dict[str, float] | None:
        """Return the numbers of a line by field; None if the line does not match."""
        match = self.expression.search(line)
        if match is None:
            return None
        numbers = (float(number.replace(",", "")) for number in match.groups())
        return dict(zip(self.names, numbers, strict=True))


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
    any_text = after_field = False
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
            parts.append(f"(?>.*?{words})" if any_text else words)
            any_text = after_field = False
        if name is None:
            continue
        if after_field:
            raise ValueError(f"{text!r} needs some text between {{{name}}} and the field before it")
        if form or conversion:
            raise ValueError(f"{text!r}: a field is only a name: {{{name}}}")
        if name and not _NAME.fullmatch(name):
            raise ValueError(
                f"{text!r}: {name!r} is not the name of a metric, such as {{train/loss}}; "
                "any text is {}"
            )
        if name in names:
            raise ValueError(f"{text!r} has {{{name}}} twice; write {{}} for the other one")
        any_text, after_field = not name, True
        if name:
            names.append(name)
            before = r"\s*+" if parts else r"(?<![\w.+-])"
            parts.append(f"{before}({_WHOLE if name == STEP else NUMBER})")
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
    of the line before it. If no pattern has one, the lines of the first pattern are counted.
    """

    def __init__(self, texts: Sequence[str], step: int = 0) -> None:
        self._patterns = sorted(map(pattern, texts), key=lambda matcher: -len(matcher.text))
        self._first = texts[0] if texts else ""
        self._counted = not any(STEP in matcher.names for matcher in self._patterns)
        self._step = step
        self.matched = False
        self.unmatched = list(texts)

    def row(self, line: str) -> tuple[int, dict[str, float]] | None:
        """Return step and values of a line; None if it has none."""
        line = plain(line)
        for matcher in self._patterns:
            values = matcher.values(line)
            if values is None:
                continue
            self.matched = True
            self.unmatched = [text for text in self.unmatched if text != matcher.text]
            self._step += self._counted and matcher.text == self._first
            self._step = int(values.pop(STEP, self._step))
            return (self._step, values) if values else None
        return None
