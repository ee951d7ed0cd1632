"""The MCP server: its tools, its resources, and its first instructions to a model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp.server import MCPServer
from mcp_types import ToolAnnotations

from lehr import __version__
from lehr.mcp_server.budget import AgentBudget, Limits
from lehr.mcp_server.errors import tool
from lehr.mcp_server.estimates import LaunchEstimates
from lehr.mcp_server.launching import Launching
from lehr.mcp_server.ledger import Ledger
from lehr.mcp_server.reading import Reading
from lehr.mcp_server.resources import add_resources
from lehr.mcp_server.run_reading import RunReading
from lehr.mcp_server.watch import BudgetWatch

if TYPE_CHECKING:
    from lehr.client import Client

GENERAL_READS = (
    "overview", "list_runs", "show_run", "list_sweeps", "show_sweep", "list_rollouts",
    "show_rollout", "compare", "queue", "cluster", "plan", "transfer", "report",
    "example_spec",
)  # fmt: skip
RUN_READS = (
    "metrics", "history", "logs", "search_logs", "events", "checkpoints", "code", "code_diff",
    "diagnose",
)  # fmt: skip
READS = (*GENERAL_READS, *RUN_READS)
LAUNCHES = (
    "submit_run", "launch_sweep", "launch_rollout", "retry", "resume", "extend_sweep",
    "repeat_seeds", "fork",
)  # fmt: skip
STOPS = ("cancel", "pause")
_INSTRUCTIONS = """\
Lehr runs pretraining experiments: runs, sweeps of runs, and rollouts (a run in stages with gates).
Begin with overview. Names and ids both work as ref. Answers are cut short; read on with limit,
offset, cursor, or a narrower range. To find a learning rate: example_spec, plan, launch_sweep,
then show_sweep, whose verdict, notes and next_trials state what is known and what to try next.
To explain a failed run: diagnose, then search_logs and events. A difference is real only if
the verdicts of compare state it: seeds alone change a loss."""
_READ_ONLY = "\nThis server is read-only: it has no tools that launch or stop."
_MAY_LAUNCH = """
Launches count against a budget, shown by the tool budget. A launch over it is refused, and runs are
paused if they use more than it. Give each launch a request_id of your own; repeat it to be safe."""


@dataclass(frozen=True)
class AgentSettings:
    """What a person allows."""

    may_launch: bool = False
    may_stop_others: bool = False
    account: str = "default"
    limits: Limits = field(default_factory=Limits)
    price: float | None = None
    """Dollars per GPU-hour; None: of Lehr's table of GPUs."""


class LehrMcp:
    """The tools and resources for one Lehr server."""

    def __init__(self, client: Client, ledgers: Path, settings: AgentSettings) -> None:
        """``ledgers``: the folder of the accounts."""
        self.settings = settings
        estimates = LaunchEstimates(client, price=settings.price)
        reading = Reading(client, estimates)
        ledger = Ledger(ledgers, settings.account, client.server)
        budget = AgentBudget(client, settings.limits, price=settings.price)
        self._watch = BudgetWatch(ledger, budget)
        self.launching = Launching(
            client,
            ledger,
            budget,
            estimates,
            may_stop_others=settings.may_stop_others,
        )
        self.server = MCPServer(
            "lehr",
            title="Lehr",
            version=__version__,
            instructions=_INSTRUCTIONS + (_MAY_LAUNCH if settings.may_launch else _READ_ONLY),
            log_level="WARNING",
        )
        self._add(reading, GENERAL_READS, read_only_hint=True)
        self._add(RunReading(client), RUN_READS, read_only_hint=True)
        if settings.may_launch:
            self._add(self.launching, ("budget",), read_only_hint=True)
            self._add(self.launching, LAUNCHES, idempotent_hint=True, destructive_hint=False)
            self._add(self.launching, STOPS, idempotent_hint=True, destructive_hint=True)
        add_resources(self.server, client, reading)

    @property
    def tools(self) -> tuple[str, ...]:
        """Return the names of its tools."""
        return (*READS, "budget", *LAUNCHES, *STOPS) if self.settings.may_launch else READS

    def serve(self) -> None:
        """Serve one client on standard input and output, until it closes them."""
        with self._watched():
            self.server.run("stdio")

    @contextmanager
    def _watched(self) -> Iterator[None]:
        if not self.settings.may_launch:
            yield
            return
        stop = threading.Event()
        threading.Thread(target=self._watch.watch, args=(stop,), daemon=True).start()
        try:
            yield
        finally:
            stop.set()

    def _add(self, of: Any, names: tuple[str, ...], **hints: bool) -> None:
        for name in names:
            method: Callable[..., Any] = getattr(of, name)
            self.server.add_tool(
                tool(method),
                name=name,
                annotations=ToolAnnotations(open_world_hint=False, **hints),
                structured_output=False,
            )
