"""What the REST API answers: the shapes that CLI, dashboard and client all read.

Times are seconds since the epoch (UTC). A value that is not known is null, never 0.
Non-finite numbers travel as the strings "NaN", "Infinity", "-Infinity".
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
