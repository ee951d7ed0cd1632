"""What is remembered: runs, sweeps, attempts, moves (``lehr.db``) and what trainers said.

``Store`` is the whole interface. It is the only thing that opens the databases, moves a run from
state to state, or writes a stream's replica.
"""

from lehr.store.apply_events import AppliedEvents
from lehr.store.changes import Change
from lehr.store.records.attempts import HeartbeatReport
from lehr.store.records.runs import StoredAnswer
from lehr.store.store import Store
from lehr.store.streams.log_text import LogMatch
from lehr.store.streams.replica import Gap
from lehr.store.streams.replication import StreamInfo
from lehr.store.streams.series import StoredRecord

__all__ = [
    "AppliedEvents",
    "Change",
    "Gap",
    "HeartbeatReport",
    "LogMatch",
    "Store",
    "StoredAnswer",
    "StoredRecord",
    "StreamInfo",
]
