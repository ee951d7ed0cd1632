"""The watch over live launches: an account that used more than its limits has its runs paused."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from lehr.errors import LehrError
from lehr.mcp_server.budget import AgentBudget, pause_all

if TYPE_CHECKING:
    from lehr.mcp_server.ledger import Ledger

CHECK_EVERY_S = 60.0
_log = logging.getLogger("lehr.mcp")


class BudgetWatch:
    """Watches one account."""

    def __init__(self, ledger: Ledger, budget: AgentBudget) -> None:
        self._ledger = ledger
        self._budget = budget

    def watch(self, stop: threading.Event, every_s: float = CHECK_EVERY_S) -> None:
        """Pause the account's runs once they have used more than its limits, until ``stop``."""
        while not stop.wait(every_s):
            try:
                self.pause_overrun()
            except LehrError as error:
                _log.warning("the budget could not be checked: %s", error.message)
            except Exception:  # noqa: BLE001 - logged; a fault must not end the watch
                _log.exception("the budget could not be checked")

    def pause_overrun(self) -> list[str]:
        """Pause the account's runs if it has used more than its limits; return their ids."""
        with self._ledger.opened() as book:
            runs = self._budget.overrun(book)
            self._ledger.save(book)
        failed = pause_all(runs)
        for run in runs:
            _log.warning("over the budget: %s %s", run.name, failed.get(run.id, "paused"))
        return [run.id for run in runs if run.id not in failed]
