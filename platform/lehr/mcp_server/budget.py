"""The budget of an account: what its launches used, what they are promised, and what is left.

What has ended counts as it was: the GPU-hours that the server recorded for its attempts, retries
included. What lives counts as planned, or as used where that is more already. Everything is read
from the server each time, so a restart of this program changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lehr import formats
from lehr.analysis.cost import priced_gpu
from lehr.client import Rollout, Run, Sweep
from lehr.errors import LehrError, NotFound, UserError
from lehr.mcp_server.ledger import NOTHING, Amount, Book, Kind, Owned, Pending

if TYPE_CHECKING:
    from lehr.client import Client

UNENDED = ["queued", "starting", "running"]
_OF_OTHERS = frozenset({"retry", "resume", "extend"})
"""Launches that continue an object of others; the account's own objects are in its book already."""
PRECISION = 1e-9


@dataclass(frozen=True)
class Limits:
    """What an account may use in all; None: no such limit."""

    gpu_hours: float | None = None
    dollars: float | None = None

    @property
    def there(self) -> bool:
        return self.gpu_hours is not None or self.dollars is not None


@dataclass(frozen=True)
class Standing:
    """An account as it is now."""

    limits: Limits
    used: Amount
    """By all launches, as recorded by the server."""
    promised: Amount
    """What those that live, or whose answer has not come, may still use by their plans."""

    @property
    def total(self) -> Amount:
        return self.used + self.promised

    def view(self) -> dict[str, Any]:
        """Return it as a tool's answer."""
        left = {}
        if self.limits.gpu_hours is not None:
            left["gpu_hours"] = self.limits.gpu_hours - self.total.gpu_hours
        if self.limits.dollars is not None and self.total.dollars is not None:
            left["dollars"] = self.limits.dollars - self.total.dollars
        return {
            "limit": {"gpu_hours": self.limits.gpu_hours, "dollars": self.limits.dollars},
            "used": self.used.model_dump(),
            "promised": self.promised.model_dump(),
            "left": left,
        }

    def refuse_beyond(self, planned: Amount) -> None:
        """Raise if a launch of this plan does not fit.

        Raises:
            UserError: it would go over a limit, or its price is unknown and dollars are limited.
        """
        for unit, limit in (("gpu_hours", self.limits.gpu_hours), ("dollars", self.limits.dollars)):
            if limit is None:
                continue
            used, promised, more = (
                getattr(one, unit) for one in (self.used, self.promised, planned)
            )
            if used is None or promised is None or more is None:
                raise UserError(
                    "the price of this launch is unknown, and the budget is in dollars.",
                    hint="Name resources.gpu_type, or let a person start lehr mcp with --price.",
                )
            if used + promised + more > limit + PRECISION:
                raise UserError(
                    f"over the budget: this launch plans {_text(unit, more)}, and "
                    f"{_text(unit, max(limit - used - promised, 0.0))} of {_text(unit, limit)} are "
                    f"left ({_text(unit, used)} used, {_text(unit, promised)} promised to launches "
                    "that live). Nothing was recorded.",
                    hint="Make it smaller, wait for live ones to end, or cancel some. Only a "
                    "person can raise the budget.",
                )


class AgentBudget:
    """Reads what an account has used from the server."""

    def __init__(self, client: Client, limits: Limits, *, price: float | None) -> None:
        self._client = client
        self.limits = limits
        self._price = price

    def standing(self, book: Book) -> Standing:
        """Return the account as it is now, and note in the book what was read."""
        used = promised = NOTHING
        for object_id, owned in book.owned.items():
            spent, lives = self._spent(object_id, owned)
            owned.used = spent
            used += spent
            if lives:
                promised += owned.promised.less(spent)
        for pending in book.pending.values():
            promised += pending.planned
        return Standing(self.limits, used, promised)

    def promise(self, book: Book, object_id: str, kind: Kind, name: str, launch: Pending) -> None:
        """Note that the account pays for an object, or pays more for one that it has."""
        owned = book.owned.get(object_id)
        if owned is None:
            book.owned[object_id] = Owned(
                kind=kind,
                name=name,
                before=launch.before,
                promised=launch.planned,
                launched=launch.verb not in _OF_OTHERS,
                others=launch.others,
            )
            return
        spent, _ = self._spent(object_id, owned)
        kept = spent if launch.ended else spent.at_least(owned.promised)
        owned.promised = kept + launch.planned
        others = frozenset(launch.others)
        owned.others = [one for one in owned.others if one in others]

    def used_by(self, found: Run | Sweep | Rollout) -> Amount:
        """Return what an object has used in all."""
        if isinstance(found, Rollout):
            return self._of_stages(found)
        cost = found.detail.cost
        if cost is None:
            return NOTHING
        if self._price is not None:
            return Amount(gpu_hours=cost.gpu_hours, dollars=cost.gpu_hours * self._price)
        return Amount(gpu_hours=cost.gpu_hours, dollars=cost.dollars)

    def overrun(self, book: Book) -> list[Run]:
        """Return the unended runs of the account if it has used more than its limits.

        Without a price, a limit in dollars cannot be kept; then they count as over it.
        """
        used = self.standing(book).used
        over = [
            limit is not None and (value is None or value > limit + PRECISION)
            for limit, value in (
                (self.limits.gpu_hours, used.gpu_hours),
                (self.limits.dollars, used.dollars),
            )
        ]
        return list(self._unended(book)) if any(over) else []

    def _unended(self, book: Book) -> Iterator[Run]:
        for object_id, owned in book.owned.items():
            try:
                found = self.find(object_id, owned.kind)
            except NotFound:
                continue
            if isinstance(found, Run):
                runs = [found]
            elif isinstance(found, Sweep):
                runs = self._client.runs(sweep=object_id, states=UNENDED)
            else:
                runs = found.runs()
            others = frozenset(owned.others)
            yield from (run for run in runs if run.state in UNENDED and run.id not in others)

    def find(self, object_id: str, kind: Kind) -> Run | Sweep | Rollout:
        if kind == "run":
            return self._client.run(object_id)
        if kind == "sweep":
            return self._client.find_sweep(object_id)
        return self._client.find_rollout(object_id)

    def _spent(self, object_id: str, owned: Owned) -> tuple[Amount, bool]:
        """Return what an object has used of the account, and whether it may use more."""
        try:
            found = self.find(object_id, owned.kind)
        except NotFound:
            return owned.used, False
        total = self.used_by(found)
        if total.dollars is None and owned.promised.gpu_hours > 0 and owned.promised.dollars:
            # No trainer has reported its GPU yet: the price is that of the plan.
            price = owned.promised.dollars / owned.promised.gpu_hours
            total = Amount(gpu_hours=total.gpu_hours, dollars=total.gpu_hours * price)
        return total.less(owned.before), not found.ended

    def _of_stages(self, rollout: Rollout) -> Amount:
        total = NOTHING
        for stage in rollout.stages:
            hours = (stage.gpu_seconds or 0.0) / 3600
            gpu = priced_gpu(None, stage.gpu_type)
            price = gpu.dollars_per_hour if gpu is not None else None
            price = price if self._price is None else self._price
            dollars = 0.0 if not hours else None if price is None else hours * price
            total += Amount(gpu_hours=hours, dollars=dollars)
        return total


def pause_all(runs: list[Run]) -> Mapping[str, str]:
    """Pause runs: they save and free their GPUs. Return why one could not be, by its id."""
    failed = {}
    for run in runs:
        try:
            run.pause()
        except LehrError as error:
            failed[run.id] = error.message
    return failed


def _text(unit: str, value: float) -> str:
    return formats.gpu_hours(value) if unit == "gpu_hours" else f"${value:,.2f}"
