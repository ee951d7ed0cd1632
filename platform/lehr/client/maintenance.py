"""The client's methods for maintenance windows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lehr.schemas.maintenance import MaintenancesView, MaintenanceView

if TYPE_CHECKING:
    from lehr.client.transport import Transport


class MaintenanceMethods:
    """A part of ``lehr.client.Client``."""

    transport: Transport

    def maintenance(self) -> list[MaintenanceView]:
        """Return the maintenance windows, the next one first."""
        answer = self.transport.get("/maintenance")
        return MaintenancesView.model_validate_json(answer).windows

    def add_maintenance(
        self,
        starts_at: float,
        duration_s: float,
        *,
        node: str | None = None,
        repeat: str | None = None,
        note: str = "",
    ) -> MaintenanceView:
        """Declare a time in which nodes are not used. Needs the role admin.

        Args:
            starts_at: when it begins, in seconds since the epoch.
            duration_s: how long it is.
            node: name of the node; None: all nodes.
            repeat: daily or weekly; None: once.
            note: shown in the reasons of runs that wait.
        """
        body = {
            "starts_at": starts_at,
            "duration_s": duration_s,
            "node": node,
            "repeat": repeat,
            "note": note,
        }
        return MaintenanceView.model_validate_json(self.transport.post("/maintenance", body))

    def remove_maintenance(self, window_id: int) -> MaintenanceView:
        """Remove a window; an open one ends at once. Needs the role admin."""
        answer = self.transport.delete(f"/maintenance/{window_id}")
        return MaintenanceView.model_validate_json(answer)
