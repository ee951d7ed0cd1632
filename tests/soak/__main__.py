"""``python -m soak --hours 3``: soak two machines for so many hours more, and report."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from soak import report
from soak.session import Pace, Session


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=1.0, help="hours more")
    parser.add_argument(
        "--folder", type=Path, default=Path("soak-report"), help="results and disks"
    )
    parser.add_argument("--seed", type=int, help="of the work and the faults; drawn by default")
    parser.add_argument(
        "--hard-every",
        type=int,
        default=Pace.hard_every,
        help="one chapter in so many kills the server and ends its bridge; 0: none",
    )
    parser.add_argument("--report", action="store_true", help="only write the report anew")
    options = parser.parse_args()
    folder = options.folder.absolute()
    if not options.report:
        if os.geteuid() != 0:
            parser.error("machines of namespaces need root")
        session = Session(folder, Pace(hard_every=options.hard_every), seed=options.seed)

        def stop(*_: object) -> None:
            if session.stopping.is_set():
                raise KeyboardInterrupt
            print("ending this chapter; once more to end at once", flush=True)
            session.stopping.set()

        signal.signal(signal.SIGINT, stop)
        signal.signal(signal.SIGTERM, stop)
        session.run(options.hours)
    text, sound = report.write(folder)
    print(text)
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
