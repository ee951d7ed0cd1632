"""The fetcher: gets what a node lacks before a training starts there.

Run as ``python -I fetcher.py ENTRY WHAT`` by the shim. WHAT is ``code``, the capsule, which is
unpacked; or ``checkpoint``, the one to resume from. Exit code 1: it could not be
fetched; the reason is on stdout.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import sys
import time

sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from pathlib import Path
from typing import Any

from lehr.base import killpoints
from lehr.code import archive, code_cache
from lehr.code.archive import BadArchive
from lehr.node.attempt_dir import AttemptDir
from lehr.node.http_client import Outage, ServerConnection

PAUSES_S = (0.5, 1.0, 4.0, 15.0, 30.0)
"""Pause between tries while the server or the storage cannot be reached."""
KEEP_S = 14 * 86_400.0  # Seconds that an unused capsule stays on the node.


def fetch_code(entry: AttemptDir, digest: str, server: ServerConnection) -> None:
    """Fetch and unpack the capsule, unless another attempt does; then wait for that one.

    Raises:
        Outage: the server cannot be reached, or does not have it.
        BadArchive: what it sent is not the capsule.
        OSError: it cannot be written here.
    """
    node = code_cache.node_folder(entry.path)
    base = os.path.join(node, "code")
    os.makedirs(base, mode=0o700, exist_ok=True)
    lock = os.open(os.path.join(base, ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if code_cache.ready(node, digest):
            return
        _remove_drafts(base)
        draft = os.path.join(base, f".{secrets.token_hex(8)}")
        packed = f"{draft}.tar"
        try:
            with open(packed, "xb") as file:
                server.download("code", file, archive.LARGEST)
            killpoints.reached("code fetcher: after the download")
            found = archive.digest_of(packed)
            if found != digest:
                raise BadArchive(f"the server sent {found[:12]} in place of {digest[:12]}")
            killpoints.reached("code fetcher: after the verification")
            os.mkdir(draft, 0o700)
            archive.unpack(packed, draft, read_only=True)
            killpoints.reached("code fetcher: after the unpacking")
            adopt(node, digest, draft)
        finally:
            if os.path.exists(packed):
                os.unlink(packed)
            shutil.rmtree(draft, ignore_errors=True)
        remove_unused(node, _used(os.path.dirname(entry.path)))
    finally:
        os.close(lock)


def _remove_drafts(base: str) -> None:
    """Remove what a killed fetcher has left; the lock is held, so no other one is at work."""
    for entry in os.scandir(base):
        if entry.name.startswith(".") and entry.name != ".lock":
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                os.unlink(entry.path)


def adopt(node: str, digest: str, draft: str) -> None:
    """Make an unpacked draft the capsule's folder. Of several at once, the first wins."""
    where = code_cache.folder(node, digest)
    state = code_cache.state_of(draft)
    if os.path.isdir(where) and not code_cache.ready(node, digest):
        was_complete = code_cache.index(node, digest) is not None
        aside = f"{where}.changed-{secrets.token_hex(4)}"
        os.rename(where, aside)
        killpoints.reached("code fetcher: after an edited capsule is set aside")
        # Running attempts keep what they have open; new ones get intact files.
        if not was_complete:
            shutil.rmtree(aside, ignore_errors=True)
    try:
        os.rename(draft, where)
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        if code_cache.ready(node, digest):
            return
        raise
    killpoints.reached("code fetcher: after the rename")
    code_cache.write_index(node, digest, state)


def remove_unused(node: str, used: set[str], *, keep_s: float = KEEP_S) -> list[str]:
    """Remove capsules that no attempt here uses and that none has used for a long time."""
    base = os.path.join(node, "code")
    removed = []
    for name in sorted(os.listdir(base)):
        if name.startswith("."):
            continue
        digest = name.partition(".")[0]
        path = os.path.join(base, name)
        mark = os.path.join(base, f"{digest}.index")
        try:
            age = time.time() - os.stat(mark if os.path.exists(mark) else path).st_mtime
        except OSError:
            continue
        if digest in used or age < keep_s or name.endswith(".index"):
            continue
        if "." not in name:
            if os.path.exists(mark):
                os.unlink(mark)
            removed.append(digest)
        if os.path.isdir(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)  # The draft of an index.
    return removed


def _used(attempts: str) -> set[str]:
    found = set()
    for name in os.listdir(attempts):
        launch = AttemptDir(os.path.join(attempts, name)).launch() or {}
        if launch.get("code"):
            found.add(str(launch["code"]))
    return found


def fetch_checkpoint(run_dir: Path, candidates: list[dict[str, Any]]) -> str | None:
    """Fetch a checkpoint to resume from. Return None on success, else the reason.

    An existing one stays. Otherwise the first copy that can be fetched completely is placed where
    the trainer expects it. Candidates have the ``path`` of the checkpoint in ``run_dir`` and the
    ``url`` of its copy (None without one), in order of preference.
    """
    from lehr.checkpoints.copies import Copy, whole
    from lehr.specs.storage_url import short
    from lehr_trainer.errors import BadCheckpoint

    reasons: list[str] = []
    for pause in (*PAUSES_S[1:], None):
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
    entry = AttemptDir(sys.argv[1])
    launch = entry.launch()
    assert launch is not None
    if sys.argv[2] == "checkpoint":
        why = fetch_checkpoint(Path(launch["run_dir"]), launch["fetch"])
        if why is not None:
            print(f"no checkpoint to resume from: {why}", flush=True)
            sys.exit(1)
        return
    server = ServerConnection(
        lambda: entry.server_url(launch), str(launch["token"]), entry.attempt_id
    )
    digest = str(launch["code"])
    for pause in (*PAUSES_S, None):
        try:
            fetch_code(entry, digest, server)
        except (Outage, OSError, BadArchive) as error:
            if pause is None or isinstance(error, BadArchive):
                where = os.path.join(code_cache.node_folder(entry.path), "code")
                print(f"capsule {digest[:12]} could not be fetched to {where}: {error}", flush=True)
                sys.exit(1)
            time.sleep(pause)
        else:
            return


if __name__ == "__main__":
    main()
