"""What is remembered: runs, sweeps, attempts, moves (``lehr.db``) and what trainers said.

``Store`` is the whole interface. It is the only thing that opens the databases, moves a run from
state to state, or writes a stream's replica.
"""

from lehr.store.attempts import Beat
from lehr.store.changes import Change
from lehr.store.consequences import Consequence
from lehr.store.curves import StoredRecord
from lehr.store.logs import LogMatch
from lehr.store.replica import Gap
from lehr.store.runs import StoredAnswer
from lehr.store.store import Store
from lehr.store.streams import StreamInfo

__all__ = [
    "Beat",
    "Change",
    "Consequence",
    "Gap",
    "LogMatch",
    "Store",
    "StoredAnswer",
    "StoredRecord",
    "StreamInfo",
]
