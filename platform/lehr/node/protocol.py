"""Whether this Lehr can drive the trainer in a capsule. Standard library only.

The version is read from the text of the capsule's ``lehr_trainer.contract.protocol``, which is
never imported here.
"""

import re

FILE = "trainer/lehr_trainer/contract/protocol.py"
"""In the capsule. Capsules of before there were versions lack it, and have version 1."""
LONGEST = 1 << 16
"""Bytes of it that are read: it may be anybody's."""
_VERSION = re.compile(r"^VERSION = (\d{1,9})$", re.MULTILINE)


def version_of(text: str) -> int:
    found = _VERSION.search(text)
    return int(found.group(1)) if found else 1


def problem(text: str, driven: tuple[int, int]) -> str | None:
    """Describe why the trainer cannot be driven; None if it can.

    Args:
        text: of the capsule's file; empty if it has none.
        driven: the oldest and the newest version that this Lehr drives.
    """
    version, (oldest, newest) = version_of(text), driven
    if oldest <= version <= newest:
        return None
    known = f"version {newest}" if oldest == newest else f"versions {oldest} to {newest}"
    advice = (
        "Train it with the Lehr that recorded it, or fork it with --code current"
        if version < oldest
        else "Upgrade Lehr, or fork it with --code current"
    )
    return (
        f"the trainer in the run's code has version {version} of the protocol between trainer and "
        f"platform, but this Lehr drives {known}. {advice}"
    )
