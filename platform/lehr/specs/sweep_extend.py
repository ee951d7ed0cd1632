"""Extend a sweep: values of a grid, points of a list, trials of a search, seeds of each point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lehr.errors import UserError, nearest
from lehr.specs.load import load_spec
from lehr.specs.sweep import SweepSpec


def extended(
    spec: SweepSpec,
    *,
    parameters: Mapping[str, Sequence[Any]] | None = None,
    points: Sequence[Mapping[str, Any]] | None = None,
    trials: int | None = None,
) -> SweepSpec:
    """Return the spec with these values, points or trials added.

    Seeds of a grid or a list are added by their path among the ``parameters``.

    Raises:
        UserError: the sweep's method cannot use them, or there are none.
        SpecError: a value does not fit.
    """
    seeds: list[Any] = []
    if parameters is not None and spec.seeds is not None and spec.method in {"grid", "list"}:
        seeds = list(parameters.get(spec.seed_path, ()))
        parameters = {path: them for path, them in parameters.items() if path != spec.seed_path}
        if seeds and not parameters:
            parameters = None
    given = {"parameters": parameters, "points": points, "trials": trials}
    field = {"grid": "parameters", "list": "points"}.get(spec.method, "trials")
    for name, value in given.items():
        if value is not None and name != field:
            raise UserError(
                f"{name} cannot be added to {spec.name}: its method is {spec.method}.",
                hint=f"Give {field}.",
            )
    if not given[field] and not seeds:
        raise UserError(f"nothing to add to {spec.name}.", hint=f"Give {field}.")
    data = spec.model_dump(mode="json", exclude_unset=True)
    if parameters is not None:
        for path, values in parameters.items():
            if path not in spec.parameters:
                near = nearest(path, spec.parameters)
                raise UserError(
                    f"{path} is not a parameter of {spec.name}.",
                    hint=f"Did you mean {near}?"
                    if near
                    else f"Its parameters: {', '.join(spec.paths)}.",
                )
            data["parameters"][path]["values"] += list(values)
    if seeds:
        data["seeds"] += seeds
    if points is not None:
        data["points"] += [dict(point) for point in points]
    if trials is not None:
        if trials < 1:
            raise UserError(f"trials is {trials}; it must be at least 1.")
        data["trials"] = (spec.trials or 0) + trials
    made = load_spec(data)
    assert isinstance(made, SweepSpec)
    return made
