"""Start and stop attempts through the agents of their nodes."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import yaml

from lehr.base import killpoints, own_logs
from lehr.base.signed_tokens import AttemptTokens
from lehr.cluster.bridge_client import AgentRefused, BridgeClient
from lehr.cluster.heartbeats import GATHER_S, Alarm, HeartbeatTable
from lehr.cluster.membership import Cluster
from lehr.cluster.ray_ports import RENDEZVOUS
from lehr.control import reconcile as rc
from lehr.control.queue import StartRun
from lehr.control.resources import NodeShare, Placement
from lehr.control.saved_points import Rewound, skipped_through
from lehr.errors import LehrError
from lehr.node.torchrun import Gang
from lehr.store import Store
from lehr.store.records.checkpoints import THERE
from lehr.store.secret_store import SecretStore
from lehr.store.tables import Attempt, CheckpointRow, RunRow
from lehr_trainer.contract import layout, protocol
from lehr_trainer.contract.orders import LaunchNote, Orders

PROGRAMS = "lehr.node.programs"  # The module that supervises a program of the user's own.


@dataclass(frozen=True)
class LaunchSettings:
    runs_dir: Path
    data_dir: Path
    server_url: str
    trainer: str
    secrets: SecretStore
    own_node: str | None = None  # The node of the server's machine, if it is part of the cluster.


def placement_of(attempt: Attempt) -> Placement:
    return tuple(NodeShare(str(p["node"]), tuple(p["gpus"])) for p in attempt.placement)


def to_fetch(
    run_id: str, resume_from: str | None, saved: Sequence[CheckpointRow]
) -> list[dict[str, Any]]:
    """Return where a node without the pinned checkpoint can fetch it.

    First the copy of the pinned checkpoint, then copies of the run's older ones. Empty if there are
    no copies.
    """
    pinned = next((c for c in saved if resume_from and resume_from.endswith(c.path)), None)
    if resume_from is None or pinned is None:
        return []
    candidates = [{"path": resume_from, "url": _copy_of(pinned)}]
    if pinned.run_id == run_id:
        older = [c for c in saved if (c.attempt, c.step) < (pinned.attempt, pinned.step)]
        older.sort(key=lambda c: (c.attempt, c.step), reverse=True)
        candidates += [{"path": c.path, "url": _copy_of(c)} for c in older]
    return candidates if any(candidate["url"] for candidate in candidates) else []


def _copy_of(point: CheckpointRow) -> str | None:
    return point.copy_url if point.copy_state == THERE else None


def launches(
    run: RunRow,
    attempt: Attempt,
    token: str,
    settings: LaunchSettings,
    addresses: dict[str, str],
    saved: Sequence[CheckpointRow] = (),
) -> dict[str, dict[str, Any]]:
    """Return the launch spec for each node.

    ``saved`` are the checkpoints of the run that it continues: its own, or another's.

    Raises:
        NotFound: the run names a secret that was removed.
    """
    hidden = settings.secrets.values(run.spec.get("secrets") or {})
    run_env: dict[str, str] = run.stored.env
    program, code = run.stored.program, run.spec.get("code") or {}
    own = {"LEHR_DATA": str(settings.data_dir)}
    if program.get("data"):
        own["LEHR_PROJECT"] = code["root"]
    run_dir = settings.runs_dir / run.id
    attempt_dir = layout.attempt_dir(run_dir, attempt.number)
    placement = placement_of(attempt)
    # It depends only on the attempt.
    port = RENDEZVOUS[int.from_bytes(attempt.id.encode()[-6:], "big") % len(RENDEZVOUS)]
    note = LaunchNote(
        run_id=run.id,
        attempt=attempt.number,
        resume_from=attempt.resume_from,
        resume="pinned" if attempt.resume_from is not None else "never",
        skip_through=skipped_through(cast("Rewound | None", run.rewound), attempt.resume_from),
        record=record_of(run, attempt),
        # A submission looks for it if every training runs on this machine.
        corpus_checked=set(addresses) == {settings.own_node},
    )
    # An order that an earlier attempt had is none for this one.
    known = Orders(checkpoint_seq=run.checkpoint_seq)
    files: dict[str, str] = {
        layout.CONFIG: _config(run),
        f"{attempt_dir.name}/{layout.LAUNCH}": note.model_dump_json(),
        f"{attempt_dir.name}/{layout.ORDERS}": known.model_dump_json(),
    }
    specs = {}
    for rank, share in enumerate(placement):
        gang = Gang(
            per_node=max(1, len(share.gpus)),
            nodes=len(placement),
            node_rank=rank,
            master_address=addresses.get(placement[0].node, "127.0.0.1"),
            master_port=port,
        )
        specs[share.node] = {
            "attempt_id": attempt.id,
            "run_id": run.id,
            "token": token,
            "server_url": settings.server_url,
            "run_dir": str(run_dir),
            "attempt_dir": str(attempt_dir),
            "trainer": PROGRAMS if program else settings.trainer,
            "program": bool(program),
            "protocols": [protocol.OLDEST, protocol.VERSION],
            "stop_grace_s": run.stored.stop_grace_s,
            "code": code.get("digest"),
            "environment": code.get("environment"),
            "gang": gang._asdict(),
            "gpus": list(share.gpus),
            "env": run_env | own | {"LEHR_NODE_NAME": share.node},
            # The agent keeps these apart from the rest: see lehr.node.attempt_dir.
            "secrets": hidden,
            "files": files,
            # The first node writes checkpoints; any other node may lack the one to resume from.
            "upload": run.stored.upload if rank == 0 else None,
            "fetch": to_fetch(run.id, attempt.resume_from, saved),
        }
    return specs


def record_of(run: RunRow, attempt: Attempt) -> dict[str, Any]:
    """Return what ``lehr db rebuild`` makes a lost record of, without values of variables: they may
    be secrets, and others may read the folder of runs.
    """
    variables: dict[str, str] = run.stored.env
    current = {"env": {}, "tags": run.tags, "notes": run.note, "priority": run.priority}
    return {
        "spec": {**run.spec, **current},
        "variables": sorted(variables),
        "placement": attempt.placement,
        "created_at": run.created_at,
        "submitted_by": run.submitted_by,
        "forked_from": run.forked_from,
        "fork_of": run.resume_from,
        "evaluates": run.evaluates,
    }


def _config(run: RunRow) -> str:
    """Return the resolved config, with the digest of the code that it is trained by."""
    text: str = yaml.safe_dump(run.stored.config, sort_keys=False, allow_unicode=True, width=100)
    digest = run.stored.code_digest
    return f"# code: {digest}\n{text}" if digest else text


log = logging.getLogger(__name__)

STOP_AGAIN_S = 5.0  # Seconds before the same call to stop an attempt is repeated.


@dataclass(eq=False, repr=False)
class Launcher:
    store: Store
    cluster: Cluster
    bridge: BridgeClient
    heartbeats: HeartbeatTable
    tokens: AttemptTokens
    settings: LaunchSettings
    alarm: Alarm

    def __post_init__(self) -> None:
        self._guard = threading.Lock()
        self._answers: list[tuple[str, str, BaseException | None]] = []
        self._answered_all: set[str] = set()
        self._asked: dict[tuple[str, str, rc.StopLevel], float] = {}

    def begin(self, start: StartRun) -> None:
        """Record the attempt, then start it: agents only see attempts that are recorded."""
        run = self.store.runs.get(start.run_id)
        attempt_id = f"{run.id}-{run.attempt + 1}"
        attempt = self.store.transitions.begin_attempt(
            run.id,
            placement=[{"node": share.node, "gpus": list(share.gpus)} for share in start.placement],
            resume_from=start.resume_from,
            token_sha256=self.tokens.sha256(attempt_id),
            message=start.message,
        )
        if attempt is not None:
            assert attempt.id == attempt_id
            self.launch(run, attempt)

    def launch(self, run: RunRow, attempt: Attempt) -> None:
        """Call the agents of its nodes. Repeating the call is harmless.

        What becomes of it is noted for the next tick, which decides what follows.
        """
        heartbeat = self.heartbeats.of(attempt.id)
        addresses = {name: member.address for name, member in self.cluster.members().items()}
        token = self.tokens.token(attempt.id)
        try:
            saved = self._saved(run, attempt)
            orders = launches(run, attempt, token, self.settings, addresses, saved)
        except (LehrError, ValueError) as error:
            heartbeat.start_impossible = error
            self.alarm.within(GATHER_S)
            return
        heartbeat.in_flight += len(placement_of(attempt))
        for node, launch in orders.items():
            killpoints.reached("server: before a start request is sent")
            future = self.bridge.request("start", node, launch=launch)
            killpoints.reached("server: after a start request is sent")
            gpus = tuple(launch["gpus"])
            future.add_done_callback(partial(self._answered, node, attempt.id, gpus))

    def _saved(self, run: RunRow, attempt: Attempt) -> list[CheckpointRow]:
        if attempt.resume_from is None:
            return []
        another = Path(attempt.resume_from).is_absolute()
        source = run.forked_from if another else run.id
        return self.store.checkpoints.of_run(source) if source is not None else []

    def _answered(
        self, node: str, attempt_id: str, gpus: tuple[int, ...], done: Future[Any]
    ) -> None:
        """Handle an answer. Called in the bridge's thread, in the order in which agents acted."""
        error = done.exception()
        if error is None:
            killpoints.reached("server: after a start is confirmed")
            self.cluster.note_started(node, attempt_id, gpus)
        with self._guard:
            self._answers.append((attempt_id, node, error))
        self.alarm.within(GATHER_S)

    def note_answers(self) -> None:
        """Count the answers to start calls that have come since the last call."""
        with self._guard:
            answers, self._answers = self._answers, []
        for attempt_id, node, error in answers:
            heartbeat = self.heartbeats.of(attempt_id)
            heartbeat.in_flight -= 1
            if error is not None:
                fields = own_logs.of_attempt(attempt_id)
                log.warning("start of %s: %s", attempt_id, error, extra=fields)
                # Only a rejection by an agent counts; a broken bridge is no fault of the node.
                if isinstance(error, AgentRefused):
                    heartbeat.rejected_starts += 1
                    heartbeat.rejection = str(error), node
                heartbeat.start_failed = self.heartbeats.now()
            else:
                heartbeat.started_on.add(node)
            if heartbeat.in_flight == 0:
                self._answered_all.add(attempt_id)

    def answered(self) -> list[str]:
        """Return the attempts whose start calls are all answered, and not recorded yet."""
        return sorted(self._answered_all)

    def record_start(self, attempt_id: str) -> None:
        """Record that the attempt is started, if every one of its nodes has confirmed it."""
        heartbeat = self.heartbeats.of(attempt_id)
        if self._is_started(attempt_id, heartbeat.started_on):
            self.store.attempts.update(attempt_id, dispatched_at=self.store.clock())
            # A call may wait long for its node: only now is a heartbeat to be expected.
            heartbeat.first_known = self.heartbeats.now()
        self.forget_answers(attempt_id)

    def forget_answers(self, attempt_id: str) -> None:
        """Do not try again to record the start of the attempt."""
        self._answered_all.discard(attempt_id)

    def _is_started(self, attempt_id: str, nodes: Collection[str]) -> bool:
        if not nodes:
            return False
        placement = placement_of(self.store.attempts.get(attempt_id))
        return all(share.node in nodes for share in placement)

    def stop(self, action: rc.StopAttempt) -> None:
        """Stop it through its node's agent. Heartbeats carry the same order in case Ray is down."""
        self.heartbeats.of(action.attempt_id).stop_level = (action.stop_level, action.reason)
        now = self.heartbeats.now()
        for node in action.nodes:
            key = (action.attempt_id, node, action.stop_level)
            if (wait := self._asked.get(key, -math.inf) + STOP_AGAIN_S - now) > 0:
                self.alarm.within(wait)
                continue
            self._asked[key] = now
            self.alarm.within(STOP_AGAIN_S)
            killpoints.reached("server: before a stop request is sent")
            self.bridge.request(
                "stop",
                node,
                attempt_id=action.attempt_id,
                stop_level=action.stop_level.value,
                reason=action.reason,
            )
        self._asked = {k: at for k, at in self._asked.items() if now - at < 10 * STOP_AGAIN_S}

    def record_exit(self, attempt_id: str, note: Mapping[str, Any]) -> None:
        self.store.attempts.update(attempt_id, exit=dict(note), exited_at=self.store.clock())
        self.alarm.within(GATHER_S)
