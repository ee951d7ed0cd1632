"""Views of what nodes did over time, also cut to the attempts of a run."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from lehr.cluster.launch_spec import placement_of
from lehr.schemas.system import (
    AttemptSystem,
    GpuHistory,
    HostHistory,
    RunSystem,
    SystemHistory,
)
from lehr.system_history.history import GPU, HOST, SystemHistoryFiles

if TYPE_CHECKING:
    from lehr.store import Store
    from lehr.store.tables import Attempt, RunRow
    from lehr.system_history.ring import RingSpan


class SystemPresenter:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._history = SystemHistoryFiles(store.home)

    def node(
        self,
        node: str,
        first: float,
        last: float,
        *,
        points: int,
        gpus: Collection[int] | None = None,
    ) -> SystemHistory:
        """Return a node's measurements; ``gpus``: only of these."""
        span = self._history.read(node, first, last, points=points, now=self._store.clock())
        return history_view(node, span, gpus)

    def run(self, run: RunRow, *, attempt: int | None, points: int) -> RunSystem:
        """Return the measurements of the nodes that a run's attempts ran on, while they ran."""
        return RunSystem(
            run_id=run.id,
            attempts=[
                AttemptSystem(number=one.number, nodes=self._of_attempt(one, points))
                for one in self._store.attempts.of_run(run.id)
                if attempt in {None, one.number}
            ],
        )

    def _of_attempt(self, attempt: Attempt, points: int) -> list[SystemHistory]:
        first = attempt.dispatched_at or attempt.created_at
        last = attempt.exited_at or (
            self._store.clock() if attempt.open else attempt.last_heartbeat_at or first
        )
        return [
            self.node(share.node, first, last, points=points, gpus=share.gpus)
            for share in placement_of(attempt)
        ]


def history_view(node: str, span: RingSpan, gpus: Collection[int] | None) -> SystemHistory:
    columns = {name: values for name, values in span.columns.items() if any_known(values)}
    indices = sorted({int(name[3:].split(".")[0]) for name in columns if name.startswith("gpu")})
    return SystemHistory(
        node=node,
        step_s=span.step_s,
        times=span.times,
        host=HostHistory(**{name: columns[name] for name in HOST if name in columns}),
        gpus=[
            GpuHistory(
                index=index,
                **{
                    name: columns[f"gpu{index}.{name}"]
                    for name in GPU
                    if f"gpu{index}.{name}" in columns
                },
            )
            for index in indices
            if gpus is None or index in gpus
        ],
    )


def any_known(values: list[float | None]) -> bool:
    return any(value is not None for value in values)
