"""Mirror a run in Weights & Biases, from its first event on, also after it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lehr.errors import UserError
from lehr.services.archive import refuse_deleted
from lehr.store.changes import Change
from lehr.wandb_mirror import preflight
from lehr.wandb_mirror.controller import request_for

if TYPE_CHECKING:
    from lehr.schemas.runs import RunDetail
    from lehr.services.context import Context
    from lehr.specs.tracking import WandbTracking
    from lehr.store.tables import RunRow


def mirror_run(context: Context, run: RunRow, settings: WandbTracking) -> RunDetail:
    """Request a mirror in place of the spec's; with mode ``off``, mirroring ends.

    Raises:
        UserError: this server cannot make such a mirror.
        Conflict: the run was deleted.
    """
    lack = preflight.lack(settings.mode)
    if lack is not None:
        raise UserError(f"mode is {settings.mode}, but {lack[0]}.", hint=lack[1])
    refuse_deleted(context, run)
    store = context.store
    request_for(context.home, run.id, settings, at=store.clock())
    store.notify(Change("run", run.id))
    return context.presenter.runs.detail(store.runs.get(run.id))
