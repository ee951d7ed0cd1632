"""The examples of the API's description, from ``examples.json``.

There an answer has the name of its schema (a list that of its items' schema), text its media type,
a problem its status or the name of its schema, and a body the name of its field.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Schema = dict[str, Any]
FILE = Path(__file__).with_name("examples.json")


def inject(document: Schema) -> None:
    """Give every answer and every body of ``document`` its example; refuse one too many or few."""
    kept = json.loads(FILE.read_text())
    used = set()

    def take(section: str, name: str) -> Any:
        if name not in kept[section]:
            raise SystemExit(f"docs/generate/examples.json: {section} has no example of {name}")
        used.add((section, name))
        return kept[section][name]

    for methods in document["paths"].values():
        for operation in methods.values():
            for status, answer in operation["responses"].items():
                for media_type, content in answer.get("content", {}).items():
                    schema = content["schema"]
                    name = _name(schema.get("items", schema))
                    if media_type == "application/problem+json":
                        content["example"] = take("problems", name if name != "Problem" else status)
                    elif not status.startswith("2"):
                        continue
                    elif name is None:
                        content["example"] = take("texts", media_type)
                    else:
                        content["example"] = take("answers", name)
    for name in kept["bodies"]:
        for field, found in take("bodies", name).items():
            document["components"]["schemas"][name]["properties"][field]["examples"] = found
    every = {(section, name) for section, names in kept.items() for name in names}
    if unused := sorted(every - used):
        raise SystemExit(f"docs/generate/examples.json: nothing answers with {unused}")


def _name(schema: Schema) -> str | None:
    """Return the schema's name, if it has one."""
    return str(schema["$ref"]).rpartition("/")[2] if "$ref" in schema else None
