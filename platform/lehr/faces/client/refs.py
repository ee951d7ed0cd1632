"""Find a run, sweep or rollout by what a user typed. Only here it is decided between equal names.

A command that acts on one of several must not take the newest in silence: that may have ended,
while an older one trains.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal
from urllib.parse import quote

from lehr.control.lifecycle import ENDED, RunState
from lehr.errors import Conflict, NotFound
from lehr.faces.client.rollouts import Rollout
from lehr.faces.client.runs import Run
from lehr.faces.client.sweeps import Sweep
from lehr.faces.client.transport import PAGE, Transport
from lehr.schemas.base import Page
from lehr.schemas.rollouts import RolloutDetail, RolloutView
from lehr.schemas.runs import RunDetail, RunView
from lehr.schemas.sweeps import SweepDetail, SweepView

Act = Literal["cancel", "pause", "resume", "retry", "archive", "delete", "compare", "seeds"]
_OVER = {*map(str, ENDED), "passed"}


def _has_trained(states: set[str]) -> bool:
    return not states <= {RunState.QUEUED, RunState.CANCELLED}


_FITS: dict[Act, Callable[[set[str]], bool]] = {
    # By the states of a sweep's runs, or that of the one run or rollout.
    "cancel": lambda states: not states <= _OVER,
    "pause": lambda states: not states <= {*_OVER, RunState.PAUSED},
    "resume": lambda states: bool(states & {RunState.PAUSED, RunState.STOPPING}),
    "retry": lambda states: RunState.FAILED in states,
    "archive": lambda states: states <= _OVER,
    "delete": lambda states: states <= _OVER,
    "compare": _has_trained,
    "seeds": _has_trained,
}


class RefMethods:
    """What ``Client`` finds by id or name. With ``act``: what that verb can act on comes first."""

    transport: Transport

    def run(self, ref: str, act: Act | None = None) -> Run:
        """Return a run by id, unique prefix of an id, or name (the newest of that name).

        Raises:
            NotFound: no match; with similar names.
            Conflict: several of that name fit ``act``: cancel, pause, ...; they are listed.
        """
        run: Run = self._find(ref, act, "run")
        return run

    def find_sweep(self, ref: str) -> Sweep:
        """Return a sweep by id, unique prefix of an id, or name (the newest of that name)."""
        path = f"/sweeps/{quote(ref, safe='')}"
        return Sweep(self.transport, self.transport.read(SweepDetail, path, {"limit": PAGE}))

    def find_rollout(self, ref: str) -> Rollout:
        """Return a rollout by id, unique prefix of an id, or name (the newest of that name)."""
        detail = self.transport.read(RolloutDetail, f"/rollouts/{quote(ref, safe='')}")
        return Rollout(self.transport, detail)

    def find(self, ref: str, act: Act | None = None) -> Run | Sweep:
        """Return the sweep or run with that id or name, as ``find_any`` does."""
        one: Run | Sweep = self._find(ref, act, "sweep", "run")
        return one

    def find_any(self, ref: str, act: Act | None = None) -> Run | Sweep | Rollout:
        """Return the rollout, sweep or run with that id or name, in this order; as ``run`` does.

        A sweep's runs have longer names than the sweep, so the shorter name wins.
        """
        one: Run | Sweep | Rollout = self._find(ref, act, "rollout", "sweep", "run")
        return one

    def named(self, name: str) -> list[Run | Sweep | Rollout]:
        """Return rollouts, sweeps and runs of exactly that name, newest first, without archived."""
        same: list[Run | Sweep | Rollout] = []
        for kind, page in ((Rollout, RolloutView), (Sweep, SweepView), (Run, RunView)):
            answer = self.transport.get(f"/{kind.__name__.lower()}s", {"name": name, "limit": PAGE})
            views = Page[page].model_validate_json(answer).items  # type: ignore[valid-type]
            same += [kind(self.transport, view) for view in views]
        return sorted(same, key=lambda one: -one.view.created_at)

    def _find(self, ref: str, act: Act | None, *nouns: str) -> Any:
        newest = self._newest(ref, nouns)
        if act is None or newest.name != ref:
            return newest
        fitting = [one for one in self.named(ref) if one.noun in nouns and _FITS[act](_states(one))]
        if len(fitting) > 1:
            lines = [f"lehr {act} {one.id}    {one.described}" for one in fitting]
            raise Conflict(f"several are named {ref}. Which one?", hint="\n  ".join(lines))
        return self._newest(fitting[0].id, nouns) if fitting else newest

    def _newest(self, ref: str, nouns: tuple[str, ...]) -> Run | Sweep | Rollout:
        looks: dict[str, Callable[[str], Run | Sweep | Rollout]]
        looks = {"rollout": self.find_rollout, "sweep": self.find_sweep, "run": self._run}
        hints = []
        for noun in nouns:
            try:
                return looks[noun](ref)
            except NotFound as missing:
                if len(nouns) == 1:
                    raise
                hints.append(missing.hint or "")
        near = [hint for hint in hints if hint.startswith("Did you mean")]
        first, *others = reversed(nouns)
        kinds = f"{', '.join([first, *others[:-1]])} or {others[-1]}"
        raise NotFound(f"there is no {kinds} {ref!r}.", hint=(near or hints[::-1])[0])

    def _run(self, ref: str) -> Run:
        return Run(self.transport, self.transport.read(RunDetail, f"/runs/{quote(ref, safe='')}"))


def _states(one: Run | Sweep | Rollout) -> set[str]:
    return set(one.view.counts) if isinstance(one, Sweep) else {one.view.state}
