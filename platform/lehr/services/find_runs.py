"""Several runs by what a user typed, with one query for those named by their ids; their specs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from lehr.names import ARGUMENTS, is_neutral_argument

if TYPE_CHECKING:
    from lehr.store import Store
    from lehr.store.tables import RunRow


def find_runs(store: Store, refs: Iterable[str]) -> list[RunRow]:
    """Find a run for each different ref, in their order. An id comes before a name, as in ``find``.

    Raises:
        NotFound: there is no such run.
    """
    different = list(dict.fromkeys(refs))
    known = {run.id: run for run in store.runs.by_ids(different)}
    return [known.get(ref) or store.runs.find(ref) for ref in different]


def specs_with_configs(
    store: Store, runs: Sequence[RunRow], *, shared: bool = False
) -> list[dict[str, Any]]:
    """Return the specs, those of programs with what they gave as their config among their
    arguments. Names that change no loss are left out; ``shared``: and those that a run lacks.
    """
    configs = store.events.configs(run.id for run in runs if run.stored.program)
    args = [run.stored.program.get("args", {}) for run in runs]
    names = [{*configs.get(run.id, {}), *given} for run, given in zip(runs, args, strict=True)]
    wanted = {
        name
        for name in (set.intersection if shared else set.union)(*names)
        if not is_neutral_argument(f"{ARGUMENTS}{name}")
    }
    specs = {run.id: run.spec for run in runs}
    for run, given in zip(runs, args, strict=True):
        logged = {n: value for n, value in configs.get(run.id, {}).items() if n in wanted}
        if logged:
            specs[run.id] = run.spec | {"trainer": run.stored.program | {"args": logged | given}}
    return [*specs.values()]
