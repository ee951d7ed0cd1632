"""Types of the REST API's answers, shared by CLI, dashboard and client.

Times are seconds since the epoch (UTC). An unknown value is null, never 0. Non-finite numbers are
the strings "NaN", "Infinity", "-Infinity".
"""

from lehr.schemas.base import Health, Page, Problem, View
from lehr.schemas.checkpoints import (
    CheckpointDeletion,
    CheckpointFiles,
    CheckpointVerdict,
    CheckpointView,
    FileView,
    PlaceVerdict,
)
from lehr.schemas.cluster import ClusterView, GpuView, NodeView, QueueEntry
from lehr.schemas.comparisons import ComparisonView, DifferenceView, RunResultView
from lehr.schemas.rollouts import (
    GateState,
    GateView,
    RolloutDetail,
    RolloutState,
    RolloutView,
    StageRunView,
    StageStatus,
    StageView,
)
from lehr.schemas.runs import (
    AttemptView,
    Deletion,
    GpuRef,
    Latest,
    LatestOfRun,
    RunDetail,
    RunView,
    WandbView,
)
from lehr.schemas.streams import (
    EventView,
    LogChunk,
    LogHit,
    LogHits,
    LogStream,
    MetricInfo,
    SampleView,
    Series,
)
from lehr.schemas.sweeps import (
    PointView,
    SweepDeletion,
    SweepDetail,
    SweepView,
    TrialView,
)

__all__ = [
    "AttemptView",
    "CheckpointDeletion",
    "CheckpointFiles",
    "CheckpointVerdict",
    "CheckpointView",
    "ClusterView",
    "ComparisonView",
    "Deletion",
    "DifferenceView",
    "EventView",
    "FileView",
    "GateState",
    "GateView",
    "GpuRef",
    "GpuView",
    "Health",
    "Latest",
    "LatestOfRun",
    "LogChunk",
    "LogHit",
    "LogHits",
    "LogStream",
    "MetricInfo",
    "NodeView",
    "Page",
    "PlaceVerdict",
    "PointView",
    "Problem",
    "QueueEntry",
    "RolloutDetail",
    "RolloutState",
    "RolloutView",
    "RunDetail",
    "RunResultView",
    "RunView",
    "SampleView",
    "Series",
    "StageRunView",
    "StageStatus",
    "StageView",
    "SweepDeletion",
    "SweepDetail",
    "SweepView",
    "TrialView",
    "View",
    "WandbView",
]
