"""``python -m lehr_log.evaluate COMMAND...``: evaluate a checkpoint, log what it writes."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lehr_log import _write, log


def main(words: list[str]) -> int:
    """Run the command with its placeholders replaced; return its exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # The command is killed with it.
    places = {"checkpoint": os.environ["LEHR_RESUME_FROM"]}
    places |= {name: os.path.abspath(name) for name in ("export", "results")}  # noqa: PTH100
    pattern = re.compile("{(" + "|".join(places) + ")}")
    commands = [["lehr_log.command", *(pattern.sub(lambda m: places[m[1]], w) for w in words)]]
    if any("{export}" in word for word in words):
        commands.insert(0, ["lehr_trainer", "export", places["checkpoint"], "export"])
    results = Path("results")
    results.mkdir(exist_ok=True)
    for command in commands:
        if code := subprocess.run([sys.executable, "-m", *command], check=False).returncode:
            return code if code > 0 else 128 - code
    values: dict[str, float] = {}
    for path in sorted(results.rglob("*.json")):
        content = json.loads(path.read_text("utf-8"))
        if isinstance(tasks := content.get("tasks"), dict):
            _write({"kind": "validation_data", "step": 0, "tasks": tasks})
        # lm-eval and `lehr_trainer eval` write other numbers beside them.
        values.update(_numbers(content.get("results") or content.get("values") or content))
    if values:
        log(values)
    return 0


def _numbers(content: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers in nested objects, with the names on the way to them: ``arc_easy/acc``."""
    if isinstance(content, dict):
        for key, value in content.items():
            own = str(key).removesuffix(",none")  # lm-eval's name of no filter.
            yield from _numbers(value, f"{name}/{own}" if name else own)
    elif isinstance(content, int | float) and not isinstance(content, bool):
        yield name, float(content)


if __name__ == "__main__" and os.environ.get("LOCAL_RANK", "0") == "0":
    sys.exit(main(sys.argv[1:]))  # On one rank: the command has all GPUs.
