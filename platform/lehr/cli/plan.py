"""``lehr plan``: estimate what a run, a sweep or a rollout needs. Works without a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lehr.cli.connect import connect
from lehr.cli.output import JsonOption, console, print_json, warn
from lehr.errors import PlanRefused, UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lehr.analysis.plan import RunPlan
    from lehr.client.plan_server import PlanServer
    from lehr.specs import RunSpec, Spec, SweepSpec

    Check = Callable[[Spec], list[str]]
    """Has the server check a spec; returns its warnings."""

app = typer.Typer(rich_markup_mode=None)

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
    places, later, seconds, gpu_hours, dollars, trials: [{number, parameters, and a plan's keys}]}
    or {kind: "rollout", name, left_out, stages: [{number, name, title, judged_at_step, changes,
    runs: [{role, name, steps}], gates: [{name, enabled, expected, at_least, at_most, unit}], and a
    plan's keys}]}. A plan: {model, parameter_count, embedding_parameters, tokens_per_step, steps,
    tokens, corpus_tokens, tokens_per_parameter,
    usual_batches: [{tokens, source, reference, domain}], flops, gpus,
    nodes, gpu_type, micro_batch, accumulation, largest_micro_batch, memory_bytes, gpu_memory_bytes,
    memory_stages: [{shape, overhead_bytes, phases}],
    checkpoint_copy_bytes, checkpoints: {size_bytes, saves, kept, keeps_best}, replaced_parts,
    not_counted, fits, fits_in, free_nodes, seconds, gpu_hours, dollars, basis}; an unknown value is
    null. ``free_nodes`` names the nodes on which it could start now. ``corpus_tokens`` has the
    tokens of each corpus of a mix.
    ``usual_batches`` are published recommendations for such a run. ``replaced_parts`` states what
    is known of the parts that the project replaces; ``fits`` is then null.
    ``not_counted`` states what ``memory_bytes`` does not count of this run, e.g. CUDA graphs.
    ``largest_micro_batch`` is the largest micro-batch that fits in memory and divides a rank's
    share of the batch.
    ``checkpoint_copy_bytes`` is the host memory that a background save needs on rank 0;
    it is 0 if saves block training. ``checkpoints`` are the regular ones on disk; one more is there
    while it replaces another. ``phases`` has, for each phase of a step, the bytes of
    parameters, gradients, optimizer, activations, temporaries and their total. With --trace a run
    has trace: {device, ranks, notes, checkpoint_copy_bytes, stages: [{shape, traced, planned,
    difference_percent}]}, with phases in traced and planned; ``difference_percent`` compares
    the largest totals of both.
    """
    spec = read_spec(file, overrides)
    if trace and spec.kind != "run":
        raise UserError(
            f"--trace takes a run, and {file} is a {spec.kind}.",
            hint="Plan one of its runs as a file of its own, or leave out --trace.",
        )
    if spec.kind == "run":
        show_run_plan(spec, price=price, as_json=as_json, trace=trace)
    elif spec.kind == "sweep":
        show_sweep_plan(spec, price=price, as_json=as_json, each_trial=True)
    else:
        from lehr.cli.rollout_plan import show_rollout_plan

        show_rollout_plan(spec, price=price, as_json=as_json)


def read_spec(file: str, overrides: list[str] | None) -> Spec:
    """Read the spec from a file, or from standard input when the file is ``-``."""
    import sys

    from lehr.specs import load_spec

    if file == "-":
        return load_spec(f"{sys.stdin.read()}\n", overrides or [])
    # Always a path, never YAML text.
    from pathlib import Path

    return load_spec(Path(file), overrides or [])


def show_run_plan(
    spec: RunSpec,
    *,
    price: float | None = None,
    as_json: bool = False,
    trace: bool = False,
    check: Check | None = None,
) -> None:
    """Print the plan, with a trace of its memory if requested, then fail if it cannot work.

    ``check``: called before anything is printed; its warnings follow the plan.

    Raises:
        PlanRefused: it does not fit in the requested GPU.
    """
    from lehr.analysis.plan import plan_run
    from lehr.analysis.plan_json import plan_json
    from lehr.cli.built_model import built_model
    from lehr.cli.plan_data import print_data
    from lehr.cli.plan_text import run_text
    from lehr.cli.plan_trace import show_trace, traced
    from lehr.client.plan_server import PlanServer

    if spec.trainer is not None:
        if trace:
            spec.own  # noqa: B018 - raises, with the reason
        warnings = check(spec) if check is not None else []
        if as_json:
            print_json({"kind": "run", "name": spec.name, "plan": None})
        else:
            console().print(_program_text(spec))
            print_warnings(warnings)
        return
    server = PlanServer(connect)
    here = server.on_this_cluster(spec)
    made = plan_run(here, price=price, before=server.measured, built=built_model(spec))
    refused = refusal(server, [(spec, made)])
    warnings = check(spec) if check is not None and refused is None else []
    found = traced(spec) if trace else None
    if as_json:
        answer = {"kind": "run", "name": spec.name, "plan": plan_json(made, server.cluster)}
        print_json(answer if found is None else {**answer, "trace": found})
    else:
        console().print(run_text(spec.name, made, server.cluster))
        print_data([spec])
        print_warnings(warnings)
        if found is not None:
            show_trace(found, made)
    if refused is not None:
        raise refused


def refusal(
    server: PlanServer, plans: Sequence[tuple[RunSpec, RunPlan]], places: int = 1
) -> PlanRefused | None:
    """Return the error of the first run that cannot work, or of all together; None if they can.

    ``places``: how many of them train at once.
    """
    try:
        server.refuse(plans, places)
    except PlanRefused as error:
        return error
    return None


def print_warnings(warnings: Iterable[str]) -> None:
    for warning in warnings:
        warn(warning)


def show_sweep_plan(
    spec: SweepSpec,
    *,
    price: float | None = None,
    as_json: bool = False,
    each_trial: bool = False,
    check: Check | None = None,
) -> None:
    """Print the plan, with its trials if requested, then fail if one of them cannot work.

    ``check``: called before anything is printed; its warnings follow the plan.

    Raises:
        PlanRefused: a trial does not fit in the requested GPU.
    """
    from lehr.analysis.plan import plan_sweep
    from lehr.analysis.plan_json import sweep_json
    from lehr.cli.built_model import built_model
    from lehr.cli.plan_data import print_data
    from lehr.cli.plan_text import sweep_text, trials_table
    from lehr.client.plan_server import PlanServer
    from lehr.specs import expand

    trials = expand(spec)
    if spec.run.trainer is not None:
        warnings = check(spec) if check is not None else []
        if as_json:
            names = [{"parameters": point, "plan": None} for point, _ in trials]
            print_json({"kind": "sweep", "name": spec.name, "trials": names})
        else:
            console().print(f"{spec.trial_count:,} trials, each: {_program_text(spec.run)}")
            print_warnings(warnings)
        return
    server = PlanServer(connect)
    made = plan_sweep(
        spec,
        [(point, server.on_this_cluster(run)) for point, run in trials],
        price=price,
        places=server.places(run.resources for _, run in trials),
        before=server.measured,
        built=built_model,
    )
    runs = [(run, trial) for (_, run), (_, trial) in zip(trials, made.trials, strict=True)]
    refused = refusal(server, runs, made.places)
    warnings = check(spec) if check is not None and refused is None else []
    if as_json:
        print_json({"kind": "sweep", **sweep_json(made, server.cluster)})
    else:
        console().print(sweep_text(made, server.cluster))
        print_data(run for run, _ in runs)
        print_warnings(warnings)
        if each_trial:
            console().print()
            console().print(trials_table(made))
    if refused is not None:
        raise refused


def _program_text(spec: RunSpec) -> str:
    """Describe a run with a program of its own: there is no plan of its memory and time."""
    assert spec.trainer is not None
    gpus = spec.resources.gpus
    where = f"{gpus} GPU{'s' * (gpus != 1)}" if gpus else "the CPU"
    steps = "steps not known," if spec.steps is None else f"{spec.steps:,} steps"
    return (
        f"{spec.trainer.entry}, {steps} on {where}. The model of a program of your "
        "own is not known, so neither memory nor time is planned."
    )


def of_another_kind(file: str, spec: Spec, wanted: str) -> UserError:
    """Return the error for a file that another command launches."""
    verb = "submit" if spec.kind == "run" else spec.kind
    ask = "Submit" if spec.kind == "run" else "Launch"
    return UserError(
        f"{file} is a {spec.kind}, not a {wanted}.", hint=f"{ask} it with: lehr {verb} {file}"
    )
