"""The routes of ``/api/v1``, one file a resource."""

from __future__ import annotations

from fastapi import APIRouter

from lehr_api.routes import (
    admin,
    alerts,
    archive,
    attempts,
    checkpoints,
    checks,
    cluster,
    code,
    events,
    export,
    forks,
    health,
    logs,
    metrics,
    notes,
    presets,
    priority,
    queue,
    report,
    rollouts,
    runs,
    seeds,
    stream,
    sweeps,
    tags,
    transfers,
    values,
    views,
    wandb,
)

router = APIRouter()
for _resource in (
    health,
    runs,
    checks,
    forks,
    code,
    seeds,
    tags,
    notes,
    priority,
    wandb,
    archive,
    metrics,
    values,
    export,
    logs,
    events,
    alerts,
    checkpoints,
    sweeps,
    transfers,
    rollouts,
    cluster,
    queue,
    report,
    presets,
    admin,
    views,
    stream,
    attempts,
):
    router.include_router(_resource.router)
router.include_router(archive.sweeps)
