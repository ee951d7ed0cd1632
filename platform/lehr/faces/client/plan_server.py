"""What a server adds to plans: the GPUs of its cluster, and the speeds of earlier runs.

Without a server, plans work from the spec and published figures alone.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property

from lehr.analysis.plan import (
    RunPlan,
    SpecPlan,
    known_runs,
    plan_run,
    plan_spec,
    refuse_if_impossible,
    refuse_without_space,
)
from lehr.analysis.plan_time import SIZES, Measured, differences, traits
from lehr.analysis.replaced_parts import BuiltParts
from lehr.base.bundle import OPENED
from lehr.base.names import is_type
from lehr.control.resources import cpu_places
from lehr.errors import LehrError, PlanRefused
from lehr.faces.client import Client, Run
from lehr.schemas.cluster import ClusterView
from lehr.specs import Resources, RunSpec, Spec
from lehr_trainer.planning.hardware import find_gpu

_RUNS = 100
"""Newest completed runs that a plan looks at."""
_READ = 20
"""Runs whose configs are read for a spec: those of its size, tokens and GPUs first."""
_FEWEST = 10  # Steps of a run whose speed counts: the first are slow.
_MEASURED = 5
"""Runs of another size whose speeds are read for a spec."""


class PlanServer:
    """Reads from a server once, for the plans of all runs of a command."""

    def __init__(self, connect: Callable[[], Client]) -> None:
        """``connect``: returns a client. If it raises, plans do without a server."""
        self._connect = connect
        self._speeds: dict[str, tuple[float, float | None]] = {}
        self._traits: dict[str, dict[str, str] | None] = {}

    @cached_property
    def cluster(self) -> ClusterView | None:
        """The cluster, if a server answers and its cluster is up."""
        try:
            cluster = self._connect().cluster()
        except LehrError:
            return None
        return cluster if cluster.state == "up" and cluster.nodes else None

    def places(self, needs: Iterable[Resources]) -> int | None:
        """Return how many such runs the cluster trains at once, for the need with fewest places.

        None if it has no place, or is unknown.
        """
        if self.cluster is None:
            return None
        return min(places(need, self.cluster) for need in set(needs)) or None

    def plan(
        self,
        spec: Spec,
        *,
        price: float | None = None,
        built: Callable[[RunSpec], BuiltParts | None] = lambda _run: None,
    ) -> tuple[SpecPlan, PlanRefused | None]:
        """Plan a run, sweep or rollout for this cluster, with the error if it cannot work.

        ``price`` is in dollars per GPU-hour; ``built`` builds the project's own parts.
        """
        runs = [run for _, run in known_runs(spec)]

        def plan_here(run: RunSpec) -> RunPlan:
            here = self.on_this_cluster(run)
            return plan_run(here, price=price, before=self.measured, built=built(run))

        plan = plan_spec(spec, plan_here, places=self.places(run.resources for run in runs))
        pairs = zip(runs, (made for _, made in plan.runs), strict=True)
        try:
            self.refuse(list(pairs), plan.places)
        except PlanRefused as error:
            return plan, error
        return plan, None

    def on_this_cluster(self, spec: RunSpec) -> RunSpec:
        """Return the spec with the kind of GPU that it will get, where the cluster has one kind.

        A spec that names a kind, and one for a CPU, are returned as they are.
        """
        if self.cluster is None or spec.resources.gpu_type is not None or not spec.resources.gpus:
            return spec
        names = {gpu.name for node in self.cluster.nodes for gpu in node.gpus}
        kinds = {None if (gpu := find_gpu(name)) is None else gpu.kind for name in names}
        if len(names) != 1 or None in kinds:
            return spec
        resources = spec.resources.model_copy(update={"gpu_type": kinds.pop()})
        return spec.model_copy(update={"resources": resources})

    def refuse_if_impossible(self, given: RunSpec, plan: RunPlan) -> None:
        """Reject a run that cannot work on the GPU that it names, or else on the cluster's one.

        ``given`` is its spec before ``on_this_cluster``, ``plan`` that of the run on this cluster.

        Raises:
            PlanRefused: it does not fit.
        """
        here = self.on_this_cluster(given)
        try:
            refuse_if_impossible(here, plan)
        except PlanRefused as error:
            if here is given:
                raise
            hint = (
                f"{error.hint}\n    This cluster has no other kind of GPU. A run that names one as "
                "resources.gpu_type waits for it."
            )
            raise PlanRefused(error.message, hint=hint) from None

    def refuse(self, runs: Sequence[tuple[RunSpec, RunPlan]], places: int = 1) -> None:
        """Reject runs of which one cannot work, or whose checkpoints no disk of a node can hold.

        They are launched together, as for ``refuse_if_impossible``, and ``places`` of them train at
        once.

        Raises:
            PlanRefused: one does not fit, or the folders of runs have too little free space.
        """
        for given, plan in runs:
            self.refuse_if_impossible(given, plan)
        nodes = self.cluster.nodes if self.cluster is not None else []
        reported = {
            node.runs_folder or node.name: node.free_bytes.get("LEHR_RUNS")
            for node in nodes
            if node.no_runs is None
        }
        free = [size for size in reported.values() if size is not None]
        plans = [plan for _, plan in runs]
        refuse_without_space(plans, places, free if len(free) == len(reported) else ())

    def measured(self, spec: RunSpec, parameters: int) -> Sequence[Measured]:
        """Return the speeds of completed runs, newest first, each with how it differs from a run of
        this spec, on the GPU that it will get. Nothing follows the first one of the same kind.
        """
        if spec.trainer is not None:
            return ()
        try:
            return list(self._measured(spec, parameters))
        except LehrError:
            return ()

    def _measured(self, spec: RunSpec, parameters: int) -> Iterator[Measured]:
        here = self._devices(spec)
        planned = traits(spec, parameters, cuda=here != {"cpu"})
        size = (parameters, spec.own.tokens_per_step, spec.resources.gpus)
        nearest = sorted(self._completed, key=lambda run: _size(run) != size)[:_READ]
        read = 0
        for run in nearest:
            if run.id not in self._traits:
                self._traits[run.id] = _traits(run)
            earlier = self._traits[run.id]
            if earlier is None:
                continue
            differs = differences(earlier, planned)
            device = run.view.device or ""
            if not _is_here(device, spec.resources.gpu_type, here):
                differs = {"GPU": device, **differs}
            # Only its MFU may be used, and only where it differs in sizes alone.
            speed: tuple[float, float | None] = (0.0, None)
            if not differs or (differs.keys() <= SIZES and read < _MEASURED):
                speed, read = self._speed(run), read + 1
            several = spec.resources.gpu_type is None and len(here) > 1
            yield Measured(
                run.name,
                *speed,
                parameters=run.view.parameters or 0,
                differs=differs,
                device=device if several else "",
            )
            if not differs:
                return

    @cached_property
    def _completed(self) -> list[Run]:
        runs = self._connect().runs(states=["completed"], limit=_RUNS)
        own = [run for run in runs if run.view.submitted_by != OPENED]
        last = [(run, run.latest.get("tokens_per_s")) for run in own]
        return [run for run, value in last if value is not None and value.step >= _FEWEST]

    def _devices(self, spec: RunSpec) -> set[str]:
        """Return the devices that a run of this spec may get: ``cpu``, or names of GPUs."""
        if not spec.resources.gpus or spec.own.device == "cpu":
            return {"cpu"}
        if spec.resources.gpu_type is not None or self.cluster is None:
            return {spec.resources.gpu_type or ""}
        return {
            "cpu" if node.logical else gpu.name for node in self.cluster.nodes for gpu in node.gpus
        }

    def _speed(self, run: Run) -> tuple[float, float | None]:
        """Return the median tokens per second, and the median MFU where it has one."""
        if run.id not in self._speeds:
            names = [name for name in ("tokens_per_s", "mfu") if name in run.latest]
            series = {one.name: one.y for one in run.series(*names)}
            mfu = series.get("mfu")
            self._speeds[run.id] = (
                statistics.median(series["tokens_per_s"]),
                statistics.median(mfu) if mfu else None,
            )
        return self._speeds[run.id]


def places(need: Resources, cluster: ClusterView) -> int:
    """Return how many such runs the nodes that get runs train at once, if nothing else runs there.

    A run has the same number of GPUs on each of its nodes. A run without GPUs needs some CPUs.
    """
    shares = [
        sum(is_type(gpu.name, need.gpu_type) for gpu in node.gpus) // (need.gpus // need.nodes)
        if need.gpus
        else cpu_places(node.cpus)
        for node in cluster.nodes
        if node.no_runs is None and node.gpus
    ]

    def too_many(runs: int) -> bool:
        # A node has at most one share of a run, so it counts once for each run.
        return sum(min(here, runs) for here in shares) < runs * need.nodes

    return bisect_left(range(1, sum(shares) + 1), True, key=too_many)


def _size(run: Run) -> tuple[int | None, int, int]:
    return run.view.parameters, run.view.tokens_per_step, run.view.gpus


def _traits(run: Run) -> dict[str, str] | None:
    """Return what decided its speed; None for a program of its own, or a spec that is too old."""
    given = run.detail.spec
    try:
        spec = RunSpec.model_validate(given)
    except (ValueError, LehrError):
        return None
    if spec.trainer is not None:
        return None
    return traits(spec, run.view.parameters, cuda=not _on_cpu(run.view.device or ""))


def _on_cpu(device: str) -> bool:
    return device.startswith("cpu")


def _is_here(device: str, gpu_type: str | None, here: set[str]) -> bool:
    """Return whether a run of the spec may get this device."""
    if _on_cpu(device):
        return "cpu" in here
    if here == {"cpu"}:
        return False
    if gpu_type is not None:
        return is_type(device, gpu_type)
    return device in here
