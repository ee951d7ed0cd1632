"""Format a plan as text, with what the server can add to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lehr.analysis.gates import TITLES, expected
from lehr.analysis.plan import RunPlan, SpecPlan
from lehr.analysis.plan_json import free_nodes, stage_runs
from lehr.base import formats
from lehr.faces.cli.output import escaped, table
from lehr.faces.client.plan_server import places
from lehr.specs.stages import left_out
from lehr.specs.sweep import STARTUP_TRIALS
from lehr_trainer.planning.hardware import GPUS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.table import Table

    from lehr.schemas.cluster import ClusterView

_NAMED = 4
"""Names of nodes in a line, at most."""


def plan_text(plan: SpecPlan, cluster: ClusterView | None) -> str:
    """Return the plan as markup: the same lines for a run, for all trials and for each stage."""
    if plan.spec.kind == "run":
        lines = [f"[bold]{escaped(plan.spec.name)}[/]", *_run_lines(plan.runs[0][1], cluster)]
        return "\n".join(lines)
    lines_of = _sweep_lines if plan.spec.kind == "sweep" else _rollout_lines
    return "\n".join(lines_of(plan, cluster))


def _run_lines(plan: RunPlan, cluster: ClusterView | None) -> list[str]:
    place = f"{_gpus(plan.gpus, plan, cluster)}{plan.on_nodes}"
    details = [_micro_batch_line(plan), *_phase_lines(plan)]
    return [
        *_need_lines([plan], details=details),
        _line("place", f"{place}{_now(plan, cluster)}"),
        *map(_line, ("link", ""), plan.link),
        _time_line(plan.seconds, plan.gpu_hours, plan.dollars, plan.basis),
    ]


def _need_lines(
    plans: list[RunPlan], *, each: str = "", share: float = 1.0, details: Sequence[str] = ()
) -> list[str]:
    """Return the lines of what runs need but for their GPUs; ``details`` follow the memory."""
    return [
        *_model_lines(plans),
        _tokens_line(plans, each=each),
        *_corpus_lines(plans),
        *_each("parts", "", [text for plan in plans for text in plan.replaced_parts]),
        _memory_line(plans),
        *details,
        *_each("", "not counted: ", [text for plan in plans for text in plan.not_counted]),
        *_host_lines(plans, each=each),
        *_disk_lines(plans, each=each, share=share),
    ]


def _sweep_lines(plan: SpecPlan, cluster: ClusterView | None) -> list[str]:
    spec = plan.spec
    assert spec.kind == "sweep"
    metric = spec.metric
    plans = [trial for _, trial in plan.runs]
    # Where a trial has no time, the sweep has none: its reason, not the source of another's time.
    basis = next((trial.basis for trial in plans if trial.seconds is None), plans[0].basis)
    over = f"{spec.method} over {escaped(', '.join(spec.paths))}"
    size = formats.counted(len(plans) + plan.later, "trial")
    place = _places(plan, plans[0], cluster)
    if plan.later:
        size += f" (the first {len(plans)} drawn at random, the others from results)"
    elif spec.method == "tpe":
        size += f" (all drawn at random: TPE chooses from point {STARTUP_TRIALS + 1} on)"
    if plan.campaign is not None:
        over = f"a campaign for {escaped(', '.join(plan.campaign.decide))}"
        dollars = "" if plan.dollars is None else f" (${plan.dollars:,.2f})"
        size = f"{len(plans)} rungs, {formats.gpu_hours(plan.campaign.gpu_hours)}{dollars} at most"
        place = f"{_gpus(max(one.gpus for one in plans), plans[-1], cluster)} a trial"
        basis = f"{plans[0].basis}; the first trial shows what one costs"
    if plan.trunk is not None:
        size += f" that share their first {plan.trunk.steps:,} steps"
    return [
        f"[bold]{escaped(spec.name)}[/]  {over}, {size}, {escaped(metric.name)} {metric.goal}d",
        *_need_lines(plans, each=" a trial", share=plan.share),
        _line("place", place),
        _time_line(plan.seconds, plan.gpu_hours, plan.dollars, basis),
    ]


def _rollout_lines(plan: SpecPlan, cluster: ClusterView | None) -> Iterator[str]:
    spec = plan.spec
    assert spec.kind == "rollout"
    count = formats.counted(len(plan.runs), "stage")
    yield f"[bold]{escaped(spec.name)}[/]  a rollout in {count}; a failed gate stops it"
    for stage, need in plan.runs:
        yield ""
        yield f"{stage.number}  [bold]{escaped(stage.title)}[/]  [dim]{stage.name}[/]"
        yield from _run_lines(need, cluster)
        extra = [run for run in stage_runs(stage) if run["role"] != "train"]
        if extra:
            steps = " + ".join(f"{run['steps']:,}" for run in extra)
            yield _line("", f"and {steps} steps to verify an exact resume")
        if stage.last:
            yield _line("", f"judged at step {stage.judge_after:,}, while the run continues")
        width = max(len(TITLES[name]) for name in stage.gates)
        for number, (name, gate) in enumerate(stage.gates.items()):
            text = escaped(expected(name, stage).text) if gate.enabled else "off"
            label = "" if number else "gates"
            yield f"  {label:<8} [dim]{TITLES[name]:<{width}}[/]  {text}"
    for left, why in left_out(spec).items():
        yield ""
        yield f"[dim]{left} is left out: {escaped(why)}[/]"


def trials_table(plan: SpecPlan) -> Table:
    """Return a table of the trials and their needs."""
    spec = plan.spec
    assert spec.kind == "sweep"
    names = formats.short_paths(spec.paths)
    rows = table(
        "#", *names, "GPUs", "memory", "tokens", "time", right=("#", *names, "memory", "tokens")
    )
    for number, (point, trial) in enumerate(plan.runs, start=1):
        rows.add_row(
            str(number),
            *(escaped(formats.parameter(point.get(path), path)) for path in spec.paths),
            f"{trial.gpus} x {escaped(trial.gpu_type or 'any')}",
            formats.size(trial.memory.peak),
            formats.millions(trial.tokens),
            formats.duration(trial.seconds),
        )
    return rows


def stages_table(plan: RunPlan, passes: Mapping[str, float]) -> Table:
    """Return a table of the stages. ``passes``: of the run over each prepared corpus, by path."""
    right = ("steps", "tokens", "epochs", "memory", "share")
    names = ("stage", "steps", "tokens", "batch", "learning rate", *right[2:])
    shown = [name for name in names if passes or name != "epochs"]
    rows = table(*shown, right=right)
    for stage in plan.stages:
        first, highest, last = (formats.scientific(rate, 2) for rate in stage.lr)
        peak = f"{highest} to " if highest not in {first, last} else ""
        own = [
            f"{path.partition('.parts.')[2].removesuffix('.corpus')} {epochs:.2g}".strip()
            for path, epochs in passes.items()
            if path.startswith(stage.corpus)
        ]
        cells = {
            "stage": escaped(stage.name),
            "steps": f"{stage.steps[0]:,} to {stage.steps[1]:,}",
            "tokens": formats.millions(stage.tokens),
            "batch": f"{stage.sequences:,} x {stage.sequence_length:,}",
            "learning rate": first if first == highest == last else f"{first} to {peak}{last}",
            "epochs": escaped(", ".join(own)),
            "memory": formats.size(stage.memory_bytes),
            "share": f"{stage.share:.1%}",
        }
        rows.add_row(*(cells[name] for name in shown))
    rows.caption = (
        "batch: sequences x tokens; memory: peak a GPU (plan); share: of FLOPs, and so of time "
        f"and cost{'; epochs: of its corpus over all stages' if passes else ''}"
    )
    return rows


# --- details that only a server has; plans work without them ---------------------------


def missing_gpus(plan: RunPlan, cluster: ClusterView | None) -> str | None:
    """Describe what the cluster lacks for one such run."""
    if cluster is None or places(plan.resources, cluster):
        return None
    nodes = [node for node in cluster.nodes if node.no_runs is None and node.gpus]
    closed = [node for node in cluster.nodes if node.no_runs is not None and node.gpus]
    away = "".join(f"; no runs on {escaped(f'{n.name}: {n.no_runs}')}" for n in closed[:_NAMED])
    if not nodes:
        none = "no node with GPUs gets runs now" if closed else "this cluster has no GPU"
        return f"waits: {none}{away}"
    kinds = escaped(", ".join(sorted({gpu.name for node in nodes for gpu in node.gpus})))
    text = f"waits: this cluster has {sum(len(node.gpus) for node in nodes)} x {kinds}"
    if len(nodes) == 1:
        return (f"{text} on one node" if plan.resources.nodes > 1 else text) + away
    most = max(nodes, key=lambda node: len(node.gpus))
    at_most = f"at most {len(most.gpus)} on one node ({escaped(most.name)})"
    return f"{text} on {len(nodes)} nodes, {at_most}{away}"


def _now(plan: RunPlan, cluster: ClusterView | None) -> str:
    """Return where such a run could start now, or why it would wait; empty if that is unknown."""
    missing = missing_gpus(plan, cluster)
    if missing is not None:
        return f"; {missing}"
    free = free_nodes(plan, cluster)
    if free is None:
        return ""
    if free:
        more = len(free) - _NAMED
        names = ", ".join(free[:_NAMED]) + (f" and {more} more" if more > 0 else "")
        return f"; free now: {escaped(names)}"
    nodes, each = plan.resources.nodes, formats.counted(plan.gpus // plan.resources.nodes, "GPU")
    few = "no node has" if nodes == 1 else f"fewer than {nodes} nodes have"
    return f"; waits: {few} {each} free now"


# --- lines ----------------------------------------------------------------------------------


def _line(name: str, text: str, verdict: str = "") -> str:
    return f"  {name:<8} {text:<44}  {verdict}".rstrip()


def _model_lines(plans: list[RunPlan]) -> list[str]:
    lines = []
    for name, plan in {plan.model: plan for plan in plans}.items():
        tied = "tied embedding" if plan.tied else "embedding"
        embedding = formats.millions(plan.parameters.embedding)
        total = formats.millions(plan.parameters.total)
        lines.append(_line("model", f"{name}   {total} parameters ({embedding} {tied})"))
    return lines


def _tokens_line(plans: list[RunPlan], *, each: str) -> str:
    steps = sorted({plan.steps for plan in plans})
    batches = sorted({plan.tokens_per_step for plan in plans})
    stages = sorted({len(plan.stages) for plan in plans})
    totals = sorted({plan.tokens for plan in plans})
    ratios = sorted({plan.tokens_per_parameter for plan in plans})
    in_steps = f"{_range([formats.count(n) for n in steps])} steps"
    a_step = f"{_range([formats.count(n) for n in batches])} a step x {in_steps}"
    in_stages = f"{in_steps} in {_range([formats.counted(n, 'stage') for n in stages])}"
    return _line(
        "tokens",
        f"{in_stages if stages[-1] else a_step} = "
        f"{_range([formats.millions(n) for n in totals])}{each}",
        f"{_range([formats.si(n) for n in ratios])} a parameter",
    )


def _corpus_lines(plans: list[RunPlan]) -> list[str]:
    """Return a line for each corpus of a mix: its tokens, and its share of all."""
    lines = []
    for name in dict.fromkeys(name for plan in plans for name in plan.shares):
        there = [plan for plan in plans if name in plan.shares]
        tokens = sorted({plan.corpus_tokens[name] for plan in there})
        shares = sorted({plan.shares[name] for plan in there})
        text = f"{escaped(name)}   {_range([formats.millions(n) for n in tokens])} tokens"
        of_all = _range([f"{share:.1%}" for share in shares])
        lines.append(_line("", f"{text}, {of_all} of training"))
    return lines


def _each(name: str, before: str, texts: list[str]) -> list[str]:
    return [_line(name, escaped(f"{before}{text}")) for text in dict.fromkeys(texts)]


def _memory_line(plans: list[RunPlan]) -> str:
    most = max(plans, key=lambda plan: plan.memory.peak)
    need = most.memory.peak
    if most.gpu is not None:
        room = most.gpu.memory_bytes
        verdict = "fits" if most.fits else "[red]does not fit[/]"
        if most.fits is None:
            verdict = "as with Lehr's own parts"
        text = f"{formats.size(need).removesuffix(' GB')} of {room / 1e9:.0f} GB a GPU (plan)"
        return _line("memory", text, verdict)
    if most.gpu_type is not None:
        known = ", ".join(dict.fromkeys(gpu.kind for gpu in GPUS))
        return _line(
            "memory",
            f"{formats.size(need)} a GPU (plan)",
            f"{escaped(most.gpu_type)} is not known. Known: {known}",
        )
    verdict = (
        f"fits a GPU of {most.least_memory_bytes / 1e9:.0f} GB" if most.least_memory_bytes else ""
    )
    return _line("memory", f"{formats.size(need)} a GPU (plan)", verdict)


def _micro_batch_line(plan: RunPlan) -> str:
    stage = plan.memory.stage
    size = f"{stage and f'in stage {escaped(stage)}: '}micro-batch {plan.micro_batch}"
    if plan.accumulation > 1:
        size += f", accumulated {plan.accumulation} times"
    most = plan.largest_micro_batch
    if plan.gpu is None or most is None:
        return _line("", size)
    most_text = "" if most == plan.micro_batch else f"up to {most} fits"
    return _line("", size, most_text)


def _phase_lines(plan: RunPlan) -> list[str]:
    """Return two lines for each sequence length: the most memory in each phase of a step."""
    lines = []
    for stage in [plan.memory] if plan.stages else plan.memory_stages:
        most = stage.stages
        built = formats.size(stage.phases["resting"].parameters + stage.overhead)
        first = [f"built {built}"]
        first += [f"{name} {formats.size(most[name])}" for name in ("forward", "loss")]
        names = ("backward", "optimizer", "evaluation")
        second = [f"{name} {formats.size(most[name])}" for name in names]
        second += [f"save {formats.size(most['resting'])}"]
        batch, length = stage.shape
        lines.append(_line("", escaped(f"[{batch}, {length}]: {', '.join(first)},")))
        lines.append(_line("", ", ".join(second)))
    return lines


def _host_lines(plans: list[RunPlan], *, each: str) -> list[str]:
    """Return a line about the host copy of asynchronous saves, and averages of weights."""
    memory = [plan.memory for plan in plans]
    sizes = {
        "saves": max(one.checkpoint_copy for one in memory),
        "train.average": max(one.average for one in memory),
    }
    parts = [
        f"{formats.size(most)} of RAM{each} for {what}" for what, most in sizes.items() if most
    ]
    who = "rank 0 (sharded: each)"
    return [_line("host", f"{', '.join(parts)} (plan)", who)] if parts else []


def _disk_lines(plans: list[RunPlan], *, each: str, share: float = 1.0) -> list[str]:
    """Return lines about checkpoints on disk; ``share``: all runs over the planned ones."""
    every = [plan.checkpoints for plan in plans]
    saves, kept = sorted({one.saves for one in every}), sorted({one.kept for one in every})
    size = formats.size(max(one.size_bytes for one in every))
    written = formats.size(share * sum(one.saves * one.size_bytes for one in every))
    held = formats.size(share * sum(one.kept * one.size_bytes for one in every))
    numbers = f"{_range([*map(str, saves)])} saved, {_range([*map(str, kept)])} kept"
    notes = [
        f"as much is copied to, and kept in, {place}"
        for place in {p.upload for p in plans}
        if place
    ]
    if max(saves) > 1 and not any(one.keeps_best for one in every):
        notes.append("none but the last is at an evaluated step: no best is kept")
    text = f"checkpoints of {size}{each}: {numbers} (plan)"
    notes.insert(0, f"in all {written} written, {held} kept")
    return [_line("disk", text), *(_line("", escaped(note)) for note in notes)]


def _places(plan: SpecPlan, first: RunPlan, cluster: ClusterView | None) -> str:
    now = _now(first, cluster)
    trials = len(plan.runs)
    missing = missing_gpus(first, cluster)
    if missing or first.resources.nodes > 1:
        each = f"{trials} trials, {_gpus(first.gpus, first, cluster)}{first.on_nodes} each"
        return f"{each}{now}" if missing else f"{each}, {_together(plan)}{now}"
    gpus = _gpus(plan.places * first.gpus, first, cluster)
    return f"{trials} trials on {gpus}, {_together(plan)}{now}"


def _together(plan: SpecPlan) -> str:
    if plan.waves == 1:
        return "all at once"
    return f"{plan.places} at a time, in {plan.waves} waves"


def _gpus(number: int, plan: RunPlan, cluster: ClusterView | None) -> str:
    if plan.gpu_type is not None:
        return f"{number} x {escaped(plan.gpu_type)}"
    if not number:
        return "a node's CPU, no GPU"
    plural = "s" if number != 1 else ""
    if cluster is not None and cluster.nodes and all(node.logical for node in cluster.nodes):
        return f"{number} logical GPU{plural} (CPU)"
    return f"{number} GPU{plural} of any kind"


def _time_line(
    seconds: float | None, gpu_hours: float | None, dollars: float | None, basis: str
) -> str:
    if seconds is None:
        return _line("time", escaped(basis))
    text = f"about {formats.duration(seconds)}"
    if gpu_hours is not None and gpu_hours >= 0.05:
        text += f", {gpu_hours:.1f} GPU-hours"
    if dollars is not None and dollars >= 0.01:
        text += f", ${dollars:,.2f}"
    return _line("time", text, basis)


def _range(values: list[str]) -> str:
    return values[0] if values[0] == values[-1] else f"{values[0]} to {values[-1]}"
