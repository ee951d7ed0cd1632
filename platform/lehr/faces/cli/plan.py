"""``lehr plan``: estimate what a run, a sweep or a rollout needs. Works without a server."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lehr.base import formats
from lehr.errors import UserError
from lehr.faces.cli.connect import connect
from lehr.faces.cli.output import JsonOption, console, print_fitting, print_json, warn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lehr.specs import RunSpec, Spec
    from lehr_trainer.configs.train import TrainConfig

    Check = Callable[[Spec], list[str]]
    """Has the server check a spec; returns its warnings."""

app = typer.Typer(rich_markup_mode=None)
_COURSES_S = 6.0  # Seconds after which no further step of a campaign's course is simulated.

SpecFile = Annotated[
    str, typer.Argument(metavar="FILE", help="YAML or JSON file, or - for standard input.")
]
OverridesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PATH=VALUE]...", help="Change a field of the spec, e.g. train.optimizer.lr=1e-3"
    ),
]
Price = Annotated[
    float | None,
    typer.Option(
        "--price", min=0, max=1_000_000, help="Dollars per GPU-hour, to compute the cost."
    ),
]


@app.command("plan")
def plan(
    file: SpecFile,
    overrides: OverridesArgument = None,
    price: Price = None,
    trace: Annotated[
        bool,
        typer.Option(
            "--trace",
            help="Also trace the memory of one training step. Takes some seconds, needs no GPU.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Estimate memory, time and cost of a run, sweep or rollout, without launching it.

    A run without a gpu_type is planned for the GPUs of the cluster, if these are all of one kind.

    Exit code 3 if the plan cannot work, e.g. a run does not fit in a GPU.

    JSON: {kind: "run", name, plan} or {kind: "sweep", name, method, parameters, metric, goal,
    places, later, seconds, gpu_hours, dollars, trials: [{number, parameters, and a plan's keys}]},
    of a campaign with courses: [text],
    or {kind: "rollout", name, left_out, stages: [{number, name, title, judged_at_step, changes,
    runs: [{role, name, steps}], gates: [{name, enabled, expected, at_least, at_most, unit}], and a
    plan's keys}]}. A plan: {model, parameter_count, embedding_parameters, tokens_per_step, steps,
    tokens, corpus_tokens, tokens_per_parameter, flops, gpus, nodes, gpu_type, micro_batch,
    accumulation, largest_micro_batch, memory_bytes, gpu_memory_bytes,
    stages: [{name, steps, tokens, sequences, sequence_length, micro_batch, corpus, corpus_tokens,
    lr, flops, share, memory_bytes, seconds, dollars}],
    memory_stages: [{stage, shape, overhead_bytes, phases}],
    checkpoint_copy_bytes, average_bytes, checkpoints: {size_bytes, saves, kept, keeps_best},
    replaced_parts, not_counted, fits, fits_in, free_nodes, seconds, gpu_hours, dollars, basis,
    link: [text]}; an
    unknown value is null. ``free_nodes`` names the nodes on which it could start now.
    ``corpus_tokens`` has the tokens of each corpus of a mix.
    ``stages`` are those of ``train.stages``, empty without; ``lr`` is the first, the highest and
    the last learning rate, ``share`` that of the FLOPs. ``tokens_per_step`` is then that of the
    last, and ``micro_batch`` that of the one that takes most memory.
    ``replaced_parts`` states what is known of the parts that the project replaces; ``fits`` is
    then null.
    ``not_counted`` states what ``memory_bytes`` does not count of this run, e.g. CUDA graphs.
    ``largest_micro_batch`` is the largest micro-batch that fits in memory and divides a rank's
    share of the batch.
    ``checkpoint_copy_bytes`` is the host memory that a background save needs on rank 0; it is 0 if
    saves block training. ``average_bytes`` is that of ``train.average``.
    ``checkpoints`` are the regular ones on disk; one more is there while it replaces another.
    ``phases`` has, for each phase of a step, the bytes of parameters, gradients, optimizer,
    activations, temporaries and their total. With --trace a run
    has trace: {device, ranks, notes, checkpoint_copy_bytes, stages: [{stage, shape, traced,
    planned, difference_percent}]}, with phases in traced and planned; ``difference_percent``
    compares the largest totals of both.
    """
    spec = read_spec(file, overrides)
    if trace and spec.kind != "run":
        raise UserError(
            f"--trace takes a run, and {file} is a {spec.kind}.",
            hint="Plan one of its runs as a file of its own, or leave out --trace.",
        )
    show_plan(spec, price=price, as_json=as_json, trace=trace, each_trial=True)


def read_spec(file: str, overrides: list[str] | None) -> Spec:
    """Read the spec from a file, or from standard input when the file is ``-``."""
    from lehr.specs import load_spec

    if file == "-":
        return load_spec(f"{sys.stdin.read()}\n", overrides or [])
    # Always a path, never YAML text.
    from pathlib import Path

    return load_spec(Path(file), overrides or [])


def show_plan(
    spec: Spec,
    *,
    price: float | None = None,
    as_json: bool = False,
    trace: bool = False,
    each_trial: bool = False,
    check: Check | None = None,
) -> None:
    """Print the plan of a run, sweep or rollout, then fail if it cannot work.

    ``price`` is in dollars per GPU-hour. ``each_trial`` adds the table of a sweep's trials.
    ``check`` is called before anything is printed; its warnings follow the plan.

    Raises:
        PlanRefused: a run does not fit in the requested GPU.
    """
    from lehr.analysis.plan_json import spec_json
    from lehr.control.campaign_plan import courses
    from lehr.control.campaign_record import refuse as refuse_campaign
    from lehr.faces.cli.plan_text import plan_text, stages_table, trials_table
    from lehr.faces.cli.plan_trace import built_parts, show_trace, traced
    from lehr.faces.client.plan_server import PlanServer

    if _of_program(spec, as_json=as_json, trace=trace, check=check):
        return
    server = PlanServer(connect)
    plan, refused = server.plan(spec, price=price, built=built_parts)
    expected: list[str] = []
    if spec.kind == "sweep" and plan.campaign is not None:
        hours = [own.gpu_hours for _, own in plan.runs]
        refuse_campaign(spec, hours)
        known, until = [each for each in hours if each], time.monotonic() + _COURSES_S
        if each_trial and len(known) == len(hours):
            expected = [*courses(spec, known, lambda: time.monotonic() < until)]
    warnings = check(spec) if check is not None and refused is None else []
    found = traced(spec) if trace and spec.kind == "run" else None
    if as_json:
        answer = spec_json(plan, server.cluster)
        answer |= {"courses": expected} if expected else {}
        print_json(answer if found is None else {**answer, "trace": found})
    else:
        console().print(plan_text(plan, server.cluster))
        print_data(runs_of(spec))
        for warning in warnings:
            warn(warning)
        if spec.kind == "run" and spec.own.stages:
            console().print()
            console().print(stages_table(plan.runs[0][1], _of_prepared(spec.own)[1]))
        if found is not None:
            show_trace(found, plan.runs[0][1])
        if spec.kind == "sweep" and (each_trial or spec.campaign is not None):
            console().print()
            print_fitting(trials_table(plan), fold="", spare=("time", "GPUs", "tokens"))
        if expected:
            console().print(
                f"\nExpected course, by {formats.counted(len(expected), 'draw')} of the prior:"
            )
        for text in expected:
            console().print(f"  {text}", highlight=False, markup=False)
    if refused is not None:
        raise refused


def runs_of(spec: Spec) -> list[RunSpec]:
    from lehr.analysis.plan import known_runs

    return [run for _, run in known_runs(spec)]


def _of_program(spec: Spec, *, as_json: bool, trace: bool, check: Check | None) -> bool:
    """Print that a program of the user's own has no plan; return False for Lehr's trainer."""
    from lehr.specs import expand

    run = None if spec.kind == "rollout" else spec if spec.kind == "run" else spec.run
    if run is None or run.trainer is None:
        return False
    if trace:
        run.own  # noqa: B018 - raises, with the reason
    warnings = check(spec) if check is not None else []
    gpus = run.resources.gpus
    where = formats.counted(gpus, "GPU") if gpus else "the CPU"
    steps = "steps not known," if run.steps is None else f"{run.steps:,} steps"
    text = (
        f"{run.trainer.entry}, {steps} on {where}. The model of a program of your "
        "own is not known, so neither memory nor time is planned."
    )
    answer: dict[str, Any] = {"kind": spec.kind, "name": spec.name}
    if spec.kind == "sweep":
        text = f"{spec.trial_count:,} trials, each: {text}"
        answer["trials"] = [{"parameters": point, "plan": None} for point, _ in expand(spec)]
    else:
        answer["plan"] = None
    if as_json:
        print_json(answer)
    else:
        console().print(text)
        for warning in warnings:
            warn(warning)
    return True


def print_data(specs: Iterable[RunSpec]) -> None:
    """Print each held-out set that is prepared on this machine, many passes over a corpus, and each
    problem, once.

    A path may exist where the runs train, so nothing is refused.
    """
    from lehr.analysis.batches import passes_note
    from lehr.specs.evaluations import evaluations_of
    from lehr_trainer.data.checks import files_read
    from lehr_trainer.data.first_file import Looks
    from lehr_trainer.errors import BadData

    runs = [spec for spec in specs if spec.train is not None]
    trains = {
        repr((t.data, t.validation, t.total_tokens, t.stages)): t for t in (r.own for r in runs)
    }
    read: dict[str | None, None] = {}
    for corpus in (own.data.corpus for train in trains.values() for _, own in train.course):
        with suppress(BadData):  # It is one of the problems.
            read[files_read(corpus, Looks())] = None
    for text in filter(None, read):
        console().print(f"  files    {text}", highlight=False, markup=False)
    known = [_of_prepared(train) for train in trains.values()]
    for text in dict.fromkeys(text for scored, _ in known for text in scored):
        console().print(f"  scored   {text}", highlight=False)
    notes = [
        note if path == "train.data.corpus" else f"{path}: {note}"
        for _, passes in known
        for path, epochs in passes.items()
        if (note := passes_note(epochs))
    ]
    if beside := {one.name: None for run in runs for one in evaluations_of(run)}:
        notes.append(f"evaluations are not in the plan: {', '.join(beside)}; budgets count them")
    for text in dict.fromkeys([*notes, *data_problems(runs)]):
        warn(text)


def _of_prepared(train: TrainConfig) -> tuple[list[str], dict[str, float]]:
    """Return what evaluations score, and how often the run passes over each corpus, by its path,
    where data are prepared.
    """
    from lehr.base import home
    from lehr_trainer.configs.corpus import corpora
    from lehr_trainer.configs.stages import corpus_places, corpus_tokens, with_same_data
    from lehr_trainer.errors import TrainerError

    scored: list[str] = []
    passes: dict[str, float] = {}
    course, validation = train.course, train.validation
    taken = corpus_tokens(course)
    try:
        from lehr_trainer.data.prepared_sample import prepared_sample, prepared_tokens

        for span, own in (group[0] for group in with_same_data(course)):
            sample = prepared_sample(own.data, validation, home.data_dir())
            if sample is not None:
                of_stage = f"stage {span.name}: " if span.first else ""
                scored.append(f"{of_stage}{sample.describe(validation.tokens)}")
        for place, own in corpus_places(train):
            for path, corpus in corpora(own.data.corpus, f"train.{place}data.corpus").items():
                data = own.data.model_copy(update={"corpus": corpus})
                if tokens := prepared_tokens(data, validation, home.data_dir()):
                    passes[path] = taken[corpus.model_dump_json()] / tokens
    except (ImportError, OSError, TrainerError):
        pass  # Of a trainer that is not installed here, or data that are elsewhere.
    return scored, passes


def data_problems(specs: Iterable[RunSpec]) -> list[str]:
    from lehr_trainer.data.checks import problems
    from lehr_trainer.errors import BadData

    found = [
        f"train.{error}{' (looked for on this machine)' if isinstance(error, BadData) else ''}"
        for spec in specs
        if spec.train is not None
        for error in problems(spec.own)
    ]
    return list(dict.fromkeys(found))
