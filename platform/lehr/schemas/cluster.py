"""Nodes, their GPUs and the queue; and what an admin manages: tokens, quotas, secrets."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, computed_field

from lehr.schemas.base import Page, View
from lehr_trainer.configs.base import Documented


class TokenView(View):
    """A named token, without its value."""

    name: str
    role: str
    """viewer, researcher or admin."""
    state: Literal["valid", "expired", "revoked"]
    created_at: float
    """When it was created or last rotated, in seconds since the epoch."""
    expires_at: float | None
    """null: never."""
    revoked_at: float | None
    gpu_hours: float | None = None
    """The budget: GPU-hours that its runs may use in all; null: no limit."""


class TokensView(View):
    tokens: list[TokenView]
    """By name."""


class CreatedToken(TokenView):
    token: str
    """The value, shown only once."""


class BudgetView(View):
    """What the runs of a token have used, in GPU-hours of their attempts."""

    name: str
    """The token's name; user is the server's own token."""
    gpu_hours: float | None
    """The budget; null: no limit."""
    used: float
    promised: float
    """What runs that have not ended may still use by their plans; 0 without a budget."""
    left: float | None = None
    """The budget without both; null without a budget."""


class AuditEntry(View):
    """A request that changed something, or was refused."""

    id: int
    at: float
    """Seconds since the epoch."""
    name: str
    """The token's name; user is the server's own token."""
    role: str
    method: str
    path: str
    status: int
    """The HTTP status of the answer."""
    address: str
    """Where the request came from."""


class AuditPage(Page[AuditEntry]):
    """Newest first."""


class QuotaView(View):
    """The most GPUs that the runs of a project hold at a time."""

    project: str
    gpus: int
    changed_at: float
    """When it was last set, in seconds since the epoch."""
    changed_by: str
    """The name of the token that set it; user is the server's own token."""


class QuotasView(View):
    quotas: list[QuotaView]
    """By project."""


class SecretView(View):
    """A secret, without its value."""

    name: str
    changed_at: float
    """When its value was last set, in seconds since the epoch."""
    changed_by: str
    """The name of the token that set it; user is the server's own token."""
    last_message: str | None = None
    """As a webhook, since the server's start: that its last message arrived, or why not."""


class SecretsView(View):
    secrets: list[SecretView]
    """By name."""


class PushView(View):
    """What a browser needs to get messages."""

    public_key: str
    """The ``applicationServerKey`` of a subscription: a point of P-256, base64url."""


class LoginLink(View):
    url: str
    """Opens the dashboard once."""
    expires_at: float
    """Seconds since the epoch."""


NODE_NAME = r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
"""Names that Ray accepts as the value of a label."""


class GpuView(View):
    index: int
    name: str
    """E.g. "NVIDIA A100-SXM4-80GB", or "logical GPU"."""
    memory_bytes: int | None = None
    utilization: float | None = None
    """Share of the driver's last sample period (1/6 to 1 s) in which a kernel ran, 0 to 1. Null
    where unknown: a logical GPU, no nvidia-ml-py on the node, a driver that does not answer.
    """
    memory_used_bytes: int | None = None
    """Of all processes, without what the driver reserves."""
    temperature_celsius: float | None = None
    run_id: str | None = None
    """The run that holds it; null if it is free, or if lehr.db does not know the run."""
    run_name: str | None = None
    """Null: it is free."""
    attempt: int | None = None
    since: float | None = None

    @property
    def busy(self) -> bool:
        """Return whether a run holds it, also one that lehr.db does not know."""
        return self.run_name is not None


class NodeView(View):
    name: str
    address: str
    alive: bool
    logical: bool
    """Its GPUs are logical: the trainer runs on its CPU."""
    gpus: list[GpuView]
    cpus: int | None = None
    cpu_utilization: float | None = None
    """Share of all its CPUs in use, 0 to 1, a few seconds ago; null if unknown."""
    ram_used_bytes: int | None = None
    ram_bytes: int | None = None
    last_seen_at: float | None = None
    excluded: str | None = None
    """Why no new runs are placed on it, until it is readmitted; None for a node in use."""
    left: bool = False
    """It has left by `lehr node leave`; it gets runs again when it joins again."""
    away: str | None = None
    """Why it is not there, though it was when the last server ended, and what to do."""
    problems: list[str] = Field(default_factory=list)
    """Why no new runs can be placed on it, though it answers, and what to do."""
    notes: list[str] = Field(default_factory=list)
    """What is wrong on it, though runs can start there."""
    until: float | None = None
    """Until when it is available, in seconds since the epoch; null: it has no end."""
    ending: str | None = None
    """Its end, if that is so near that nothing starts on it any more."""
    versions: dict[str, str] = Field(default_factory=dict)
    """Of python, ray, torch, nccl and lehr, as installed there. Empty where unknown."""
    clock_offset_s: float | None = None
    """Seconds by which its clock was ahead of the server's, at least, when it joined."""
    free_bytes: dict[str, int | None] = Field(default_factory=dict)
    """Free space by the variable that names the folder: of LEHR_RUNS as its agent's newest report
    has it, of others when it joined."""
    runs_folder: str | None = None
    """The identity of the folder of runs that it sees: nodes with equal ones share checkpoints."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def no_runs(self) -> str | None:
        """Why no run can start on it now, whatever is free there; null if runs can."""
        if self.left:
            return "has left the cluster"
        found = [] if self.alive else [self.away or "does not answer"]
        found += [f"cannot be used: {problem}" for problem in self.problems]
        if self.excluded is not None:
            found.append(f"excluded: {self.excluded}")
        if self.ending is not None:
            found.append(self.ending)
        return "; ".join(found) or None


class ClusterView(View):
    state: Literal["starting", "up", "down"]
    message: str | None = None
    nodes: list[NodeView]
    gpus_total: int
    """Of the nodes that answer."""
    gpus_busy: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def gpus_free(self) -> int:
        """GPUs that a run can get now: that none holds, on nodes that get runs."""
        return sum(not gpu.busy for node in self.nodes if node.no_runs is None for gpu in node.gpus)


class QueueEntry(View):
    position: int
    run_id: str
    name: str
    project: str = "default"
    gpus: int
    nodes: int
    gpu_type: str | None
    priority: int
    reason: str
    queued_at: float
    expected_start: float | None = None
    """When it is expected to start, from the measured speeds of the runs before it and the steps
    that these have left; null if that is not known, or if something else than GPUs is missing.
    """
    expected_because: str = ""
    """The reason for that time, or why it is not known."""


class RunSpan(View):
    run_id: str
    name: str
    project: str
    person: str
    state: str
    gpus: list[int]
    began: float
    trains_at: float | None
    """When its training began; null: it had not."""
    ended: float | None


class SeenSpan(View):
    began: float
    ended: float
    gpus: int = 0
    kind: str
    """Of a node: in use, not given out, down. Of the queue: why GPUs without a run were idle."""
    why: str = ""
    project: str | None = None
    """Of the queued run that ``why`` names, as is ``person``."""
    person: str | None = None


class UnusedSpan(View):
    """A time in which a run held a GPU that it hardly used: under 5 % in each minute's mean."""

    gpu: int
    """Its index."""
    began: float
    ended: float


class NodeHistory(View):
    name: str = ""
    gpus: int = 0
    spans: list[SeenSpan] = []
    """Of times between them nothing is known: no server ran, or none knew the node."""
    runs: list[RunSpan] = []
    unused: list[UnusedSpan] = []
    """Never of logical GPUs, nor where the driver gives no utilization."""


class IdleHours(View):
    by: Literal["all", "week", "node", "project", "person"]
    """week: ISO, in UTC. project, person: of the run that a reason names, if it names one."""
    name: str
    kind: str
    gpu_hours: float


class ClusterHistory(View):
    """Who held each GPU, by attempts, and why others were idle: as the server saw it every 30 s."""

    began: float
    ended: float
    nodes: list[NodeHistory]
    queue: list[SeenSpan]
    """Why GPUs of nodes in use were idle that had no run: the reason of the first queued run."""
    gpu_hours: float
    """Of all GPUs, while their nodes answered and the server looked."""
    idle: list[IdleHours]
    """The largest first. Those of the kind down are not in ``gpu_hours``."""


class NodeFigures(View):
    """What a node's agent reported over time: means of equal parts, from means of minutes.

    The server keeps them for seven days.
    """

    node: str
    began: float
    """Where the first part begins, in seconds since the epoch."""
    part_s: float
    """The length of a part, in seconds: at least two minutes."""
    figures: dict[str, list[float | None]]
    """By the names that the metrics of runs have: system/cpu_utilization, system/gpu0_power_watts;
    null where nothing was reported. Logical GPUs have none.
    """


class LeaveRequest(Documented):
    """The machine that leaves."""

    model_config = ConfigDict(extra="forbid")

    node: Annotated[
        str, Field(pattern=NODE_NAME, max_length=63, examples=["gpu-2"], description="Its name.")
    ]


class JoinRequest(LeaveRequest):
    """What a machine reports of itself before it joins."""

    check: bool = False
    """Only look: the answer has no secrets, and nothing changes."""
    readmit: bool = False
    """Give it work again if it had left. Not for a machine that only asks whether the head is the
    same: it may be leaving.
    """
    until: float | None = Field(default=None, allow_inf_nan=False, examples=[1_796_000_400.0])
    """Until when it is available, in seconds since the epoch, with ``readmit``; null: as before."""


class JoinView(View):
    """What a machine needs to join the cluster. Contains secrets, except for a check."""

    node: str
    node_token: str
    """Opens only the routes for joining and leaving, for this node, without an end. Empty for a
    check.
    """
    server_url: str
    ray_address: str
    ray_token: str | None = None
    """Ray's token; null if Ray runs without one, and for a check."""
    ray_session: str = ""
    """Differs between two heads at the same address; empty if unknown."""
    versions: dict[str, str]
    """Of python, ray and lehr on the server; torch and nccl as on its nodes, where known."""
    runs_dir: str
    """The folder of runs on the server's machine."""
    runs_folder: str | None = None
    """The identity of the folder of runs as a node of the server sees it; null if unknown."""
    time: float
    """The server's clock."""
    name_in_use: str | None = None
    """The address of the machine that has this name in the cluster now; null if none has."""
    is_member: bool = False
    """Whether the agent of a node of this name answers."""


class LeaveView(View):
    node: str
    excluded: bool
    """Whether the node is now excluded; false if the cluster does not know it."""
    runs: dict[str, str] = Field(default_factory=dict)
    """The names of the runs that train on it, by their ids."""
