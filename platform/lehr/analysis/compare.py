"""Compare runs: their differences, and whether the difference in outcome means anything.

If two runs differ in more than one factor, their results prove nothing about either factor: in
docs/reference-runs.md an 8-bit AdamW run had three times the learning rate of its baseline. A gap
within the noise between seeds proves nothing at all. The comparison reports both cases. Values of
different held-out sets have no difference.
"""

from __future__ import annotations

import bisect
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from lehr.analysis.batches import Agreement, HeldOut, agreement, batches_note, is_measured
from lehr.analysis.curve import Curve
from lehr.analysis.groups import SeededRun, gaps, grouped, means, noise_note
from lehr.analysis.noise import Noise, pooled_noise
from lehr.base.formats import parameter
from lehr.base.names import ARGUMENTS, SEED, Goal, is_neutral_argument, is_seed, is_speed
from lehr.schemas.base import SameData
from lehr.schemas.comparisons import ComparisonView, DifferenceView, RunResultView

_MISSING = "—"
_STAGES = "train.stages"
_OF_STAGE = re.compile(r"^train\.stages\.[^.]+\.(?!tokens$)")
_NOT_FACTORS = (
    "name",
    "notes",
    "tags",
    "project",
    "priority",
    "retries",
    "env",
    "kind",
    "checkpoints",
)
"""Fields that identify runs without changing the computation."""
_OUTCOME_NEUTRAL = (
    # Steps follow from them, and differ where the training does.
    "train.tokens",
    "train.forked_at",
    "train.tokens_per_parameter",
    "train.checkpoint",
    "train.evals",
    "evaluations",
    "train.diagnostics",
    "train.validation.every",
    "train.data.loading",
    "train.data.workers",
    "train.data.prefetch",
    "train.batch.micro_batch",
    "resources",
    "time_limit_s",
    "train.threads",
    "train.parallel.hang_limit_s",
)
"""Fields that change speed or memory, but by contract not the losses."""
_FACTORS = {"code": {"digest"}, "trainer": {"script", "module", "args", "argv", "data_files"}}
"""What may change the outcome of the code and of a program, whatever else their specs have."""
_NEAR = 0.9  # Share of the common x from which a run's last value counts as one there.
_CHANGE_BATCHES = (
    SEED, "train.data", "train.batch", "train.validation", "train.steps", "train.stages",
)  # fmt: skip
"""Fields that decide which batches a run trains on; of these, only factors and the seed do."""


@dataclass(frozen=True)
class ComparedRun:
    id: str
    name: str
    spec: Mapping[str, Any]  # For a program, with what it logged as its config among its arguments.
    curve: Sequence[tuple[float, float]] = ()
    """(x, value) of the compared metric, x ascending: step, tokens or seconds."""
    evaluated: bool = True  # It has a metric of the held-out set.
    held_out: str | None = None  # Digest of that set; None where its trainer recorded none.
    digests: Curve = field(default=Curve((), ()))
    """Digest of each step's batch; empty where its trainer logged none."""
    own_spec: Mapping[str, Any] | None = None
    """The spec without what was logged, such as the name of a host; None if it is the same."""
    state: str = ""
    without: str = "no value yet"  # What to state where it has no value.
    figures: Mapping[str, float | None] = field(default_factory=dict)
    """What else is shown of it: speed, MFU and memory, by the fields of ``RunResultView``."""


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested dicts to dotted paths; lists are values, but for the stages of a training.

    A stage has the name by which an override has it: ``train.stages.anneal.optimizer.lr``.
    """
    found: dict[str, Any] = {}
    for key, value in values.items():
        path = f"{prefix}.{key}" if prefix else str(key)
        staged = path == _STAGES and isinstance(value, list)
        if staged and all(isinstance(stage, dict) for stage in value):
            value = {  # noqa: PLW2901
                stage.get("name") or number: {k: v for k, v in stage.items() if k != "name"}
                for number, stage in enumerate(value)
            }
        if isinstance(value, dict) and value:
            found.update(flatten(value, path))
        else:
            found[path] = value
    return found


def _of_whole(path: str) -> str:
    """Return the field of a whole training that a field of a stage changes for its steps."""
    return _OF_STAGE.sub("train.", path)


def differences(specs: Sequence[Mapping[str, Any]]) -> list[DifferenceView]:
    """Return every path whose value differs between the specs, in order of path."""
    flat = [flatten(spec) for spec in specs]
    paths = sorted({path for values in flat for path in values})
    # Their steps follow from the tokens of their stages.
    staged = all(any(path.startswith(f"{_STAGES}.") for path in values) for values in flat)
    found = []
    for path in paths:
        values = [one.get(path, _MISSING) for one in flat]
        if any(value != values[0] for value in values[1:]):
            follows = path == "train.steps" and staged
            factor = is_factor(path) and not follows and not _comes_with(path, values, flat)
            found.append(DifferenceView(path=path, values=values, factor=factor))
    return found


def compare(
    runs: Sequence[ComparedRun],
    *,
    metric: str = "val/loss",
    goal: Goal | None = "minimize",
    x_axis: Literal["step", "tokens", "time", "flops", "end"] = "step",
    elsewhere: Noise | None = None,
) -> ComparisonView:
    """Compare runs with their curves of ``metric`` over ``x_axis``; the first is the baseline.

    Where no two of them differ only in their seed, the noise is that of ``elsewhere``.

    Raises:
        ValueError: fewer than two runs.
    """
    if len(runs) < 2:
        raise ValueError(f"a comparison needs two runs; {len(runs)} given")
    held_out = HeldOut.of({run.id: run.held_out for run in runs if run.evaluated})
    note = None
    if is_measured(metric):
        note = held_out.note(metric, {run.id: run.name for run in runs})
    common = _common_x(runs)
    agreements = [agreement(runs[0].digests, run.digests) for run in runs]
    results = _results(runs, common, held_out if is_measured(metric) else HeldOut(), agreements)
    quality = None if is_speed(metric) else goal
    groups = grouped(_members(runs, results, by_set=is_measured(metric)), quality)
    noise = pooled_noise([group.finite for group in groups]) or elsewhere
    others = list(zip((run.name for run in runs[1:]), agreements[1:], strict=True))
    return ComparisonView(
        runs=[run.id for run in runs],
        metric=metric,
        goal=goal,
        x_axis=x_axis,
        common_x=common,
        results=results,
        differences=differences([run.spec for run in runs]),
        noise=None if noise is None else noise.deviation,
        noise_note=noise_note(groups, noise),
        gaps=gaps(groups, noise, metric, goal),
        means=means(groups, metric),
        held_out=held_out.verdict,
        held_out_note=note,
        batches=_batches_verdict(agreements[1:]),
        batches_note=batches_note(others, runs[0].name),
        notes=[*([note] if note else []), *_notes(runs, results)],
    )


@lru_cache(maxsize=10_000)  # A comparison asks for each field of each run.
def is_factor(path: str) -> bool:
    if _is_own_seed(path) or path.split(".", maxsplit=1)[0] in _NOT_FACTORS:
        return False
    if is_neutral_argument(path):
        return False
    path = _of_whole(path)
    part, _, field = path.partition(".")
    if field and part in _FACTORS:
        return field.partition(".")[0] in _FACTORS[part]
    return not any(path == p or path.startswith(f"{p}.") for p in _OUTCOME_NEUTRAL)


def _is_own_seed(path: str) -> bool:
    return path == SEED or (path.startswith(ARGUMENTS) and is_seed(path))


def _changes_batches(difference: DifferenceView) -> bool:
    if _is_own_seed(difference.path):
        return True
    if not difference.factor:
        return False
    changed = _of_whole(difference.path)
    return any(changed == path or changed.startswith(f"{path}.") for path in _CHANGE_BATCHES)


def _comes_with(path: str, values: Sequence[Any], flat: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a field exists only in one variant (adamw's ``fused``): then only the
    variant is a factor.
    """
    if _MISSING not in values or path.startswith(ARGUMENTS):
        return False
    group, _, field = path.rpartition(".")
    tags = ("name", "kind")
    return field not in tags and any(
        len({one.get(f"{group}.{tag}", _MISSING) for one in flat}) > 1 for tag in tags
    )


def _common_x(runs: Sequence[ComparedRun]) -> float | None:
    curves = [run.curve for run in runs if run.curve]
    if not curves:
        return None
    common = min(curve[-1][0] for curve in curves)
    return common if all(curve[0][0] <= common for curve in curves) else None


def _results(
    runs: Sequence[ComparedRun],
    common: float | None,
    held_out: HeldOut,
    agreements: Sequence[Agreement],
) -> list[RunResultView]:
    results: list[RunResultView] = []
    for run, batches in zip(runs, agreements, strict=True):
        result = RunResultView(
            run_id=run.id,
            name=run.name,
            state=run.state,
            held_out=run.held_out,
            batches=batches.verdict,
            batches_differ_from=batches.differs_from,
            **run.figures,
        )
        results.append(result)
        if common is None or not run.curve:
            result.incomparable = "no value where the others have one" if run.curve else run.without
            continue
        x, value = run.curve[bisect.bisect_right([x for x, _ in run.curve], common) - 1]
        if x < _NEAR * common:
            result.incomparable = f"its last value until then is at {x:,.0f}"
            continue
        result.x, result.value = x, value
        if held_out.differ(runs[0].id, run.id):
            result.incomparable = "another held-out set"
        elif (base := results[0].value) is not None:
            result.delta = value - base
    return results


def _batches_verdict(agreements: Sequence[Agreement]) -> SameData:
    verdicts = {one.verdict for one in agreements}
    if "different" in verdicts:
        return "different"
    return "unknown" if "unknown" in verdicts else "same"


def _members(
    runs: Sequence[ComparedRun], results: Sequence[RunResultView], *, by_set: bool
) -> Iterable[SeededRun]:
    """Return the runs as members of groups: of equal factors (and held-out set, if ``by_set``)."""
    made = []
    sets: dict[str, str | None] = {}
    for run, outcome in zip(runs, results, strict=True):
        flat = flatten(run.spec)
        own = flat if run.own_spec is None else flatten(run.own_spec)
        factors = repr(sorted((p, v) for p, v in own.items() if is_factor(p)))
        seeds = [value for path, value in flat.items() if _is_own_seed(path)]
        seed = seeds[0] if len(seeds) == 1 else repr(seeds) if seeds else None
        made.append((run, outcome, factors, seed))
        if outcome.value is not None:
            sets.setdefault(factors, run.held_out)
    for run, outcome, factors, seed in made:
        # A run that was never evaluated belongs to its seeds, whatever their set.
        held_out = sets.get(factors) if outcome.value is None else run.held_out
        key = repr((held_out if by_set else None, factors))
        incomparable = outcome.incomparable is not None
        yield SeededRun(run.id, run.name, key, seed, outcome.value, incomparable)


def _notes(runs: Sequence[ComparedRun], results: Sequence[RunResultView]) -> Iterable[str]:
    base = runs[0]
    for run, outcome in zip(runs[1:], results[1:], strict=True):
        found = differences([base.spec, run.spec])
        factors = [d for d in found if d.factor]
        step = outcome.batches_differ_from
        if step is not None and not any(map(_changes_batches, found)):
            yield (
                f"{base.name} and {run.name} trained on different batches from step {step:,} on, "
                "but their specs do not show why."
            )
        if len(factors) > 1:
            listed = "; ".join(
                f"{d.path} {_as_written(d.path, d.values[0])} / {_as_written(d.path, d.values[1])}"
                for d in factors[:4]
            )
            more = f"; and {len(factors) - 4} more" if len(factors) > 4 else ""
            yield (
                f"{base.name} and {run.name} differ in {len(factors)} factors ({listed}{more}), so "
                "the gap between them cannot be attributed to one."
            )


def _as_written(path: str, value: Any) -> str:
    """Format a value as tables do, a list or mapping as JSON; of a digest, its first digits."""
    if isinstance(value, str):
        return value[:12] if path == "code.digest" else value
    return parameter(value, path) if isinstance(value, float) else json.dumps(value, default=str)


USUAL = "val/loss"
_NEXT = "train/loss"


def compared_metric(logged: Sequence[Collection[str]], own: Collection[str]) -> str:
    """Return ``val/loss``, or another metric if not all runs have that one.

    The first of these that all runs with any metric have: ``val/loss``; ``train/loss``; another
    loss; a metric that is not in ``own``, the names that Lehr itself records. Those of a
    validation come first.
    """
    with_metrics = [set(names) for names in logged if names]
    common = set.intersection(*with_metrics) if with_metrics else set()
    for usual in (USUAL, _NEXT):
        if usual in common:
            return usual
    rest = sorted(common - set(own), key=rank)
    return rest[0] if rest else USUAL


def note(metric: str, logged: Sequence[Collection[str]]) -> str | None:
    """Return why this metric was chosen; None for the usual one."""
    if metric == USUAL:
        return None
    who = "some have" if any(USUAL in names for names in logged) else "none has"
    return f"{metric} is compared, which all these runs have; {who} {USUAL}."


def rank(name: str) -> tuple[bool, bool, str]:
    """Return the place of a program's metric: losses first, and held-out ones before others."""
    held_out = any(part in name for part in ("val", "eval", "test"))
    return "loss" not in name, not held_out, name
