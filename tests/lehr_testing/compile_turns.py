"""One of several processes that meet at ``compile_lock``; prints what it did as JSON."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from lehr_trainer.runtime.compiling import compile_lock


def main(folder: Path, others: int) -> None:
    output: list[str] = []

    def notify(_phase: str, message: str, _done: float | None) -> None:
        output.append(message)
        if "waiting for its result" in message:
            (folder / f"waiting-{sys.argv[2]}").touch()

    with compile_lock("key", notify, folder=folder) as first:
        if first:
            # "Compiles" until every other process has reported that it waits.
            deadline = time.monotonic() + 60
            while len(list(folder.glob("waiting-*"))) < others and time.monotonic() < deadline:
                time.sleep(0.02)
            (folder / "cache").write_text("filled")
        hit = (folder / "cache").exists()
    print(json.dumps({"first": first, "hit": hit, "said": output}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), others=int(sys.argv[3]))
