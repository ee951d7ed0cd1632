"""Generate the reference pages of ``docs/`` and a stub file from the code that they describe.

    python docs/generate                      write what is out of date
    python docs/generate --check              exit 1 and name what is out of date, write nothing
    python docs/generate --allow-breaking     accept an openapi.json that breaks existing clients

A change of the API that would break a client (a path, field or value gone, a new field that
callers must give) is refused without ``--allow-breaking``.
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from pathlib import Path

import breaking
import cli
import js_types
import specs

import api

DOCS = Path(__file__).parents[1]


def pages() -> dict[str, str]:
    """Return every generated file, by its path from ``docs/``, with its contents."""
    description = api.description()
    return {
        "openapi.json": json.dumps(description, indent=1, ensure_ascii=False) + "\n",
        "api.md": api.page(description),
        "errors.md": api.errors_page(),
        "specs.md": specs.page(),
        "cli.md": cli.page(),
        js_types.TYPES: js_types.page(),
        "../llms.txt": index_for_models((DOCS / "README.md").read_text()),
    }


def index_for_models(front_page: str) -> str:
    """Return the documentation's front page in the form of llmstxt.org, links from the root."""
    lines = [
        "# Lehr",
        "> For pretraining: a queue for GPUs, a trainer, sweeps with verdicts, a record of all.",
    ]
    for line in front_page.splitlines():
        if line.startswith(("## ", "- ")):
            link = line.replace("](../", "](/").replace("](", "](docs/").replace("](docs//", "](")
            lines.append(f"\n{link}\n" if line.startswith("## ") else link)
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python docs/generate", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if stale")
    parser.add_argument("--allow-breaking", action="store_true")
    options = parser.parse_args()
    made = pages()
    kept = DOCS / "openapi.json"
    if kept.exists() and not options.allow_breaking:
        broken = breaking.changes(json.loads(kept.read_text()), json.loads(made["openapi.json"]))
        if broken:
            print("These changes of the API break its clients:", file=sys.stderr)
            for change in broken:
                print(f"  {change}", file=sys.stderr)
            print("If they must be: python docs/generate --allow-breaking", file=sys.stderr)
            return 1
    stale = 0
    for name, text in made.items():
        path = DOCS / name
        before = path.read_text() if path.exists() else ""
        if before == text:
            continue
        stale += 1
        if options.check:
            lines = list(
                difflib.unified_diff(before.splitlines(), text.splitlines(), n=0, lineterm="")
            )
            print(f"docs/{name} is out of date:", *lines[:12], sep="\n  ", file=sys.stderr)
        else:
            path.write_text(text)
            print(f"docs/{name}")
    if stale and options.check:
        print("Renew them: python docs/generate", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
