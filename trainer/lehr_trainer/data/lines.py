"""Lines of JSON, and the conversations in them.

Nothing heavy is imported, so that the platform can check a small file at submission.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from lehr_trainer.errors import BadData

Message = tuple[str, str]  # Role and content.

MESSAGES_EXAMPLE = '[{"role": "user", "content": "..."}, ...]'
_ROLES = ("system", "user", "assistant")


def json_values(
    texts: Iterable[str], path: Path, skip: int, field: str, setting: str, example: str
) -> Iterator[tuple[str, Any]]:
    """Yield each line's name for errors and the value of its field; "" and None for a blank line.

    ``texts`` are those after the first ``skip`` of ``path``. ``setting`` of the corpus names the
    field; ``example`` is a value of it, as JSON.

    Raises:
        BadData: a line is no JSON object with this field.
    """
    for number, text in enumerate(texts, skip + 1):
        line = f"{path}, line {number}"
        if not text.strip():
            yield "", None
            continue
        try:
            record = json.loads(text)
        except ValueError as error:
            raise BadData(f"{line} is not JSON: {error}") from None
        if not isinstance(record, dict):
            raise BadData(
                f"{line} is not a JSON object but {text.strip()[:40]!r}; "
                f'a line holds one document, such as {{"{field}": {example}}}'
            )
        if field not in record:
            raise BadData(f"{line} {no_field(field, list(record), setting)}")
        yield line, record[field]


def no_field(field: str, names: list[str], setting: str = "text_field") -> str:
    """Say that a record lacks the field, which it has, and the setting that names it."""
    near = difflib.get_close_matches(field, names, n=1)
    return (
        f"has no field {field!r}; it has {', '.join(names) or 'none'}; set data.corpus.{setting}"
        + (f" to {near[0]}" if near else "")
    )


def messages_of(value: Any, field: str, line: str) -> list[Message]:
    """Return the messages of a row; raise BadData if one is wrong, or none is the assistant's."""
    if not isinstance(value, list) or not value:
        what = "an empty list" if value == [] else f"{type(value).__name__}, not a list of messages"
        raise BadData(f"{line}: field {field!r} holds {what}")
    messages = [_message(one, f"{line}: message {i}") for i, one in enumerate(value, 1)]
    roles = [role for role, _ in messages]
    if roles[0] == "assistant":
        raise BadData(f"{line}: the first message is the assistant's; begin with system or user")
    if "assistant" not in roles:
        raise BadData(
            f"{line}: no message is the assistant's (roles: {', '.join(dict.fromkeys(roles))}), so "
            "there is nothing to learn; remove the line"
        )
    return messages


def _message(value: Any, name: str) -> Message:
    if not isinstance(value, dict) or not {"role", "content"} <= value.keys():
        keys = f"has {', '.join(value) or 'nothing'}" if isinstance(value, dict) else "is no object"
        raise BadData(f'{name} {keys}; a message is {{"role": "user", "content": "..."}}')
    role, content = value["role"], value["content"]
    if role not in _ROLES:
        raise BadData(f"{name} has the role {role!r}; it can be {', '.join(_ROLES)}")
    if value.get("tool_calls"):
        raise BadData(f"{name} has tool_calls, which no template of Lehr writes; remove the line")
    if not isinstance(content, str):
        raise BadData(f"{name}: the content is {type(content).__name__}, not text")
    if not content.strip():
        raise BadData(f"{name} ({role}): the content is empty; remove the message or the line")
    return role, content
