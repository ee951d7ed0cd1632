"""The routes of ``/api/v1``, one file a resource."""

from __future__ import annotations

from fastapi import APIRouter

from lehr_api.routes import (
    alerts,
    archive,
    attempts,
    checkpoints,
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
    queue,
    report,
    rollouts,
    runs,
    seeds,
    stream,
    sweeps,
    system,
    tags,
    transfers,
    values,
    views,
    wandb,
    webhooks,
)

router = APIRouter()
for _resource in (
    health,
    runs,
    forks,
    code,
    seeds,
    tags,
    notes,
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
    system,
    queue,
    report,
    presets,
    webhooks,
    views,
    stream,
    attempts,
):
    router.include_router(_resource.router)
router.include_router(archive.sweeps)
