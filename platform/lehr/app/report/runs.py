"""The report of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lehr.app.report import parts
from lehr.app.report.document import Document, Section, Table
from lehr.base import formats

if TYPE_CHECKING:
    from lehr.schemas.checkpoints import CheckpointView
    from lehr.schemas.runs import RunDetail
    from lehr.schemas.streams import Series

LOSSES = ("train/loss", "val/loss")
CURVES = (*LOSSES, "train/lr", "train/grad_norm", "tokens_per_s", "mfu", "memory/peak_bytes")
"""Metrics that a report draws, where a run has them."""


def run_report(
    run: RunDetail,
    series: Mapping[str, Series],
    checkpoints: Sequence[CheckpointView],
    *,
    deleted: bool,
    made_at: float,
    version: str,
) -> Document:
    """Return the report.

    Args:
        run: with its spec, provenance and attempts.
        series: by name, those of ``CURVES`` that it has.
        checkpoints: its checkpoints.
        deleted: whether its metrics and files were deleted.
        made_at: seconds since the epoch.
        version: of Lehr.
    """
    alerts = parts.alerts([(run.name, run)], {run.id: run.diagnosis})
    sections = [
        Section("Result", facts=_facts(run), alerts=alerts, notes=_notes(run)),
        Section(
            "Curves",
            figures=[parts.curves(name, [(run.name, one)]) for name, one in series.items()],
            empty="Its metrics were deleted." if deleted else "It has logged no metric yet.",
        ),
        parts.checkpoints(checkpoints),
        _attempts(run),
        parts.config(run.spec),
        *parts.provenance(run.provenance),
    ]
    headline = _headline(run)
    return parts.document("run", run, headline, sections, made_at=made_at, version=version)


def _headline(run: RunDetail) -> str:
    done = "no step yet" if run.step is None else formats.steps(run.step, run.total_steps)
    losses = [
        f"{name} {parts.number(run.latest[name].value)} at step {run.latest[name].step:,}"
        for name in LOSSES
        if name in run.latest
    ]
    return f"{'; '.join([done, *losses])}."


def _notes(run: RunDetail) -> list[str]:
    found = [f"{run.state}: {run.reason}"] if run.reason else []
    if run.pending_reason:
        found.append(f"It waits: {run.pending_reason}")
    return [*found, f"Notes: {run.note}"] if run.note else found


def _facts(run: RunDetail) -> list[tuple[str, str]]:
    tokens = None if run.step is None else run.step * run.tokens_per_step + run.extra_tokens
    counts = [
        ("tokens trained on", formats.millions(tokens)),
        ("tokens of a step", f"{run.tokens_per_step:,}"),
    ]
    facts = [
        ("parameters", formats.millions(run.parameters)),
        # A program need not declare its tokens: then each step counts as one.
        *(counts if run.tokens_per_step > 1 else []),
        ("GPUs", f"{run.gpus} on {run.nodes} {'node' if run.nodes == 1 else 'nodes'}"),
        ("device", run.device or formats.NOTHING),
        *parts.cost(run.cost),
        ("submitted", parts.at(run.created_at)),
        ("started", parts.at(run.started_at)),
        ("ended", parts.at(run.ended_at)),
    ]
    facts += [
        (name, f"{parts.metric(name, latest.value)} at step {latest.step:,}")
        for name, latest in run.latest.items()
    ]
    if run.forked_from:
        facts.append(("forked from", run.forked_from))
    return facts


def _attempts(run: RunDetail) -> Section:
    rows = [
        [
            str(one.number),
            parts.at(one.created_at),
            parts.at(one.exited_at),
            ", ".join(f"{gpu.node}:{gpu.gpu}" for gpu in one.placement),
            one.outcome or ("running" if one.open else formats.NOTHING),
            one.message or one.cause or "",
        ]
        for one in run.attempts
    ]
    head = ["", "started", "ended", "GPUs", "outcome", "message"]
    return Section(
        "Attempts", tables=[Table(head, rows)] if rows else [], empty="It has not started yet."
    )
