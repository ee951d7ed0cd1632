"""A process to kill: it appends to a store and prints what was acknowledged.

python store_writer.py HOME ATTEMPT_ID STREAM CHUNK_BYTES [FILE_LIMIT_BYTES]
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from lehr.errors import LehrError
from lehr.store import Store


def source(name: str, count: int) -> bytes:
    """The first ``count`` bytes of a stream that never ends and never repeats."""
    if name == "events.jsonl":
        lines, size = [], 0
        step = 0
        while size < count:
            step += 1
            lines.append(
                b'{"kind":"metrics","time":%d.5,"step":%d,"tokens":%d,"values":{"train/loss":%d.25}}\n'
                % (step, step, step * 10, step)
            )
            size += len(lines[-1])
        return b"".join(lines)[:count]
    return b"".join(b"%09d\n" % number for number in range(count // 10 + 1))[:count]


def main() -> None:
    home, attempt_id, name, chunk = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    if len(sys.argv) > 5:
        limit = int(sys.argv[5])
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    data = source(name, 4 << 20)
    with Store.open(Path(home)) as store:
        offset = store.streams.sizes(attempt_id).get(name, 0)
        print(offset, flush=True)
        while offset < len(data):
            try:
                offset = store.streams.append(
                    attempt_id, name, offset, data[offset : offset + chunk]
                )
            except LehrError as error:
                print(f"{type(error).__name__}: {error}", flush=True)
                return
            print(offset, flush=True)


if __name__ == "__main__":
    main()
