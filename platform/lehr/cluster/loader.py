"""Load the snapshot of a tick: rows of the store, heartbeats and the lists of agents, as values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from lehr.base import home as homes
from lehr.cluster.exits import RecentEnds, ended_attempt, excluded, node_ends, readmitted
from lehr.cluster.group_loader import GroupLoader
from lehr.cluster.heartbeats import HeartbeatTable
from lehr.cluster.isolation import Isolation, Noted
from lehr.cluster.launcher import placement_of
from lehr.cluster.membership import Cluster, Member
from lehr.cluster.run_cache import AttemptCache, RunCache
from lehr.cluster.run_values import Estimates, open_attempt, rank_in_queue, situation
from lehr.control.finalize import EndedAttempt
from lehr.control.lifecycle import ACTIVE, RunState
from lehr.control.preemption import may_be_preempted
from lehr.control.queue_entries import Active
from lehr.control.reconcile import AttemptPhase, OpenAttempt, Timeouts
from lehr.control.resources import NodeShare
from lehr.control.snapshot import Snapshot
from lehr.control.step import Subject
from lehr.errors import NotFound
from lehr.store import Change, Store
from lehr.store.tables import Attempt, NodeNote, RunRow


@dataclass(eq=False, repr=False)
class SnapshotLoader:
    """Reads everything that a tick decides on. Reading changes nothing.

    What it keeps between ticks are caches and clocks; after a restart it starts empty.
    """

    store: Store
    cluster: Cluster
    heartbeats: HeartbeatTable
    isolation: Isolation
    runs_dir: Path
    timeouts: Timeouts

    def __post_init__(self) -> None:
        self._runs = RunCache(self.store, self.isolation, self.heartbeats.now)
        self._attempts = AttemptCache(self.store)
        self._estimates = Estimates(self.heartbeats)
        self._groups = GroupLoader(self.store, self.runs_dir, self.isolation, self.heartbeats.now)
        self._tables = Noted()  # Of nodes and quotas: not empty if they are to be read.
        self._tables.add(["all"])
        self._notes: dict[str, NodeNote] = {}
        self._quotas: dict[str, int] = {}
        self._until: dict[str, float] = {}
        self._self_reported_exits: set[str] = set()
        """Attempts that reported their own exit and are still listed by agents."""
        self.living: dict[str, RunRow] = {}
        """By attempt, the runs of the current attempts that have not exited. Runs with a waiting
        fork are left out: their orders also depend on its checkpoint.
        """
        self.senders = 0  # One per node of each running attempt, or its process.
        self._recent_ends = RecentEnds(self.store, self.isolation)
        self._groups_unknown = False
        """Whether every group must be loaded, because it is not known which ones changed."""

    def enqueue_all(self) -> None:
        """Load every open sweep and rollout with the next snapshot, and check all nodes."""
        self._groups_unknown = True
        self._recent_ends.all_noted = True

    def enqueue(self, subject: Subject) -> None:
        self._groups.enqueue(subject)

    def changed(self, change: Change) -> None:
        """Note a change of the record. May be called from any thread; fast."""
        if change.kind == "run":
            self._attempts.changed(change)
        if change.progress:
            return  # No decision depends on a step; metrics are announced on their own.
        if change.kind == "cluster":
            self._tables.add(["all"])
        self._groups.changed(change)
        if change.kind == "run":
            self._runs.changed(change.id)

    def note_end(self, attempt_id: str) -> None:
        """Note that the attempt has ended: its nodes are checked. May be called from any thread."""
        self._recent_ends.noted.add([attempt_id])

    def forget_waiting(self) -> None:
        """Read again what each queued run waits for: the nodes that it avoids have changed."""
        self._runs.forget_waiting()

    def load(self, unread: Collection[str]) -> Snapshot:
        """Return the snapshot. A part that cannot be read is left out, and counts as a fault.

        ``unread``: attempts whose events have not been read. Their exits are left out.
        """
        if self._groups_unknown:
            self._groups.enqueue_all()
            self._groups_unknown = False
        self._runs.refresh()
        self._estimates.refresh()
        rows = self._attempts.rows()
        active = {run.id: run for run in self._runs.rows(ACTIVE)}
        external = {run.id: run for run in self._runs.rows({RunState.EXTERNAL})}
        forked = self._runs.forked()
        self.living = {
            row.id: active[row.run_id]
            for row in rows
            if row.exited_at is None and _is_current(row, active) and row.run_id not in forked
        }
        self.senders = sum(len(row.placement) or 1 for row in rows if row.exited_at is None)
        members = self._members(rows)
        living = {name for member in members.values() for name in member.living()}
        others = self.store.attempts.unrecorded(living - {row.id for row in rows})
        self._read_tables()
        out = excluded(self._notes)
        attempts, unreadable = self._open_attempts(rows, active, members)
        runs = self._runs.open_runs()
        holders = self._holders(rows, active, members)
        held = homes.held(self.store.home)
        return Snapshot(
            runs=runs,
            attempts=attempts,
            unreadable_attempts=unreadable,
            ended=self._ended(rows, active | external, unread),
            # Neither is an orphan: an attempt that cannot be read is known, and one that this
            # record never had is another record's to stop.
            members=[member.seen(but=unreadable | others) for member in members.values()],
            membership_known=self.cluster.membership_known,
            places=[one.as_node(excluded=out.get(name)) for name, one in members.items()],
            holders=holders,
            exited=_exited(active, holders),
            slots=self._runs.slots(run.waiting for run in runs if run.waiting is not None),
            quotas=self._quotas,
            node_ends=node_ends(
                {node: end for node, end in self._until.items() if node in members},
                self.store.clock(),
            ),
            sweeps=self._groups.sweeps(),
            sweeps_in_s=self._groups.sweeps_in_s(),
            rollouts=self._groups.rollouts(),
            evaluated=self._groups.evaluated(),
            ends=[end for end in self._recent_ends.take() if end.node not in out],
            readmitted=readmitted(self._notes),
            estimates_in_s=self._estimates.renewed_in_s(),
            waiting_in_s=self._runs.waiting_in_s(),
            no_cluster=held or self._why_no_cluster(members),
            held=held is not None,
            timeouts=self.timeouts,
        )

    def _read_tables(self) -> None:
        """Read the small tables if one has changed: the three cost more than the rest of a tick."""
        with self._tables.taken() as changed:
            if changed:
                self._notes = self.store.nodes.notes()
                self._quotas = {one.project: one.gpus for one in self.store.quotas.all()}
                self._until = self.store.nodes.until()

    def _open_attempts(
        self, rows: Sequence[Attempt], active: Mapping[str, RunRow], members: Mapping[str, Member]
    ) -> tuple[list[OpenAttempt], set[str]]:
        found: list[OpenAttempt] = []
        unreadable: set[str] = set()

        def read(row: Attempt) -> None:
            run = active.get(row.run_id)
            found.append(open_attempt(row, run, members, self.heartbeats))

        for row in rows:
            run = Subject("run", row.run_id)
            if not self.isolation.do(run, "reading its attempt", partial(read, row)):
                unreadable.add(row.id)
        return found, unreadable

    def _holders(
        self, rows: Sequence[Attempt], active: Mapping[str, RunRow], members: Mapping[str, Member]
    ) -> list[Active]:
        """Return all that holds GPUs: attempts that have not exited, and orphans that agents list.

        An attempt whose placement cannot be read holds the GPUs that agents list for it.
        """
        held: list[Active] = []
        known: set[str] = set()

        def read(row: Attempt) -> None:
            run = active.get(row.run_id)
            held.append(
                Active(
                    run_id=row.run_id,
                    placement=placement_of(row),
                    number=(run.number or 0) if run is not None else 0,
                    name=run.name if run is not None else row.id,
                    sweep_id=run.sweep_id if run is not None else None,
                    remaining_s=self._estimates.remaining_s(row, run),
                    **rank_in_queue(run),
                    attempt=row.number,
                    preemptible=_may_be_preempted(row, run),
                    ending=run is not None and run.state == RunState.STOPPING.value,
                )
            )
            known.add(row.id)

        for row in rows:
            if row.exited_at is None:
                run = Subject("run", row.run_id)
                self.isolation.do(run, "reading which GPUs it holds", partial(read, row))
        held.extend(_orphans(known, members.values()))
        return held

    def _ended(
        self, rows: Sequence[Attempt], active: Mapping[str, RunRow], unread: Collection[str]
    ) -> list[EndedAttempt]:
        """Return the exits of ``active`` runs, each with all events that have arrived."""
        newest = {row.run_id: row for row in rows if _is_current(row, active)}
        closed = [run_id for run_id in active if run_id not in newest]
        newest |= self.store.attempts.newest(closed) if closed else {}
        found: list[EndedAttempt] = []

        def read(row: Attempt) -> None:
            run, attempt = self.store.runs.get(row.run_id), self.store.attempts.get(row.id)
            ended = ended_attempt(self.store, run, attempt, self.heartbeats)
            if ended is not None:
                found.append(ended)

        for row in newest.values():
            if row.exited_at is not None and row.id not in unread:
                run = Subject("run", row.run_id)
                self.isolation.do(run, "reading its exit", partial(read, row))
        return found

    def _members(self, rows: Sequence[Attempt]) -> dict[str, Member]:
        """Return the members, with attempts that reported their own exit as ended.

        The list of an agent may be older than such a report: a shim reports only after its
        attempt's processes are gone. An attempt that was given up as lost stays as listed, because
        its processes may live.
        """
        members = self.cluster.members()
        by_id = {row.id: row for row in rows}
        self._self_reported_exits &= {name for one in members.values() for name in one.attempts}
        found = {}
        for name, member in members.items():
            listed = {
                attempt_id: replace(one, state=AttemptPhase.ENDED)
                if one.state is AttemptPhase.LIVE and self._reported_exit(attempt_id, by_id)
                else one
                for attempt_id, one in member.attempts.items()
            }
            found[name] = replace(member, attempts=listed)
        return found

    def _reported_exit(self, attempt_id: str, rows: Mapping[str, Attempt]) -> bool:
        if attempt_id in self._self_reported_exits:
            return True
        row = rows.get(attempt_id)
        if row is None:
            try:
                row = self.store.attempts.get(attempt_id)
            except NotFound:
                return False
        # An exit that is not an object was not reported by the attempt; ``_ended`` fails its run.
        reported = row.exit if row.exited_at is not None else None
        if not isinstance(reported, dict) or reported.get("synthetic"):
            return False
        self._self_reported_exits.add(attempt_id)
        return True

    def _why_no_cluster(self, members: Mapping[str, Member]) -> str | None:
        if self.cluster.has_no_gpus or any(member.usable for member in members.values()):
            return None
        state, message = self.cluster.state()
        why = "waits for the cluster" + (" to start" if state == "starting" else "")
        return f"{why} ({message})" if message else why


def _may_be_preempted(row: Attempt, run: RunRow | None) -> bool:
    return (
        run is not None
        and run.attempt == row.number
        and may_be_preempted(
            situation(run),
            preemptible=bool(run.spec.get("preemptible")),
            used=run.preemptions,
            allowed=int(run.spec["retries"]["preemption"]),
            starting=run.evaluates is not None,  # It has no work to lose.
        )
    )


def _exited(active: Mapping[str, RunRow], holders: Iterable[Active]) -> dict[str, str]:
    holding = {holder.run_id for holder in holders}
    return {
        run.id: run.sweep_id
        for run in active.values()
        if run.sweep_id is not None and run.id not in holding
    }


def _is_current(row: Attempt, active: Mapping[str, RunRow]) -> bool:
    run = active.get(row.run_id)
    return run is not None and run.attempt == row.number


def _orphans(known: set[str], members: Iterable[Member]) -> Iterable[Active]:
    for member in members:
        for attempt_id, listed in member.attempts.items():
            if listed.state is AttemptPhase.LIVE and attempt_id not in known:
                share = NodeShare(member.name, listed.gpus)
                yield Active(attempt_id, (share,), name=f"{attempt_id} (no open attempt)")
