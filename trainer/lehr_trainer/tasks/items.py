"""Items of task files: read, checked, and written out as pairs of context and continuation.

A row of the CORE bundle is written as nanochat writes it; a sample of lm-eval has its pairs.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from lehr_trainer.configs.tasks import SHIPPED, TaskConfig, TaskKind
from lehr_trainer.errors import BadData

_SHUFFLE = 1234
"""The seed of an item's examples is this and its number in the file, as in nanochat."""


class Item(NamedTuple):
    """What the model is asked: pairs of context and continuation, and which of them is right."""

    pairs: list[tuple[str, str]]
    gold: int


_WRITTEN: dict[TaskKind, tuple[tuple[str, ...], Callable[..., list[tuple[str, str]]]]] = {
    "multiple_choice": (
        ("query", "choices", "gold"),
        lambda query, choices, _: [(query, choice) for choice in choices],
    ),
    "schema": (
        ("context_options", "continuation", "gold"),
        lambda contexts, continuation, _: [(context, continuation) for context in contexts],
    ),
    "continuation": (
        ("context", "continuation"),
        lambda context, continuation: [(context.strip(), continuation)],
    ),
    "perplexity": (("text",), lambda text: [("", text)]),
}
"""The fields of a row by kind, and its pairs."""
_LISTS = ("choices", "context_options")


def read_items(task: TaskConfig) -> tuple[TaskKind, list[Item], int]:
    """Return a task's kind, the items that are scored, in a fixed order, and how many there are.

    Raises:
        BadData: the file cannot be read, or a row is wrong; it names the line.
    """
    field, path = f"evals.{task.name}", Path(task.path).expanduser()
    if task.path in SHIPPED:
        path = Path(__file__).with_name(f"{task.path}.jsonl")
    try:
        lines = path.read_text("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise BadData(f"{field}: {task.path} cannot be read: {reason}") from None
    found: dict[Any, Item] = {}
    kind, sampled = task.kind, False
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            sampled = isinstance(row, dict) and "arguments" in row
            kind, item = (_sample if sampled else _row)(row, kind, task.delimiter)
        except ValueError as error:
            raise BadData(f"{field}: {task.path}, line {number}: {error}") from None
        # lm-eval logs an item once for each of its filters.
        found.setdefault(("sample", row.get("doc_id")) if sampled else number, item)
    every = [*found.values()]
    if kind is None:
        raise BadData(f"{field}: {task.path} has no items")
    if task.shots >= len(every) or (task.shots and (sampled or kind == "perplexity")):
        raise BadData(
            f"{field}: shots is {task.shots}, but {task.path} has {len(every)} {kind} items"
            + " of lm-eval, with their examples" * sampled
        )
    # In the order of their hashes, so that a limit does not take the file's beginning.
    order = sorted(range(len(every)), key=lambda number: digest(every[number]))[: task.limit]
    return kind, [_after_examples(every, n, task.shots) for n in order], len(every)


def _row(row: Any, kind: TaskKind | None, delimiter: str) -> tuple[TaskKind, Item]:
    """Write out a row of the CORE bundle; ValueError says what is wrong with it."""
    if not isinstance(row, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - for the caller, as the others
    kind = kind or next((kind for kind, own in _WRITTEN.items() if {*own[0]} <= row.keys()), None)
    fields, write = _WRITTEN[kind or "multiple_choice"]
    for name in fields:
        value = row.get(name)
        of_list = name in _LISTS
        texts = value if of_list and isinstance(value, list) else [value]
        if type(value) is not int if name == "gold" else not all(isinstance(t, str) for t in texts):
            raise ValueError(f"{name} is {value!r}; an item has {', '.join(fields)}")
        if of_list and len(texts) < 2:
            raise ValueError(f"{name} has {len(texts)}; an item needs two or more")
    assert kind is not None
    pairs = write(*(row[name] for name in fields))
    if not all(text for _, text in pairs):
        raise ValueError("a continuation is empty, so nothing can be scored")
    gold = _in_range(row.get("gold", 0), pairs)
    before = "" if kind == "perplexity" else delimiter
    return kind, Item([(context, before + text) for context, text in pairs], gold)


def _sample(row: Any, kind: TaskKind | None, _delimiter: str) -> tuple[TaskKind, Item]:
    """Write out a sample that lm-eval has logged; ValueError says what is wrong with it."""
    try:
        pairs = [("", *request.values())[-2:] for request in row["arguments"].values()]
        texts = [text.strip() for _, text in pairs]
        own: TaskKind = "multiple_choice" if len(pairs) > 1 else "continuation"
        if len(row["arguments"]["gen_args_0"]) == 1:
            own = "perplexity"
    except (AttributeError, KeyError, ValueError):
        raise ValueError("its arguments are not those of a log-likelihood of lm-eval's") from None
    if kind not in {None, own} or len({*texts}) < min(2, len(pairs)):
        raise ValueError(
            f"this sample of lm-eval is of kind {own}, which must be that of the task; those with "
            "several contexts do not say which is right"
        )
    target = str(row.get("target")).strip()
    gold = texts.index(target) if target in texts else int(target) if target.isdecimal() else -1
    gold = _in_range(gold, pairs) if len(pairs) > 1 else 0
    return own, Item(pairs, gold)


def _in_range(gold: int, pairs: list[tuple[str, str]]) -> int:
    if not 0 <= gold < len(pairs):
        raise ValueError(f"gold is {gold}; with {len(pairs)} choices it is 0 to {len(pairs) - 1}")
    return gold


def _after_examples(items: list[Item], number: int, shots: int) -> Item:
    """Return an item with other items and their answers before it."""
    item, before = items[number], ""
    draw = random.Random(_SHUFFLE + number)  # noqa: S311 - as nanochat draws them
    for other in draw.sample(range(len(items) - 1), shots):
        example = items[other + (other >= number)]  # All but the item itself.
        before += "".join(example.pairs[example.gold]) + "\n\n"
    return item._replace(pairs=[(before + context, text) for context, text in item.pairs])


def digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
