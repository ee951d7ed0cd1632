"""The launch spec of an attempt: everything that an agent and a shim need, as one JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lehr.cluster.ray_ports import RENDEZVOUS
from lehr.control.resources import NodeShare, Placement
from lehr.node.torchrun import Gang
from lehr.store.records.checkpoints import THERE
from lehr.store.secret_store import SecretStore
from lehr.store.tables import Attempt, CheckpointRow, RunRow
from lehr_trainer.contract import layout, protocol
from lehr_trainer.contract.orders import LaunchNote, Orders

PROGRAMS = "lehr.node.programs"
"""The module that supervises a program of the user's own."""


@dataclass(frozen=True)
class LaunchSettings:
    """Settings shared by every attempt of this server."""

    runs_dir: Path
    data_dir: Path
    server_url: str
    trainer: str
    secrets: SecretStore
    own_node: str | None = None
    """The node of the server's machine, if it is part of the cluster."""


def placement_of(attempt: Attempt) -> Placement:
    return tuple(NodeShare(str(p["node"]), tuple(p["gpus"])) for p in attempt.placement)


def placement_json(placement: Placement) -> list[dict[str, Any]]:
    return [{"node": share.node, "gpus": list(share.gpus)} for share in placement]


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
    port = RENDEZVOUS[_spread(attempt.id) % len(RENDEZVOUS)]
    note = LaunchNote(
        run_id=run.id,
        attempt=attempt.number,
        resume_from=attempt.resume_from,
        resume="pinned" if attempt.resume_from is not None else "never",
        record=_record(run, attempt),
        # A submission looks for it if every training runs on this machine.
        corpus_checked=set(addresses) == {settings.own_node},
    )
    files: dict[str, str] = {
        layout.CONFIG: _config(run),
        f"{attempt_dir.name}/{layout.LAUNCH}": note.model_dump_json(),
        f"{attempt_dir.name}/{layout.ORDERS}": Orders().model_dump_json(),
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
            "env": run_env | own,
            # The agent keeps these apart from the rest: see lehr.node.attempt_dir.
            "secrets": hidden,
            "files": files,
            # The first node writes checkpoints; any other node may lack the one to resume from.
            "upload": run.stored.upload if rank == 0 else None,
            "fetch": to_fetch(run.id, attempt.resume_from, saved),
        }
    return specs


def _record(run: RunRow, attempt: Attempt) -> dict[str, Any]:
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
    }


def _config(run: RunRow) -> str:
    """Return the resolved config, with the digest of the code that it is trained by."""
    text: str = yaml.safe_dump(run.stored.config, sort_keys=False, allow_unicode=True, width=100)
    digest = run.stored.code_digest
    return f"# code: {digest}\n{text}" if digest else text


def _spread(text: str) -> int:
    """Return a number that depends only on the attempt."""
    return int.from_bytes(text.encode()[-6:], "big")
