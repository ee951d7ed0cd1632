"""Stages: the course of a training, each part of it a change of the part before."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

from pydantic import Field, ValidationError

from lehr_trainer.configs.base import Config, NonNegativeFloat, OrNone
from lehr_trainer.configs.batch import BatchConfig
from lehr_trainer.configs.budget import Tokens
from lehr_trainer.configs.corpus import PartName, corpora, weighed
from lehr_trainer.configs.optimizer import optimizer_kind
from lehr_trainer.configs.schedule import ScheduleConfig
from lehr_trainer.configs.shapes import ROTARY_FIELDS

if TYPE_CHECKING:
    from lehr_trainer.configs.budget import ForkedAt
    from lehr_trainer.configs.train import TrainConfig

C = TypeVar("C", bound=Config)
Changes = Annotated[dict[str, Any], Field(exclude_if=lambda changes: not changes)]


class StageConfig(Config):
    """A part of the training. What it does not name stays as in the stage before."""

    name: OrNone[PartName] = None
    """For curves, forks and errors; its number, from 1, if not given."""
    tokens: Tokens
    """How many it trains on, e.g. 2B or 300M."""
    batch: Changes = {}
    """As ``train.batch``. With ``sequence_length`` alone the tokens of a step stay."""
    data: Changes = {}
    """As ``train.data``; ``corpus`` replaces the whole corpus."""
    model: Changes = {}
    """``rope_theta``, ``rope_scaling`` and ``max_sequence_length`` of ``train.model``."""
    optimizer: Changes = {}
    """As ``train.optimizer``, such as another ``lr``; its state goes on."""
    schedule: OrNone[ScheduleConfig] = None
    """A schedule that begins with this stage, and spans it and those after it that name none. Its
    warmup is 0 unless it names one. The first stage begins ``train.schedule``."""
    loss: Changes = {}
    """As ``train.loss``."""
    attention: Changes = {}
    """As ``train.attention``; only ``document_masking`` may change."""
    grad_clip: OrNone[NonNegativeFloat] = None
    """As ``train.grad_clip``."""
    validation: Changes = {}
    """As ``train.validation``; only ``every`` and ``micro_batch`` may change."""


_WHOLE = {"corpus", "rope_scaling"}
"""Mappings that a stage replaces; in all others it changes only the keys that it names."""
_ONLY = {
    "model": ROTARY_FIELDS,
    "attention": {"document_masking"},
    "validation": {"every", "micro_batch"},
}
"""Fields that a stage may change, where it may not change all."""
_NEVER = {"batch.stages", "data.tokenizer"}
READING = {"loss_mask", "loading", "workers", "prefetch"}
"""Fields of ``data`` that do not change what is prepared, nor which tokens a step has."""


class StageSpan(NamedTuple):
    """The steps of a stage."""

    name: str
    first: int
    """Steps before it."""
    last: int
    """Steps before its end."""
    tokens: int
    """Tokens before it."""
    batch: BatchConfig

    def tokens_at(self, step: int) -> int:
        return self.tokens + (step - self.first) * self.batch.tokens_per_step

    @property
    def trained(self) -> int:
        """Tokens of its steps; those before a fork included."""
        return self.tokens_at(self.last) - (self.tokens if self.first else 0)


def span_of(spans: Sequence[StageSpan], step: int) -> StageSpan:
    """Return the span of the last of so many steps."""
    return next((span for span in spans if step <= span.last), spans[-1])


def sharing_problem(spans: Sequence[StageSpan], world_size: int) -> str | None:
    """Explain why ``world_size`` ranks cannot share every step equally; None if they can."""
    for span in spans:
        if problem := span.batch.sharing_problem(world_size):
            return f"stage {span.name}: {problem}" if span.name else problem
    return None


def steps_within(spans: Sequence[StageSpan], tokens: int) -> int:
    """Return how many steps train on at most so many tokens."""
    begun = [span for span in spans if span.tokens_at(span.first) <= tokens] or spans[:1]
    span = begun[-1]
    return span.first + (tokens - span.tokens) // span.batch.tokens_per_step


class CourseStage(NamedTuple):
    """A stage of a training, complete."""

    span: StageSpan
    config: TrainConfig
    """Of its steps, as if the run consisted of them: ``steps`` is where the stage ends."""


def spans(
    stages: Sequence[StageConfig],
    batch: BatchConfig,
    forked_at: ForkedAt | None = None,
    *,
    steps: int = 0,
) -> list[StageSpan]:
    """Return the steps of each stage: those that reach the sum of tokens until its end.

    ``steps`` are those of a run without stages, which is one without a name.

    Raises:
        ValueError: a stage has no step, or its batch is wrong.
    """
    step, tokens = (forked_at.after_steps, forked_at.after_tokens) if forked_at else (0, 0)
    if not stages:
        return [StageSpan("", 0, steps, tokens - step * batch.tokens_per_step, batch)]
    result: list[StageSpan] = []
    end = first = 0
    for number, stage in enumerate(stages):
        name = stage.name or str(number + 1)
        if name in {span.name for span in result}:
            raise ValueError(f"stages.{number}.name {name} is the name of another stage")
        batch = _next_batch(f"stages.{number}.batch ({name})", batch, stage.batch)
        end += stage.tokens
        last = step + -(-max(0, end - tokens) // batch.tokens_per_step)
        if last == first:
            raise ValueError(
                f"stages.{number} ({name}): its {stage.tokens:,} tokens are already in the last "
                f"step of the stage before, which has {result[-1].batch.tokens_per_step:,}; give "
                "it more tokens, or leave it out"
            )
        before = tokens - (step - first) * batch.tokens_per_step
        result.append(StageSpan(name, first, last, before, batch))
        step, first, tokens = last, last, result[-1].tokens_at(last)
    return result


def _next_batch(path: str, batch: BatchConfig, changes: Mapping[str, Any]) -> BatchConfig:
    length = changes.get("sequence_length")
    if "sequences" not in changes and isinstance(length, int) and length > 0:
        if batch.tokens_per_step % length:
            raise ValueError(
                f"{path}: sequence length {length} does not divide the {batch.tokens_per_step} "
                "tokens of a step; name batch.sequences, too"
            )
        batch = batch.with_length(length)
    return _valid(BatchConfig, path, {**batch.model_dump(), **changes}) if changes else batch


def course(config: TrainConfig) -> list[CourseStage]:
    """Return the stages of a run, each complete; a run without any is one stage.

    Raises:
        ValueError: a stage is wrong, or does not fit to the others.
    """
    from lehr_trainer.configs.train import DataConfig

    spans = config.spans
    if not config.stages:
        return [CourseStage(spans[0], config)]
    left_out = {"stages", "steps", "tokens", "tokens_per_parameter", "batch", "schedule", "average"}
    raw = config.model_dump(mode="json", exclude=left_out)
    raws = {}
    for number, (stage, span) in enumerate(zip(config.stages, spans, strict=True)):
        path = f"stages.{number} ({span.name})"
        raw = raws[path] = _changed(raw, stage, path)
    data = [_valid(DataConfig, f"{path}: data", raw["data"]) for path, raw in raws.items()]
    read = [{one.model_dump_json() for one in corpora(own.corpus, "").values()} for own in data]
    # Stages that share a corpus have blocks of the longest sequence of all of them, so that the
    # next one goes on where the last one ended, and no token is left out. A stage may share one
    # corpus with a stage, and another one with a third.
    blocks = [span.batch.longest_sequence for span in spans]
    for _ in spans:
        blocks = [max(b for b, other in zip(blocks, read, strict=True) if other & r) for r in read]
    schedules = _schedules(config, [*raws], spans)
    stages: list[CourseStage] = []
    for (path, raw), span, schedule, block in zip(
        raws.items(), spans, schedules, blocks, strict=True
    ):
        batch = span.batch.model_dump(mode="json")
        if block != span.batch.sequence_length:
            batch["block"] = block
        document = {**raw, "steps": span.last, "batch": batch, "schedule": schedule}
        if stages:
            document["forked_at"] = {"after_steps": span.first, "after_tokens": span.tokens}
        stages.append(CourseStage(span, _valid(type(config), path, document)))
        kinds = {optimizer_kind(own.model_dump()) for _, own in (stages[0], stages[-1])}
        if len(kinds) > 1:
            raise ValueError(
                f"{path}: optimizer {' and '.join(sorted(map(str, kinds)))}: the stages of a run "
                "share the state of one optimizer; fork the run to change it"
            )
    return stages


def with_same_data(stages: Sequence[CourseStage]) -> list[list[CourseStage]]:
    """Group the stages whose prepared data are the same."""
    groups: dict[str, list[CourseStage]] = {}
    for stage in stages:
        data = stage.config.data
        # Prompts are masked in what is prepared.
        key = f"{data.masks_prompts} {data.model_dump_json(exclude=READING)}"
        groups.setdefault(key, []).append(stage)
    return list(groups.values())


def corpus_places(config: TrainConfig) -> list[tuple[str, TrainConfig]]:
    """Return each stage with the part of the config that names its corpus: ``stages.1.`` or all."""
    places, place = [], ""
    for number, stage in enumerate(config.course):
        if config.stages and "corpus" in config.stages[number].data:
            place = f"stages.{number}."
        places.append((place, stage.config))
    return places


def corpus_tokens(stages: Sequence[CourseStage]) -> dict[str, float]:
    """Return the tokens that a run takes of each corpus, by its JSON."""
    tokens: dict[str, float] = defaultdict(float)
    for stage in stages:
        for corpus, share in weighed(stage.config.data.corpus).values():
            tokens[corpus.model_dump_json()] += share * stage.span.trained
    return tokens


def as_built(config: TrainConfig) -> list[CourseStage]:
    """Return the stages with what all of them have in memory: positions, an average of weights."""
    stages, average = config.course, {"average": config.average}
    return [
        CourseStage(span, with_all_positions(own.model_copy(update=average), stages))
        for span, own in stages
    ]


def with_all_positions(config: TrainConfig, stages: Sequence[CourseStage]) -> TrainConfig:
    """Return the config with as many positions as the stage that needs most: it has one model."""
    most = max(stage.config.model.max_sequence_length for stage in stages)
    model = config.model.model_copy(update={"max_sequence_length": most})
    return config.model_copy(update={"model": model})


def _changed(raw: dict[str, Any], stage: StageConfig, path: str) -> dict[str, Any]:
    changes = stage.model_dump(mode="json", exclude={"name", "tokens", "batch", "schedule"})
    for part, fields in {**changes, "batch": stage.batch}.items():
        if not isinstance(fields, dict):
            continue
        if fields and part in {"model", "optimizer"} and (raw.get("parts") or {}).get(part):
            raise ValueError(
                f"{path}: a stage cannot change {part}, since parts.{part} is the project's own; "
                "fork the run to change it"
            )
        # A GPT-2 has a weight for each position.
        fixed = part == "model" and raw["model"]["kind"] != "llama"
        allowed = frozenset() if fixed else _ONLY.get(part, fields.keys())
        for field in fields:
            if f"{part}.{field}" in _NEVER or field not in allowed:
                may = f"; it may change {', '.join(sorted(_ONLY[part]))}" if part in _ONLY else ""
                raise ValueError(
                    f"{path}: a stage cannot change {part}.{field}{'' if fixed else may}"
                )
    return _merged(raw, changes)


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        both = isinstance(old, dict) and isinstance(value, dict) and key not in _WHOLE
        merged[key] = _merged(old or {}, value) if both else value
    return merged


def _schedules(
    config: TrainConfig, paths: Sequence[str], spans: Sequence[StageSpan]
) -> list[ScheduleConfig]:
    """Return the schedule of each stage, from the step where it begins to where it ends."""
    own = [stage.schedule for stage in config.stages]
    begins = [0, *(number for number in range(1, len(own)) if own[number]), len(own)]
    schedules: list[ScheduleConfig] = []
    for begin, end in pairwise(begins):
        schedule = own[begin] or config.schedule
        if own[begin] and schedule.starts_after:
            raise ValueError(
                f"{paths[begin]}: schedule.starts_after cannot be given; a schedule begins with "
                "its stage"
            )
        changes: dict[str, int | None] = {"starts_after": spans[begin].first} if begin else {}
        if begin and schedule.warmup_steps is None and schedule.warmup_ratio is None:
            changes["warmup_steps"] = 0
        last = schedule.ends_after or spans[end - 1].last
        for span in spans[begin:end]:
            changes["ends_after"] = last if span.last != last else None
            schedules.append(schedule.model_copy(update=changes))
    return schedules


def _valid(kind: type[C], path: str, values: Mapping[str, Any]) -> C:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
    texts = path, ".".join(map(str, problem["loc"])), problem["msg"].removeprefix("Value error, ")
    raise ValueError(": ".join(filter(None, texts)))
