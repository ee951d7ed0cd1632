"""The client's methods for quotas."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from lehr.schemas.quotas import QuotasView, QuotaView

if TYPE_CHECKING:
    from lehr.client.transport import Transport


class QuotaMethods:
    """A part of ``lehr.client.Client``."""

    transport: Transport

    def quotas(self) -> list[QuotaView]:
        """Return the quotas by project. A project without one has no limit."""
        return QuotasView.model_validate_json(self.transport.get("/quotas")).quotas

    def set_quota(self, project: str, gpus: int) -> QuotaView:
        """Set the most GPUs that the project's runs hold at a time. Needs the role admin.

        Running runs go on, also beyond it.
        """
        path = f"/quotas/{quote(project, safe='')}"
        return QuotaView.model_validate_json(self.transport.put(path, {"gpus": gpus}))

    def remove_quota(self, project: str) -> QuotaView:
        """Remove the quota of a project: its runs have no limit. Needs the role admin."""
        answer = self.transport.delete(f"/quotas/{quote(project, safe='')}")
        return QuotaView.model_validate_json(answer)
