"""Give memory that was freed back to the system.

glibc keeps freed blocks that lie between living ones. A server that handles short requests in
several threads would grow by some tens of KB with each run (``tests/bench/history_memory.py``).
"""

from __future__ import annotations

import ctypes


def give_back() -> bool:
    """Return whole free pages of all of glibc's arenas; False with another C library.

    See malloc_trim(3). It took 28 ms for 45 MB, and 0.2 ms if there is nothing to return.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim is not None and bool(trim(0))
