"""Whether a folder is on a network file system, where SQLite's locks cannot be trusted."""

from __future__ import annotations

import re
from pathlib import Path

from lehr.errors import HomeUnusable

_NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb", "smb3", "smbfs", "ncpfs", "afs", "coda", "9p"}
    | {"ceph", "lustre", "gpfs", "beegfs", "glusterfs", "orangefs", "ocfs2", "gfs2", "wekafs"}
    | {"fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone"}
    | {"fuse.juicefs", "fuse.mount-s3", "fuse.goofys", "fuse.blobfuse2"}
)
_MOUNTS = Path("/proc/self/mountinfo")


def filesystem_type(path: Path, mountinfo: str) -> str | None:
    """The type of the file system that ``path`` (resolved) lies on, by the kernel's mount table."""
    best: tuple[int, str] | None = None
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(" "), right.split(" ")[0]
        if len(fields) < 5 or not kind:
            continue
        mount = Path(_unescape(fields[4]))
        depth = len(mount.parts)
        # A later mount on the same point hides the earlier one.
        if path.is_relative_to(mount) and (best is None or depth >= best[0]):
            best = (depth, kind)
    return best[1] if best else None


def refuse_network_filesystem(folder: Path) -> str | None:
    """The type of the file system that ``folder`` lies on, as far as it is known.

    Raises:
        HomeUnusable: it is one of those that several machines share.
    """
    try:
        mountinfo = _MOUNTS.read_text("utf-8", "surrogateescape")
    except OSError:
        return None  # Not Linux: nothing to ask.
    kind = filesystem_type(folder.resolve(), mountinfo)
    if kind in _NETWORK:
        raise HomeUnusable(
            f"{folder} is on a network file system ({kind}); SQLite databases may break there.",
            hint="Set LEHR_HOME to a folder on a local disk. LEHR_RUNS may stay on shared storage.",
        )
    return kind


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)
