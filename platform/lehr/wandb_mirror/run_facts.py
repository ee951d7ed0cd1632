"""Convert a run's data for W&B: config, tags, summary, exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lehr import home as homes
from lehr.control.lifecycle import RunState
from lehr.presenters import checkpoints
from lehr.wandb_mirror.state_files import AttemptFeed, CheckpointFeed, Closing, RunFeed
from lehr_trainer.contract.layout import EVENTS

if TYPE_CHECKING:
    from pathlib import Path

    from lehr.presenters import Presenter
    from lehr.schemas.runs import RunDetail
    from lehr.store import Store
    from lehr.store.tables import RunRow

_INTERRUPTED = 130
"""The exit code of a program that was interrupted."""


def run_feed(store: Store, presenter: Presenter, home: Path, run_id: str) -> RunFeed:
    """Return all that the mirror needs of a run besides its streams."""
    run = store.runs.get(run_id)
    attempts = [
        AttemptFeed(
            number=attempt.number,
            size=store.streams.sizes(attempt.id).get(EVENTS, 0),
            open=attempt.open,
        )
        for attempt in store.attempts.of_run(run_id)
    ]
    sweep = store.sweeps.find(run.sweep_id).name if run.sweep_id else None
    feed = RunFeed(
        run_id=run.id,
        name=run.name,
        project=run.project,
        sweep=sweep,
        tags=run.tags,
        notes=run.spec.get("notes") or "",
        state=run.state,
        config=_config(run, sweep, store.runs.provenance(run)),
        attempts=attempts,
        # Read after the sizes, so it is never older than the streams up to those sizes.
        spans={span.attempt: span.limit for span in store.series.spans(run_id)},
    )
    if not feed.resting:
        return feed
    detail = presenter.runs.detail(run)
    return feed.model_copy(update={"closing": _closing(store, home, run, detail)})


def _config(run: RunRow, sweep: str | None, provenance: dict[str, Any]) -> dict[str, Any]:
    """Return the training's config and its project. Without ``env``, which may contain secrets."""
    git = provenance.get("git") or {}
    lehr = {
        "run": run.id,
        "sweep": sweep,
        "project": run.project,
        "submitted_by": run.submitted_by,
        "forked_from": run.forked_from,
        "commit": git.get("commit"),
        "code": run.stored.code_digest,
    }
    return {"train": run.stored.config, "resources": run.stored.resources, "lehr": lehr}


def _closing(store: Store, home: Path, run: RunRow, detail: RunDetail) -> Closing:
    summary: dict[str, Any] = {info.name: info.last for info in store.series.metrics(run.id)}
    summary |= {
        "lehr/state": run.state,
        "lehr/reason": run.reason,
        "lehr/attempts": run.attempt,
        "lehr/alerts": detail.alerts,
        "lehr/device": detail.device,
        "lehr/parameters": detail.parameters,
    }
    return Closing(
        summary={name: value for name, value in summary.items() if value is not None},
        checkpoints=[
            CheckpointFeed(
                step=point.step,
                path=point.path,
                copy_url=point.copy_url if point.copy_state == "there" else None,
                size_bytes=point.size_bytes,
                digest=point.digest,
                val_loss=point.val_loss,
                best=point.best,
                latest=point.latest,
            )
            for point in checkpoints(store, run)
            if point.removed_at is None or point.copy_state == "there"
        ],
        run_directory=str(homes.runs_dir(home) / run.id),
        exit_code=_exit_code(run, detail),
    )


def _exit_code(run: RunRow, detail: RunDetail) -> int:
    """Return 0 if the result is valid: completed, pruned, paused so far."""
    if run.state == RunState.CANCELLED:
        return _INTERRUPTED
    if run.state != RunState.FAILED:
        return 0
    code = detail.attempts[-1].exit_code if detail.attempts else None
    return code if code and 0 < code < 256 else 1
