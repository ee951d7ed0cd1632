"""The store: users' requests and recorded decisions (``lehr.db``), and streams.

``Store`` is the whole interface. It is the only thing that opens the databases, changes a run's
state, or writes a stream's replica.
"""

from lehr.store.changes import Change
from lehr.store.store import Store

__all__ = ["Change", "Store"]
