"""List, set and remove the quotas of projects."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lehr import actor
from lehr.errors import UserError
from lehr.schemas.quotas import QuotasView, QuotaView
from lehr.specs.run import NAME

if TYPE_CHECKING:
    from lehr.services.context import Context
    from lehr.store.tables import QuotaRow


def list_quotas(context: Context) -> QuotasView:
    return QuotasView(quotas=[_view(row) for row in context.store.quotas.all()])


def set_quota(context: Context, project: str, gpus: int) -> QuotaView:
    """Set the quota of a project. Running runs go on, also beyond it.

    Raises:
        UserError: the name is not that of a project.
    """
    if not re.fullmatch(NAME, project):
        raise UserError(
            f"{project!r} is not the name of a project.",
            hint="Up to 100 letters, digits, dots, dashes and underscores: ablations.",
        )
    row = context.store.quotas.put(project, gpus, actor=actor.current())
    context.dispatcher.wake()
    return _view(row)


def remove_quota(context: Context, project: str) -> QuotaView:
    """Remove the quota of a project: its runs have no limit.

    Raises:
        NotFound: it has none.
    """
    row = context.store.quotas.remove(project)
    context.dispatcher.wake()
    return _view(row)


def _view(row: QuotaRow) -> QuotaView:
    return QuotaView(
        project=row.project, gpus=row.gpus, changed_at=row.changed_at, changed_by=row.changed_by
    )
