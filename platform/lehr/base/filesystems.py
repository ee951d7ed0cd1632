"""File systems and folders: network file systems, where locks are unreliable (those of SQLite and
of attempts), and the size of folders.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from lehr.errors import HomeUnusable

NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb", "smb3", "smbfs", "ncpfs", "afs", "coda", "9p"}
    | {"ceph", "lustre", "gpfs", "beegfs", "glusterfs", "orangefs", "ocfs2", "gfs2", "wekafs"}
    | {"fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone"}
    | {"fuse.juicefs", "fuse.mount-s3", "fuse.goofys", "fuse.blobfuse2"}
)
MOUNTS = Path("/proc/self/mountinfo")


def filesystem_type(path: Path, mountinfo: str) -> str | None:
    """Return the type of the file system of ``path`` (resolved), from the kernel's mount table."""
    best: tuple[int, str] | None = None
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(" "), right.split(" ")[0]
        if len(fields) < 5 or not kind:
            continue
        # Spaces and backslashes are written as octal numbers.
        mount = Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), fields[4]))
        depth = len(mount.parts)
        # A later mount on the same point hides the earlier one.
        if path.is_relative_to(mount) and (best is None or depth >= best[0]):
            best = (depth, kind)
    return best[1] if best else None


def kind_of(folder: Path) -> str | None:
    """Return the type of the file system of ``folder``, if known."""
    try:
        mountinfo = MOUNTS.read_text("utf-8", "surrogateescape")
    except OSError:
        return None  # Not Linux.
    return filesystem_type(folder.resolve(), mountinfo)


def refuse_network_filesystem(folder: Path) -> str | None:
    """Return the type of the file system of ``folder``, if known.

    Raises:
        HomeUnusable: it is a network file system.
    """
    kind = kind_of(folder)
    if kind in NETWORK:
        raise HomeUnusable(
            f"{folder} is on a network file system ({kind}); SQLite databases may break there.",
            hint="Set LEHR_HOME to a folder on a local disk. LEHR_RUNS may stay on shared storage.",
        )
    return kind


def nearest_existing(path: Path) -> Path:
    """Return the path, or its nearest parent that exists."""
    return next((one for one in (path, *path.parents) if one.exists()), path)


def tree_bytes(folder: Path) -> int:
    """Return the bytes of all files and links below a folder; what cannot be read counts nothing.

    Links are not followed, but the folder itself may be one.
    """
    size = 0
    waiting = [os.fspath(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif entry.is_file(follow_symlinks=False) or entry.is_symlink():
                        size += entry.stat(follow_symlinks=False).st_size
        except OSError:  # It is gone, or its path is longer than the system allows.
            continue
    return size
