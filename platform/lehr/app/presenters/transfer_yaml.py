"""A spec as YAML with a carried learning rate, and the reasons as comments."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import yaml

from lehr.base.formats import amount, scientific

if TYPE_CHECKING:
    from lehr.schemas.sweeps import TransferView
    from lehr.specs import RolloutSpec, RunSpec

_WIDTH = 98


def carried_yaml(spec: RunSpec | RolloutSpec, view: TransferView) -> str:
    """Return YAML that ``load_spec`` reads: the spec's given fields, and the new rate.

    Args:
        spec: the target, valid.
        view: the transfer; its own ``yaml`` is not read.
    """
    data: dict[str, Any] = {"kind": spec.kind, **spec.model_dump(mode="json", exclude_unset=True)}
    run = data if spec.kind == "run" else data["run"]
    run["train"].setdefault("optimizer", {})["lr"] = view.rate
    verb = "submit" if spec.kind == "run" else "rollout"
    lines = [*reasons(view), "", f"Launch it: lehr {verb} FILE"]
    comments = [
        part
        for line in lines
        for part in textwrap.wrap(
            line, _WIDTH - 2, subsequent_indent=" " * (len(line) - len(line.lstrip()) + 2)
        )
        or [""]
    ]
    head = "".join(f"# {line}".rstrip() + "\n" for line in comments)
    return head + yaml.safe_dump(data, sort_keys=False, allow_unicode=True)


def reasons(view: TransferView) -> list[str]:
    """Return why the rate is what it is, line by line."""
    rate, start = scientific(view.rate, 3), scientific(view.from_rate, 3)
    origin = f"sweep {view.sweep} ({view.sweep_id})"
    wrong = f"The rule alone may be wrong by a factor of {view.doubt:.2g}."
    lines = [
        f"Learning rate {rate}, carried from {origin} by rule {view.rule}.",
        f"{_interval(view.likely, view.sure)} {wrong}",
        "",
        f"The sweep's best rate is {start}. {_interval(view.from_likely, view.from_sure)}",
    ]
    lines += [
        f"  {one.quantity} {amount(one.source)} -> {amount(one.target)} (x {one.ratio:.3g}): "
        + (
            "the rule does not use it"
            if one.factor is None
            else f"factor {one.factor:.3g}, {one.formula} ({one.source_of_rule}). "
            f"Doubt: {one.doubt}."
        )
        for one in view.changes
    ]
    lines += ["", "Other rules, for comparison:"]
    lines += [
        f"  {one.name}: {scientific(one.rate, 3)}, {one.formula} ({one.source})"
        + (f" - outside its domain: {one.outside}" if one.outside else "")
        for one in view.rules
        if not one.chosen
    ]
    if view.usual:
        lines += ["", "Published models of about this size (usual, not best):"]
        lines += [f"  {one.name}: {scientific(one.rate, 3)} ({one.source})" for one in view.usual]
    if view.warnings:
        lines += ["", *(f"! {warning}" for warning in view.warnings)]
    return [" ".join(line.splitlines()) for line in lines]


def _interval(likely: tuple[float, float] | None, sure: tuple[float, float] | None) -> str:
    if likely is None or sure is None:
        return "There is no interval: the trials bracket no minimum."
    near, far = (f"{scientific(low, 2)} and {scientific(high, 2)}" for low, high in (likely, sure))
    return f"The best is between {near} with 68 %, and {far} with 95 %."
