"""What a launch is expected to use: the plan that people see, as GPU-hours and dollars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lehr.analysis.plan import RunPlan, SweepPlan, plan_run, plan_sweep
from lehr.analysis.plan_json import plan_json, rollout_json, sweep_json
from lehr.client.plan_server import PlanServer
from lehr.errors import UserError
from lehr.mcp_server.ledger import NOTHING, Amount
from lehr.specs import RunSpec, Spec, SweepSpec, expand, load_spec, stages
from lehr.specs.sweep_extend import extended

if TYPE_CHECKING:
    from lehr.client import Client, Run, Sweep

Trials = Sequence[tuple[dict[str, Any], RunSpec]]
RETRIED = ("failed", "cancelled")
"""States of the trials that a retry of their sweep queues again."""


class LaunchEstimates:
    """Plans launches for one server."""

    def __init__(self, client: Client, *, price: float | None = None) -> None:
        """``price``: dollars per GPU-hour, instead of Lehr's table."""
        self._client = client
        self.price = price

    def plan(self, spec: Spec) -> dict[str, Any]:
        """Return what `lehr plan --json` prints.

        Raises:
            PlanRefused: a run does not fit in the requested GPU.
        """
        if isinstance(spec, RunSpec):
            return {"kind": "run", "name": spec.name, "plan": plan_json(self._run(spec))}
        if isinstance(spec, SweepSpec):
            return {"kind": "sweep", **sweep_json(self._sweep(spec))}
        return rollout_json(spec, [(one, self._run(one.train)) for one in stages(spec)])

    def of(self, spec: Spec) -> Amount:
        """Return what a new run, sweep or rollout is planned to use.

        Raises:
            PlanRefused: a run does not fit in the requested GPU.
            UserError: the time or the price cannot be planned.
        """
        if isinstance(spec, RunSpec):
            return self.of_run(spec)
        if isinstance(spec, SweepSpec):
            made = self._sweep(spec)
            share = (len(made.trials) + made.later) / len(made.trials)
            known = self._sum(expand(spec), [plan for _, plan in made.trials])
            return scaled(known, share)
        return self._sum_of([one.train for one in stages(spec)])

    def of_run(self, spec: RunSpec, *, remaining: float = 1.0) -> Amount:
        """Return what a run is planned to use for the ``remaining`` share of its steps."""
        return scaled(self._amount(spec, self._run(spec)), remaining)

    def of_fork(
        self, run: Run, step: int | None, changes: Mapping[str, Any] | Sequence[str]
    ) -> Amount:
        """Return what a fork of the run is planned to use, from its checkpoint to its end."""
        plain = {**run.detail.spec, "kind": "run"}
        spec = load_spec(plain, changes)
        assert isinstance(spec, RunSpec)
        if step is None:
            step = max((one.step for one in run.checkpoints() if one.removed_at is None), default=0)
        left = 1.0 if spec.steps is None else max(1 - step / spec.steps, 0.0)
        return self.of_run(spec, remaining=left)

    def of_retry(self, sweep: Sweep) -> Amount:
        """Return what the trials that did not complete are planned to use, from their start."""
        found = [run.spec for run in sweep.runs() if run.state in RETRIED]
        known = self._sum_of(found)
        # A failed trial whose run was deleted gets a new run.
        deleted = sum(sweep.view.counts.get(state, 0) for state in RETRIED) - len(found)
        if deleted <= 0:
            return known
        spec = SweepSpec.model_validate(sweep.detail.spec)
        return known + scaled(self.of(spec), deleted / max(spec.trial_count, 1))

    def of_extension(self, sweep: Sweep, more: Mapping[str, Any]) -> Amount:
        """Return what the added trials are planned to use.

        Raises:
            UserError: the sweep cannot be extended like this.
        """
        before = SweepSpec.model_validate(sweep.detail.spec)
        # Not their number times the mean: an added trial may be much longer than the others.
        return self.of(extended(before, **more)).less(self.of(before))

    def _sum_of(self, specs: Sequence[RunSpec]) -> Amount:
        server = self._server()
        plans = [self._run(spec, server) for spec in specs]
        return self._sum([({}, spec) for spec in specs], plans)

    def _sum(self, trials: Trials, plans: Sequence[RunPlan]) -> Amount:
        total = NOTHING
        for (_, spec), plan in zip(trials, plans, strict=True):
            total += self._amount(spec, plan)
        return total

    def _run(self, spec: RunSpec, server: PlanServer | None = None) -> RunPlan:
        server = server or self._server()
        made = plan_run(server.on_this_cluster(spec), price=self.price, before=server.measured)
        server.refuse([(spec, made)])
        return made

    def _sweep(self, spec: SweepSpec) -> SweepPlan:
        server = self._server()
        trials = expand(spec)
        made = plan_sweep(
            spec,
            [(point, server.on_this_cluster(run)) for point, run in trials],
            price=self.price,
            places=server.places(run.resources for _, run in trials),
            before=server.measured,
        )
        pairs = zip(trials, made.trials, strict=True)
        server.refuse([(run, plan) for (_, run), (_, plan) in pairs], made.places)
        return made

    def _server(self) -> PlanServer:
        """Return what the server adds to plans now: agents live longer than a cluster's state."""
        return PlanServer(lambda: self._client)

    def _amount(self, spec: RunSpec, plan: RunPlan) -> Amount:
        """Return the planned hours, at most those of the run's time limit."""
        gpus = spec.resources.gpus
        if gpus == 0:
            return NOTHING
        limit = None if spec.time_limit_s is None else spec.time_limit_s * gpus / 3600
        hours = min((one for one in (plan.gpu_hours, limit) if one is not None), default=None)
        if hours is None:
            raise UserError(
                f"the time of {spec.name} cannot be planned: {plan.basis}",
                hint="Set time_limit_s in its spec: the budget then counts that time on its GPUs. "
                "Or name resources.gpu_type.",
            )
        price = plan.dollars_per_gpu_hour
        return Amount(gpu_hours=hours, dollars=None if price is None else hours * price)


def scaled(amount: Amount, factor: float) -> Amount:
    return Amount(
        gpu_hours=amount.gpu_hours * factor,
        dollars=None if amount.dollars is None else amount.dollars * factor,
    )
