"""Several runs by what a user typed, with one query for those named by their ids."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

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
