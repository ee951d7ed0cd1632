"""The ladder of a campaign: smaller and shorter versions of its target, as a sweep.

Pure, from the target's config. Its shape keeps its proportions: heads of the same size, layers and
MLP in proportion to the width. Tokens keep their ratio to the parameters, and each width is also
there at a quarter of them, so that what tokens and parameters do can be told apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from lehr.base import formats
from lehr.base.names import goal_of, is_rate, is_seed
from lehr.errors import SpecProblem
from lehr.specs.campaign import Bounds, Campaign, CampaignSpec, Decided, LadderRung, Role
from lehr.specs.overrides import LENGTHS, with_changes
from lehr.specs.problems import Origin, show
from lehr.specs.run import CLAIM, RunSpec
from lehr.specs.stages import fewer_steps
from lehr.specs.sweep import SweepSpec
from lehr.specs.sweep_expand import unknown_path
from lehr_trainer.configs.fields import place
from lehr_trainer.configs.train import GPT2Config, ModelConfig, TrainConfig
from lehr_trainer.planning.counts import flops_per_token, parameter_counts
from lehr_trainer.planning.hardware import gpu_of_kind
from lehr_trainer.planning.memory import memory_by_stage

BATCH = "train.batch.sequences"
LEAST_STEPS = 30  # Of a rung: of a shorter run most is warmup.
_WIDTHS, _FEW = 6, 4  # Most widths; with fewer than _FEW at factors of two, at those of its root.
_LENGTHS = (1 / 4, 1.0)  # Of each width, as a share of the tokens that its parameters ask for.
_LENGTHS_ALONE = (1 / 256, 1 / 64, 1 / 16, 1 / 4)  # Where only the length can be scaled.
_BATCH_POWER = 0.5  # Of the tokens with which a rung's batch goes.
_VALIDATION = 0.1  # Share of a trial's FLOPs that several evaluations may take.
_SPREADS: dict[Role, float] = {"rate": 16.0, "batch": 4.0, "other": 4.0}
_VARIED = (*LENGTHS, "train.model", "train.stages", "train.batch.sequence_length", "resources")


class NoLadder(ValueError):
    """No smaller or shorter version of the target can be trained."""


def sweep_of(spec: CampaignSpec, origin: Origin) -> tuple[list[SpecProblem], SweepSpec | None]:
    """Return the sweep of a campaign, or its problems."""
    problems: list[SpecProblem] = []
    budget, kind = spec.budget, spec.target.resources.gpu_type
    gpu = None if kind is None else gpu_of_kind(kind)
    price = budget.price or (None if gpu is None else gpu.dollars_per_hour)
    if budget.dollars is not None and price is None:
        message = "budget.dollars needs the price of a GPU-hour, which is not known."
        hint = "Give budget.price, or target.resources.gpu_type."
        problems.append(origin.problem("budget.dollars", message, hint))
    if goal_of(spec.metric) == "maximize":
        message = f"metric is {show(spec.metric)}, which is maximized; a campaign predicts a loss."
        problems.append(origin.problem("metric", message, "Use val/loss."))
    made = {path: _decided(spec.target, path, own, origin) for path, own in spec.decide.items()}
    problems += [one for one in made.values() if isinstance(one, SpecProblem)]
    decide = {path: one for path, one in made.items() if isinstance(one, Decided)}
    rungs: list[LadderRung] = []
    try:
        rungs = ladder(spec.target, spec.smallest_width, batch_is_decided=BATCH in decide)
    except NoLadder as error:
        hint = "Sweep the rate at the target itself: lehr spec new sweep"
        problems.append(origin.problem("target", f"target: {error}.", hint))
    for path in decide.keys() & {path for rung in rungs[:1] for path in rung.set}:
        message = f"{path} cannot be decided: each rung has its own, in proportion to its steps."
        hint = "Give the target a share of the steps instead, such as train.schedule.warmup_ratio."
        problems.append(origin.problem(f"decide.{path}", message, hint, at_key=True))
    if problems:
        return problems, None
    hours = budget.gpu_hours or (budget.dollars or 0.0) / (price or 1.0)
    campaign: dict[str, Any] = {
        "gpu_hours": hours,
        "price": price,
        "decide": decide,
        "rungs": rungs,
    }
    campaign |= {"answer": spec.answer, "published": spec.published}
    campaign |= {"target": _described(spec.target, {}, {})}
    run = spec.target.model_dump(mode="json", exclude_unset=True, exclude=CLAIM)
    data = spec.model_dump(include={"name", "project", "tags", "notes"})
    data |= {"method": "campaign", "metric": {"name": spec.metric}, "budget": "any"}
    data |= {"pruning": {"name": "forecast"}}  # Of the trials of each rung.
    data |= {"run": {**run, "name": spec.name}, "campaign": Campaign(**campaign)}
    if spec.max_concurrent is not None:
        data["max_concurrent"] = spec.max_concurrent
    return [], SweepSpec.model_validate(data)


def _decided(
    run: RunSpec, path: str, bounds: Bounds | None, origin: Origin
) -> Decided | SpecProblem:
    at = f"decide.{path}"

    def problem(message: str, hint: str | None = None) -> SpecProblem:
        return origin.problem(at, message, hint, at_key=True)

    if any(f"{path}.".startswith(f"{one}.") for one in _VARIED) or is_seed(path):
        return problem(f"{path} cannot be decided: the campaign itself varies it.")
    if place(RunSpec, path) is None:
        return unknown_path(path, at, origin, "train, such as train.optimizer.lr")
    value: Any = run.model_dump(mode="json")
    for name in path.split("."):
        value = value[int(name)] if isinstance(value, list) else (value or {}).get(name)
    if value is None and bounds is not None:
        value = (bounds.min + bounds.max) / 2
    if isinstance(value, bool) or not isinstance(value, int | float) or (not value and not bounds):
        message = f"{path} is {show(value)} in the target; a campaign decides a number around its"
        return problem(f"{message} value.", f"Give bounds: {path}: {{min: 0.01, max: 0.1}}")
    role: Role = "rate" if is_rate(path) else "batch" if path == BATCH else "other"
    if bounds is None:
        low, high = sorted((value / _SPREADS[role], value * _SPREADS[role]))
        bounds = Bounds(min=low, max=high)
    if role != "other" and bounds.min <= 0:
        return problem(f"min {bounds.min:g} has no logarithm; it must be above 0.")
    whole = isinstance(value, int)
    return Decided(min=bounds.min, max=bounds.max, role=role, start=value, whole=whole)


def ladder(run: RunSpec, smallest: int = 32, *, batch_is_decided: bool = False) -> list[LadderRung]:
    """Return the rungs of a target, the cheapest first; of a model that is not Lehr's, its lengths.

    Where the batch is decided, micro-batches are small enough for a quarter of a rung's own.

    Raises:
        NoLadder: there is none, with the reason.
    """
    if run.trainer is not None:
        raise NoLadder("it is a program, whose shape and tokens are not known")
    train = run.own
    if train.stages:
        raise NoLadder("it trains in stages (train.stages), which do not shorten alike")
    if train.parts is not None and train.parts.model is not None:
        wanted: list[tuple[dict[str, Any], float]] = [({}, share) for share in _LENGTHS_ALONE]
    else:
        shapes = list(_narrower(train, smallest))
        if not shapes:
            heads = formats.counted(train.model.num_attention_heads, "head")
            few = f"with {heads} in a width of {train.model.hidden_size} there is no narrower"
            raise NoLadder(f"no ladder reaches it: {few} version of at least {smallest}")
        wanted = [(shape, part * share) for shape, part in shapes for share in _LENGTHS]
    made = (_rung(run, shape, share, batch_is_decided) for shape, share in wanted)
    rungs = [rung for rung in made if rung is not None]
    if not rungs:
        few = f"its {train.steps:,} steps leave a smaller version less than {LEAST_STEPS}"
        raise NoLadder(f"no ladder reaches it: {few}")
    return sorted(rungs, key=lambda rung: rung.flops)


def _narrower(train: TrainConfig, smallest: int) -> Iterator[tuple[dict[str, Any], float]]:
    """Yield narrower shapes by field of ``train.model``, with their share of the parameters."""
    model = train.model
    halves, roots = (_head_counts(model, factor, smallest) for factor in (2.0, math.sqrt(2.0)))
    for heads in (halves if len(halves) >= _FEW else roots)[:_WIDTHS]:
        ratio = heads / model.num_attention_heads
        layers = max(min(2, model.num_hidden_layers), round(model.num_hidden_layers * ratio))
        shape = {
            "hidden_size": _width(model, heads),
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
        }
        if not isinstance(model, GPT2Config):
            most = max(int(model.num_key_value_heads * ratio), 1)
            groups = (kv for kv in range(most, 0, -1) if heads % kv == 0)
            shape["num_key_value_heads"] = next(groups)
        if model.intermediate_size is not None:
            unit = 16 if train.precision.fp8.recipe != "none" else math.gcd(model.mlp_size, 16)
            shape["intermediate_size"] = max(unit, round(model.mlp_size * ratio / unit) * unit)
        try:
            made = type(model).model_validate({**model.model_dump(mode="json"), **shape})
        except ValidationError:
            continue  # Such as a window that none of so few layers has.
        yield shape, parameter_counts(made).total / parameter_counts(model).total


def _head_counts(model: ModelConfig, factor: float, smallest: int) -> list[int]:
    heads = model.num_attention_heads
    counts = (round(heads / factor**power) for power in range(1, 40))
    return [n for n in dict.fromkeys(counts) if 0 < n < heads and _width(model, n) >= smallest]


def _width(model: ModelConfig, heads: int) -> int:
    if model.hidden_size == model.num_attention_heads * model.head_size:
        return heads * model.head_size
    return round(model.hidden_size * heads / model.num_attention_heads / 16) * 16


def _rung(
    run: RunSpec, shape: dict[str, Any], share: float, batch_is_decided: bool
) -> LadderRung | None:
    """Return a rung of that shape with a share of the target's tokens; None if it is too short."""
    train, most = run.own, run.resources.gpus
    tokens = round(train.total_tokens * share)
    evaluations = int(min(8, max(1, 3 * _VALIDATION * tokens / train.validation.tokens)))
    micro_batch = train.batch.micro_batch or max(train.batch.sequences // run.resources.ranks, 1)
    for gpus in [*(2**n for n in range(10) if 2**n < most), most]:
        ranks = max(gpus, 1)
        sequences = _sequences(train, share, tokens, micro_batch * ranks)
        steps = -(-tokens // (sequences * train.batch.sequence_length))
        if steps < LEAST_STEPS:
            return None
        of_rank = sequences // ranks // (4 if batch_is_decided else 1)
        sizes = {f"train.model.{name}": value for name, value in shape.items()}
        shown = {path: sizes[path] for path in sizes if path.endswith(("hidden_size", "layers"))}
        shown |= {"train.tokens": tokens, **({} if batch_is_decided else {BATCH: sequences})}
        more = {
            **sizes,
            **fewer_steps(train, steps),
            "evaluations": [],
            "train.evals": [],
            "train.checkpoint.every": steps // 4,
            "train.checkpoint.keep_best": False,
            "train.checkpoint.save_last": False,
            "train.validation.every": -(-steps // evaluations),
            "train.batch.micro_batch": min(micro_batch, max(of_rank, 1)),
            "resources.gpus": gpus,
            "resources.nodes": max(1, -(-gpus * run.resources.nodes // max(most, 1))),
            **({"train.parallel.shard": "none"} if gpus <= 1 else {}),
        }
        more = {path: own for path, own in more.items() if path not in {*shown, "train.steps"}}
        own = run.model_dump(mode="json", exclude_unset=True)
        try:
            made = RunSpec.model_validate(with_changes(own, {BATCH: sequences, **more, **shown}))
        except ValidationError:
            continue  # So many GPUs cannot share the batch.
        if gpus == most or _room(made) <= _room(run, most_of_gpu=True):
            return _described(made, shown, more)
    return None


def _sequences(train: TrainConfig, share: float, tokens: int, micro_batch: int) -> int:
    """Return the sequences of a rung's step: as many micro-batches as are nearest, or a part."""
    batch = train.batch
    aimed = batch.sequences * math.pow(share, _BATCH_POWER)
    aimed = min(aimed, tokens / (2 * LEAST_STEPS * batch.sequence_length))
    if aimed >= micro_batch:
        return round(aimed / micro_batch) * micro_batch
    block = batch.longest_sequence // batch.sequence_length
    return int(max(block, 2 ** round(math.log2(max(aimed, 1.0)))))


def _room(run: RunSpec, *, most_of_gpu: bool = False) -> float:
    """Return the memory that a run takes of a GPU; ``most_of_gpu``: at least what its GPU has."""
    gpu = gpu_of_kind(run.resources.gpu_type or "") if most_of_gpu else None
    peak = max(one.peak for one in memory_by_stage(run.own, run.resources.ranks))
    return max(float(peak), 0.0 if gpu is None else 0.9 * gpu.memory_bytes)


def _described(run: RunSpec, point: dict[str, Any], more: dict[str, Any]) -> LadderRung:
    train, counts = run.own, parameter_counts(run.own.model)
    scored = train.validation.tokens * train.steps / max(train.validation.every, 1) / 3
    each = flops_per_token(train.model, train.batch.sequence_length)
    return LadderRung(
        point=point, set=more, width=train.model.hidden_size, depth=train.model.num_hidden_layers,
        parameters=counts.total, non_embedding=counts.non_embedding, gpus=run.resources.gpus,
        sequences=train.batch.sequences, batch=train.tokens_per_step, tokens=train.total_tokens,
        flops=each * (train.total_tokens + scored),
    )  # fmt: skip
