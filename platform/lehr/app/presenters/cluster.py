"""Views of the cluster and the queue."""

from __future__ import annotations

import heapq
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from lehr.cluster.exits import excluded, node_ends
from lehr.cluster.launcher import placement_of
from lehr.cluster.membership import Cluster, Member
from lehr.control.availability import until as until_text
from lehr.control.lifecycle import RunState
from lehr.control.resources import Need, can_ever_place
from lehr.node.gpu_inventory import LOGICAL
from lehr.node.runs_folder import RUNS
from lehr.schemas.cluster import ClusterView, GpuView, NodeView, QueueEntry
from lehr.store import Store
from lehr.store.tables import Attempt, RunRow

NO_GPUS_HERE = (
    "the driver of the server's machine lists no GPU; see lehr doctor there. To train on its CPU, "
    "on logical GPUs: lehr down, then lehr up --gpus 8"
)
NOT_RECORDED = (
    "trains {}, which is not in lehr.db, and is left alone: its record was lost, or is newer than "
    "the restored backup. To stop it, there: lehr down"
)
NO_GPUS_THERE = "no node of the Ray cluster has GPUs; start one with ray start --num-gpus N"


class ClusterPresenter:
    """Makes views of one server's cluster and queue. May be used from any thread."""

    def __init__(
        self, store: Store, cluster: Cluster, order: Callable[[], Sequence[str]], *, embedded: bool
    ) -> None:
        """``order``: the ids of the waiting runs, in the order of their turn. ``embedded``: the
        cluster is this server's own, on this machine.
        """
        self._store = store
        self._cluster = cluster
        self._order = order
        self._without_gpus = NO_GPUS_HERE if embedded else NO_GPUS_THERE

    def cluster(self) -> ClusterView:
        return cluster_view(self._cluster, self._store, without_gpus=self._without_gpus)

    def queue(self) -> list[QueueEntry]:
        """Return the queued runs in order; those submitted since the last plan come last."""
        runs = {run.id: run for run in self._store.runs.by_state({RunState.QUEUED})}
        queued = [runs.pop(run_id) for run_id in self._order() if run_id in runs]
        queued += sorted(runs.values(), key=lambda run: (-run.priority, run.number or 0))
        expected = _expected_starts(self._store, queued, self._cluster) if queued else {}
        now = time.time()
        return [_entry(i, run, expected.get(run.id), now) for i, run in enumerate(queued, 1)]


def cluster_view(
    cluster: Cluster, store: Store, *, without_gpus: str = "no node has GPUs"
) -> ClusterView:
    """Return one row per node: who holds each of its GPUs, and since when.

    ``without_gpus``: the message for a cluster that is up and has no GPUs.
    """
    holders: dict[tuple[str, int], Attempt] = {}
    for attempt in store.attempts.list_open():
        if attempt.exited_at is None:
            for share in placement_of(attempt):
                for index in share.gpus:
                    holders[share.node, index] = attempt
    runs = store.runs.by_ids({attempt.run_id for attempt in holders.values()})
    holding = {run.id: run for run in runs}
    living = {name for member in cluster.members().values() for name in member.living()}
    others = store.attempts.unrecorded(living)
    out = excluded(store.nodes.notes())
    until = store.nodes.until()
    near = {node: end for node, end in node_ends(until, store.clock()).items() if end.near}
    nodes = []
    for member in sorted(cluster.members().values(), key=lambda member: member.name):
        unrecorded = sorted(member.living() & others)
        held = {index: name for name in unrecorded for index in member.attempts[name].gpus}
        gpus = []
        # The measurements of a node that does not answer are outdated.
        host = member.host_now if member.usable else {}
        for gpu in member.gpus:
            holder = holders.get((member.name, int(gpu["index"])))
            now = member.gpus_now.get(int(gpu["index"]), {}) if member.usable else {}
            run = holding[holder.run_id] if holder else None
            gpus.append(
                GpuView(
                    index=int(gpu["index"]),
                    name=str(gpu["name"]),
                    memory_bytes=gpu.get("memory_bytes"),
                    utilization=now.get("utilization"),
                    memory_used_bytes=now.get("memory_used_bytes"),
                    temperature_celsius=now.get("temperature_celsius"),
                    run_id=run.id if run else None,
                    run_name=run.name if run else held.get(int(gpu["index"])),
                    attempt=holder.number if holder else None,
                    since=holder.created_at if holder else None,
                )
            )
        nodes.append(
            NodeView(
                name=member.name,
                address=member.address,
                alive=member.usable,
                logical=bool(gpus) and all(gpu.name == LOGICAL for gpu in gpus),
                gpus=gpus,
                cpus=member.hello.get("cpus"),
                cpu_utilization=host.get("cpu_utilization"),
                ram_used_bytes=host.get("ram_used_bytes"),
                ram_bytes=host.get("ram_bytes"),
                last_seen_at=member.last_seen_at,
                excluded=out.get(member.name),
                left=member.has_left(out.get(member.name)),
                away=member.away,
                problems=list(member.problems) if member.usable else [],
                notes=[*member.notes, *map(NOT_RECORDED.format, unrecorded)],
                until=until.get(member.name),
                ending=until_text(near[member.name]) if member.name in near else None,
                versions=dict((member.hello.get("facts") or {}).get("versions") or {}),
                clock_offset_s=member.hello.get("clock_offset_s"),
                free_bytes=_free_bytes(member),
                runs_folder=member.hello.get("runs_folder"),
            )
        )
    state, message = cluster.state()
    usable = [node for node in nodes if node.alive]
    if cluster.has_no_gpus:
        message = without_gpus
    elif state == "up" and not usable:
        state = "starting"
        errors = [m.error for m in cluster.members().values() if m.error]
        message = errors[0] if errors else "Ray is up; its nodes' agents are starting"
    return ClusterView(
        state=state,
        message=message,
        nodes=nodes,
        gpus_total=sum(len(node.gpus) for node in usable),
        gpus_busy=sum(gpu.busy for node in nodes for gpu in node.gpus),
    )


def _free_bytes(member: Member) -> dict[str, int | None]:
    """Return ``NodeView.free_bytes``."""
    free = dict((member.hello.get("facts") or {}).get("free_bytes") or {})
    if "disk_bytes" in member.host_now:
        free[RUNS] = int(member.host_now["disk_bytes"] - member.host_now["disk_used_bytes"])
    return free


def _expected_starts(
    store: Store, waiting: Sequence[RunRow], cluster: Cluster
) -> dict[str, ExpectedStart]:
    members = cluster.members().values()
    there = [member.as_node() for member in members]
    nodes = [member for member in members if member.usable and not member.problems]
    if len({str(gpu["name"]) for member in nodes for gpu in member.gpus}) > 1:
        return {}  # Of several kinds of GPUs, not every free one is of use to every run.
    attempts = [one for one in store.attempts.list_open() if one.exited_at is None]
    held = {one.run_id: sum(len(part.gpus) for part in placement_of(one)) for one in attempts}
    running = {run.id: run for run in store.runs.by_ids(held)}
    known = [*running, *(run.id for run in waiting if run.attempt)]
    trend = store.series.trend(known, "step_time_s")
    speeds = {run_id: statistics.median(times) for run_id, times in trend.items() if times}
    at = store.series.latest(known, ["step_time_s"])

    def planned(run: RunRow, gpus: int, step_s: float | None, never: str | None) -> PlannedRun:
        total, newest = run.stored.total_steps, at.get(run.id, {}).get("step_time_s")
        left = None if total is None else max(0, total - (newest.step if newest else 0))
        return PlannedRun(run.id, run.name, gpus, left, step_s, run.project, never)

    of_sweep = {run.sweep_id: speeds[run.id] for run in running.values() if run.id in speeds}

    @cache
    def never(need: Need) -> str | None:
        return None if can_ever_place(need, there) is None else need.unmet

    ends = node_ends(store.nodes.until(), store.clock())
    out = {*excluded(store.nodes.notes()), *(node for node, end in ends.items() if end.near)}
    total = sum(len(member.gpus) for member in nodes if member.name not in out)
    return forecast(
        total - sum(held.values()),
        [planned(run, held[run.id], speeds.get(run.id), None) for run in running.values()],
        [
            planned(
                run,
                run.stored.gpus,
                speeds.get(run.id, of_sweep.get(run.sweep_id or "")),
                never(Need(**run.stored.resources)),
            )
            for run in waiting
        ],
        {row.project: row.gpus for row in store.quotas.all()},
    )


def _entry(position: int, run: RunRow, expected: ExpectedStart | None, now: float) -> QueueEntry:
    resources = run.stored.resources
    in_s = expected.in_s if expected else None
    return QueueEntry(
        position=position,
        run_id=run.id,
        name=run.name,
        project=run.project,
        gpus=resources["gpus"],
        nodes=resources["nodes"],
        gpu_type=resources["gpu_type"],
        priority=run.priority,
        reason=run.pending_reason or "was submitted just now",
        queued_at=run.queued_at,
        # To the minute: an answer that has not changed is not sent again.
        expected_start=None if in_s is None else round((now + in_s) / 60) * 60,
        expected_because=expected.because if expected else "",
    )


# --- when waiting runs are expected to start ------------------------------------------------


@dataclass(frozen=True)
class PlannedRun:
    """A run that holds GPUs or waits for them."""

    run_id: str
    name: str
    gpus: int
    steps_left: int | None = None  # None if only its program determines it.
    step_s: float | None = None
    """Median time of a step, now, in earlier attempts or in its sweep; None: not measured."""
    project: str = ""
    never: str | None = None  # Why no node that is known can hold it. It then reserves nothing.

    @property
    def seconds_left(self) -> float | None:
        if self.steps_left is None or self.step_s is None:
            return None
        return self.steps_left * self.step_s

    @property
    def lacks(self) -> str:
        """Describe why there is no estimate of its end."""
        if self.step_s is None:
            return f"the time of a step of {self.name} is not known yet"
        return f"the number of steps of {self.name} is not known"

    @property
    def basis(self) -> str:
        return f"{self.steps_left:,} steps left at {self.step_s:.3g} s"


@dataclass(frozen=True)
class ExpectedStart:
    in_s: float | None  # Seconds until it is expected to start; None if that is not known.
    because: str  # What the time rests on, or why there is none.


def forecast(
    free: int,
    holders: Sequence[PlannedRun],
    waiting: Sequence[PlannedRun],
    quotas: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, ExpectedStart]:
    """Return when each waiting run is expected to start, by its id.

    A run that could start now is left out: something else than GPUs keeps it waiting.

    Args:
        free: GPUs that nothing holds.
        holders: the runs that hold GPUs.
        waiting: the waiting runs, in the order of the queue.
        quotas: by project with a quota, the most GPUs that its runs hold. A run over it waits for
            runs of its project, and those behind it pass.
    """
    ends: list[tuple[float, int, PlannedRun, str]] = []
    unknown: list[str] = []
    held: Counter[str] = Counter()

    def hold(number: int, holder: PlannedRun, since: float) -> None:
        held[holder.project] += holder.gpus
        left = holder.seconds_left
        if left is None:
            unknown.append(holder.lacks)
        else:
            basis = f"{holder.name} ends: {holder.basis}"
            heapq.heappush(ends, (since + left, number, holder, basis))

    for number, holder in enumerate(holders):
        hold(number, holder, 0.0)
    found: dict[str, ExpectedStart] = {}
    left = []
    for run in waiting:
        never = run.never
        if never is None and run.gpus > quotas.get(run.project, run.gpus):
            never = f"its project may hold {quotas[run.project]} GPUs"
        if never is None:
            left.append(run)
        else:
            found[run.run_id] = ExpectedStart(None, never)
    now, basis, number = 0.0, "", len(holders)
    while left:
        first = _first_within(left, held, quotas)
        if first is None or free < first.gpus:
            if not ends:
                needed = (first or left[0]).gpus
                reason = unknown[0] if unknown else f"fewer than {needed} GPUs can be used now"
                return found | {run.run_id: ExpectedStart(None, reason) for run in left}
            end, _, ended, basis = heapq.heappop(ends)
            now = max(now, end)
            free += ended.gpus
            held[ended.project] -= ended.gpus
            continue
        left.remove(first)
        if now > 0.0:
            found[first.run_id] = ExpectedStart(now, basis)
        free -= first.gpus
        hold(number, first, now)
        number += 1
    return found


def _first_within(
    waiting: Sequence[PlannedRun], held: Mapping[str, int], quotas: Mapping[str, int]
) -> PlannedRun | None:
    """Return the first run whose project stays within its quota; no smaller one of it overtakes."""
    full: set[str] = set()
    for run in waiting:
        quota = quotas.get(run.project)
        if quota is None or not run.gpus:
            return run
        if run.project not in full and held.get(run.project, 0) + run.gpus <= quota:
            return run
        full.add(run.project)
    return None
