"""Helpers for tests of the mirror in W&B: a controller beside an API, and waits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lehr.app.wandb_mirror.controller import MirrorController
from lehr_testing.api import RUN_SPEC, Api, api_client
from lehr_testing.waiting import until


@contextmanager
def mirrored_home(home: Path, **environment: str | None) -> Iterator[Any]:
    """An API whose environment has these variables (None: not set); its client is at ``.client``."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.delenv(name, raising=False) if value is None else patch.setenv(name, value)
        with api_client(home) as (api, client):
            api.client = client
            yield api


@contextmanager
def mirroring(api: Api) -> Iterator[MirrorController]:
    assert api.services is not None
    controller = MirrorController(api.store, api.services.presenter, api.settings.home, every_s=0.1)
    controller.start()
    try:
        yield controller
    finally:
        controller.stop()


def submitted(api: Any, request: dict[str, Any], **changes: Any) -> str:
    """A run whose spec has the request (``tracking``) and the changes; its id."""
    answer = api.client.post("/api/v1/runs", json={"spec": {**RUN_SPEC, **request, **changes}})
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


def until_mirrored(api: Any, run_id: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        status = api.client.get(f"/api/v1/runs/{run_id}").json()["wandb"]
        return status if status and status["state"] == "done" else None

    return until(look, within_s=120, what=f"the mirror of {run_id}")


def assert_equal_series(
    api: Api, run_id: str, series: Callable[[str], tuple[list[int], list[float]]]
) -> None:
    """``series``: a metric's steps and values as W&B has them; NaN equals NaN."""
    infos = api.store.series.metrics(run_id)
    assert infos
    for info in infos:
        ours = api.store.series.read(run_id, info.name, exact=True)
        at, values = series(info.name)
        assert at == ours.step, info.name
        assert all(
            a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(values, ours.y, strict=True)
        ), info.name
