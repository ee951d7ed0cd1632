"""The store: users' requests and recorded decisions (``lehr.db``), and streams.

``Store`` is the whole interface. It is the only thing that opens the databases, changes a run's
state, or writes a stream's replica.
"""

from lehr.store.apply_events import AppliedEvents
from lehr.store.changes import Change
from lehr.store.records.idempotency import StoredAnswer
from lehr.store.store import Store
from lehr.store.streams.events import StoredRecord
from lehr.store.streams.logs import LogMatch
from lehr.store.streams.replica import Gap
from lehr.store.streams.replication import StreamInfo

__all__ = [
    "AppliedEvents",
    "Change",
    "Gap",
    "LogMatch",
    "Store",
    "StoredAnswer",
    "StoredRecord",
    "StreamInfo",
]
