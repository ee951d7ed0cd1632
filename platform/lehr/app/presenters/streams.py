"""Metrics, series, logs and the history of a run: the store's values as the API's schemas."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Self

from pydantic import BaseModel, TypeAdapter
from sqlmodel import SQLModel

from lehr.app.presenters.series import rounded
from lehr.base.formats import listed, signal_name
from lehr.base.formats import loss as four_digits
from lehr.base.names import goal_of
from lehr.control.lifecycle import ALERT
from lehr.control.saved_points import kept_because
from lehr.schemas.checkpoints import CheckpointView
from lehr.schemas.runs import AttemptView, GpuRef, Latest, TrainStage
from lehr.schemas.streams import (
    EventView,
    LogChunk,
    LogStream,
    MediaView,
    MetricInfo,
    SampleView,
)
from lehr.specs.stored import StoredSpec
from lehr.store import Store
from lehr.store.ids import attempt_id
from lehr.store.records.checkpoints import THERE
from lehr.store.streams.events import StoredRecord
from lehr.store.streams.logs import LogFile, LogText
from lehr.store.streams.replica import Gap
from lehr.store.streams.replication import StreamInfo
from lehr.store.streams.series import LatestValue, MetricSummary
from lehr.store.tables import Attempt, CheckpointRow, RunRequest, RunRow, Transition
from lehr_trainer.checkpointing.retention import best_of
from lehr_trainer.configs.stages import StageSpan
from lehr_trainer.configs.train import ModelConfig
from lehr_trainer.contract import layout, records
from lehr_trainer.contract.records import Notice, Started, Warning_
from lehr_trainer.planning import counts


def shared_fields(row: SQLModel, view: type[BaseModel]) -> dict[str, Any]:
    """Return the fields of a view that the row has under the same name."""
    return {name: getattr(row, name) for name in _shared(type(row), view)}


@cache
def _shared(row: type[SQLModel], view: type[BaseModel]) -> list[str]:
    return sorted(row.model_fields.keys() & view.model_fields.keys())


def metric_info(metric: MetricSummary) -> MetricInfo:
    return MetricInfo(**vars(metric), goal=goal_of(metric.name))


def latest_values(latest: Mapping[str, LatestValue]) -> dict[str, Latest]:
    """By metric."""
    values = rounded([one.value for one in latest.values()])
    return {
        name: Latest(value=value, step=one.step)
        for (name, one), value in zip(latest.items(), values, strict=True)
    }


def log_stream(log: LogFile) -> LogStream:
    return LogStream(**vars(log))


def log_chunk(part: LogText) -> LogChunk:
    return LogChunk(**vars(part))


def losses(number: int, gaps: Sequence[Gap], streams: Sequence[StreamInfo]) -> list[str]:
    """Return a sentence for each gap in an attempt's streams, and for lines that were skipped."""
    found = [f"Attempt {number}: {gap.text}." for gap in gaps]
    for one in streams:
        if one.malformed:
            lines = "1 line" if one.malformed == 1 else f"{one.malformed:,} lines"
            found.append(f"Attempt {number}: {lines} of {one.name} could not be read: skipped.")
    return found


_model: TypeAdapter[Any] = TypeAdapter(ModelConfig)


def flops_per_token(train: Mapping[str, Any]) -> float | None:
    """Return them from a run's train config; None when its sequence length changes during the
    run, or when its model is not Lehr's.
    """
    lengths = {span.batch.sequence_length for span in StoredSpec({"train": train}).spans}
    if (train.get("parts") or {}).get("model"):
        return None
    if train["batch"].get("stages") or len(lengths) > 1:
        return None
    return _flops(json.dumps(train["model"], sort_keys=True), lengths.pop())


@lru_cache(maxsize=1024)
def _flops(model: str, sequence_length: int) -> float:
    return counts.flops_per_token(_model.validate_json(model), sequence_length)


RECORD_KINDS = frozenset(
    {
        "started",
        "resumed",
        "checkpoint",
        "checkpoint_removed",
        "evaluation",
        "warning",
        "notice",
        "stopping",
        "finished",
    }
)


def events(store: Store, run: RunRow) -> tuple[list[EventView], bool]:
    """Return the events, oldest first, and whether they are all; if not, old records are left out.

    Clocks of workers and server may differ; within an attempt the order is kept.
    """
    found = [_moved(move) for move in store.transitions.of_run(run.id)]
    found += [_asked(request) for request in store.requests.of_run(run.id)]
    newest = store.events.newest(run.id, RECORD_KINDS)
    found += [_view(stored) for stored in newest.records]
    # Stable: equal times keep the order of the attempt's records.
    return sorted(found, key=lambda event: event.at), newest.whole


def samples(store: Store, run: RunRow) -> tuple[list[SampleView], bool]:
    """Return the samples, oldest first, and whether they are all; if not, old ones are left out."""
    newest = store.events.newest(run.id, {"sample"})
    return [
        SampleView(
            step=record.step,
            attempt=attempt,
            prompt=record.prompt,
            text=record.text,
            at=record.time,
        )
        for attempt, record in newest.records
        if isinstance(record, records.Sample)
    ], newest.whole


def media(store: Store, run: RunRow) -> tuple[list[MediaView], bool]:
    """Return images, tables and others, oldest first, and whether they are all, as ``samples``.

    Those whose content has not arrived are left out, and those that a later attempt logs again.
    """
    stored, whole = store.events.newest(run.id, {"media"})
    found = [(number, one) for number, one in stored if isinstance(one, records.LoggedMedia)]
    last = {(one.name, one.step): number for number, one in found}
    sizes = {number: store.streams.sizes(attempt_id(run.id, number)) for number in last.values()}
    return [
        MediaView(attempt=number, at=one.time, **one.model_dump(exclude={"kind", "time"}))
        for number, one in found
        if last[one.name, one.step] == number
        and one.offset + one.size <= sizes[number].get(layout.MEDIA, 0)
    ], whole


def checkpoints(store: Store, run: RunRow) -> list[CheckpointView]:
    """Return checkpoints by step; removed ones stay listed, with the time."""
    rows = store.checkpoints.of_run(run.id, removed=True)
    attempts = store.attempts.of_run(run.id)
    if run.stored.program:
        _score(store, run, rows, attempts)
    existing = [row for row in rows if row.removed_at is None or row.copy_state == THERE]
    newest = max(existing, key=lambda row: (row.attempt, row.step), default=None)
    nodes = {a.number: a.placement[0]["node"] for a in attempts if a.placement}
    policy = run.stored.checkpoint_policy
    best = best_of(existing, policy)
    needed = store.checkpoints.needed_by_forks(run.id)
    kept = kept_because(existing, policy)
    return [
        CheckpointView(
            **row.model_dump(exclude={"id"}),
            best=row is best,
            latest=row is newest,
            node=nodes.get(row.attempt),
            kept=[
                *kept.get((row.attempt, row.step), []),
                *(["a fork waits to start from it"] if row.path in needed else []),
            ],
        )
        for row in rows
    ]


def _score(store: Store, run: RunRow, rows: list[CheckpointRow], attempts: list[Attempt]) -> None:
    """Give each checkpoint of a program the val/loss that it has logged at its step, if that is of
    the same attempt or of one that continues from it.
    """
    losses = {
        step: loss
        for logged in store.series.read_many([run.id], "val/loss", exact=True)
        for step, loss in zip(logged.step, logged.y, strict=True)
    }
    starts = {a.number: (layout.checkpoint_at(a.resume_from or "") or (0, 0))[1] for a in attempts}
    for row in rows:
        later = [step for number, step in starts.items() if number > row.attempt]
        if row.step <= min(later, default=row.step):
            row.val_loss = losses.get(row.step)


def _moved(move: Transition) -> EventView:
    what = f"{move.old} -> {move.new}" if move.old else move.new
    why = move.message or move.cause.replace("_", " ")
    return EventView(
        at=move.at,
        kind="transition",
        message=f"{what}: {why}",
        attempt=move.attempt,
        data={"from": move.old, "to": move.new, "cause": move.cause, "actor": move.actor},
    )


def _asked(request: RunRequest) -> EventView:
    if request.actor.startswith(ALERT):
        return EventView(
            at=request.at,
            kind="alert",
            message=f"{request.message} ({request.kind})",
            attempt=request.attempt,
            data={"action": request.kind, "code": request.actor.removeprefix(ALERT)},
        )
    said_so = f": {request.message}" if request.message else ""
    return EventView(
        at=request.at,
        kind="request",
        message=f"{request.actor} requested {request.kind}{said_so}",
        attempt=request.attempt,
        data={"request": request.kind, "actor": request.actor},
    )


def _view(stored: StoredRecord) -> EventView:
    record = stored.record
    # Through JSON, where non-finite numbers become their names.
    data: dict[str, Any] = json.loads(record.model_dump_json(exclude={"time", "kind"}))
    return EventView(
        at=record.time,
        kind=record.kind,
        message=_words(record),
        attempt=stored.attempt,
        step=getattr(record, "step", None),
        data=data,
    )


def _words(record: records.AnyRecord) -> str:
    match record:
        case records.Started():
            ranks = f"{record.world_size} rank{'' if record.world_size == 1 else 's'}"
            return f"training started on {record.device}, {ranks}"
        case records.Resumed():
            skipped = (
                f"; skipped {len(record.skipped)} that did not verify" if record.skipped else ""
            )
            changed = f"; changed since then: {', '.join(record.changed)}" if record.changed else ""
            if record.skipped_through is not None:
                skipped += f"; {record.rewound}"
            point = f" ({record.checkpoint}{skipped})" if record.checkpoint else ""
            return f"resumes from step {record.step:,}{point}{changed}"
        case records.Checkpoint():
            loss = (
                f", val/loss {four_digits(record.val_loss)}" if record.val_loss is not None else ""
            )
            return f"checkpoint at step {record.step:,} ({record.reason}{loss})"
        case records.CheckpointRemoved():
            return f"checkpoint of step {record.step:,} removed ({record.reason})"
        case records.Evaluation():
            if not record.values:
                return f"evaluates on the held-out set {(record.validation_digest or '')[:8]}"
            return listed([f"{name} {four_digits(value)}" for name, value in record.values.items()])
        case records.Warning_() | records.Notice():
            return record.message
        case records.Stopping():
            return f"stops at step {record.step:,}: {record.reason}"
        case records.Finished():
            why = f": {record.message}" if record.message else ""
            return f"{record.outcome} at step {record.step:,}{why}"
        case _:
            return record.kind


@dataclass(frozen=True)
class TrainerSummary:
    """The parts of a trainer's records that a list shows."""

    device: str | None = None
    parameters: int | None = None
    warnings: tuple[str, ...] = ()  # The newest of each kind of warning.
    held_out: str | None = None  # What an evaluation scores.
    notice: str | None = None  # What it does before its first step: prepares data, compiles.

    @classmethod
    def of(cls, records: Iterable[Any]) -> Self:
        """Return the summary of records of one attempt, in their order."""
        device: str | None = None
        parameters: int | None = None
        held_out: str | None = None
        warnings: dict[str, str] = {}
        notice: str | None = None
        for record in records:
            if isinstance(record, Started):
                device = record.device
                parameters = record.parameters or None
                held_out = record.held_out
            elif isinstance(record, Warning_):
                warnings[record.code] = record.message
            elif isinstance(record, Notice):
                share = f" ({record.done:.0%})" if record.done is not None else ""
                notice = f"{record.message}{share}"
        return cls(device, parameters, tuple(warnings.values()), held_out, notice)


def attempt_view(
    attempt: Attempt, sizes: dict[str, int], heartbeat_at: float | None = None
) -> AttemptView:
    """Return the view. ``heartbeat_at``: its last heartbeat, if it is newer than the recorded."""
    finished, exited = attempt.finished or {}, attempt.exit or {}
    shown = {
        **shared_fields(attempt, AttemptView),
        "placement": gpu_refs(attempt),
        "last_heartbeat_at": heartbeat_at or attempt.last_heartbeat_at,
    }
    return AttemptView(
        **shown,
        exit_code=exited.get("code"),
        signal=signal_name(number) if (number := exited.get("signal")) else None,
        outcome=finished.get("outcome"),
        cause=finished.get("cause") or exited.get("reason"),
        message=finished.get("message") or exited.get("detail"),
        streams=sizes,
    )


def train_stages(spans: Sequence[StageSpan]) -> list[TrainStage]:
    return [
        TrainStage(
            name=span.name,
            first_step=span.first + 1,
            last_step=span.last,
            tokens=span.tokens_at(span.first),
            sequences=span.batch.sequences,
            sequence_length=span.batch.sequence_length,
        )
        for span in spans
        if span.name
    ]


def gpu_refs(attempt: Attempt) -> list[GpuRef]:
    return [
        GpuRef(node=share["node"], gpu=gpu) for share in attempt.placement for gpu in share["gpus"]
    ]
