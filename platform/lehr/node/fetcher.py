"""The fetcher: copies the checkpoint to resume from to a node that lacks it.

Run as ``python -I fetcher.py ENTRY`` by the shim, before the training starts. An existing
checkpoint stays. Otherwise the first copy that can be fetched completely is placed where the
trainer expects it: the pinned one first, then older ones. Exit code 1: none could be fetched; the
reason is on stdout.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))

from lehr.node.attempt_dir import AttemptDir

PAUSES_S = (1.0, 4.0, 15.0, 30.0)
"""Pause between tries while the storage cannot be reached."""


def fetch(run_dir: Path, candidates: list[dict[str, Any]]) -> str | None:
    """Fetch a checkpoint to resume from. Return None on success, else the reason.

    Args:
        run_dir: folder that the candidates' relative paths refer to.
        candidates: ``path`` of the checkpoint and ``url`` of its copy (None without one), in order
            of preference.
    """
    from lehr.checkpoints.copies import Copy, whole
    from lehr.specs.storage_url import short
    from lehr_trainer.errors import BadCheckpoint

    reasons: list[str] = []
    for pause in (*PAUSES_S, None):
        again, reasons = False, []
        for candidate in candidates:
            folder = run_dir / candidate["path"]
            if whole(folder) is not None:
                return None
            if candidate["url"] is None:
                reasons.append(f"{candidate['path']} is not on this node and has no copy")
                continue
            began = time.monotonic()
            try:
                found = Copy(candidate["url"]).fetch(folder)
            except BadCheckpoint as error:
                reasons.append(str(error))
            except Exception as error:  # noqa: BLE001 - whatever a storage's client raises
                again = True
                reasons.append(f"{candidate['url']}: {short(error)}")
            else:
                size, took = found.manifest.size_bytes, time.monotonic() - began
                print(f"fetched {candidate['url']} ({size:,} bytes in {took:.1f} s)", flush=True)
                return None
        if not again or pause is None:
            break
        time.sleep(pause)
    return "; ".join(reasons)


def main() -> None:
    launch = AttemptDir(sys.argv[1]).launch()
    assert launch is not None
    why = fetch(Path(launch["run_dir"]), launch["fetch"])
    if why is not None:
        print(f"no checkpoint to resume from: {why}", flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
