"""The stages of a rollout, each with its validated runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import ValidationError

from lehr.errors import SpecError, SpecProblem
from lehr.specs.gates import ExactResume, Gate, GateName, gates_of
from lehr.specs.overrides import with_changes
from lehr.specs.problems import Origin, the_cause, translate
from lehr.specs.rollout import STAGES, LastStage, RolloutSpec, Stage, StageName
from lehr.specs.run import RunSpec
from lehr.specs.sweep_expand import unknown_path
from lehr.specs.yaml12 import YamlDocument
from lehr_trainer.configs.fields import place
from lehr_trainer.configs.train import LlamaConfig, TrainConfig

StageRunRole = Literal["train", "whole", "resumed"]
ROLES: tuple[StageRunRole, ...] = ("train", "whole", "resumed")
"""In the order in which a stage needs them. The gate ``exact_resume`` compares ``whole`` and
``resumed``. A deterministic ``train`` serves as ``whole``.
"""

_ENDINGS: dict[StageRunRole, str] = {"train": "", "whole": "-whole", "resumed": "-resumed"}

TITLES: dict[StageName, str] = {
    "cpu": "CPU",
    "one_gpu": "1 GPU",
    "two_gpus": "2 GPUs",
    "all": "the whole run",
}
_TINY_SEQUENCES, _TINY_LENGTH = 8, 256
_TINY_VALIDATION = 16_384
_TINY_WIDTH = 64
_NOT_SET = {
    "kind": "it is the type of the spec",
    "name": "a stage's run is named after the rollout",
    "project": "a rollout belongs to one project",
    "resources.gpus": "use `gpus` of the stage",
    "resources.nodes": "use `nodes` of the stage",
    "train.steps": "use `steps` of the stage",
    "train.tokens": "use `steps` of the stage",
    "train.tokens_per_parameter": "use `steps` of the stage",
}


@dataclass(frozen=True)
class PlannedStage:
    """A stage with its runs and gates, ready to launch."""

    number: int
    """Counts from 1, in the rollout's order."""
    name: StageName
    title: str
    last: bool
    runs: dict[StageRunRole, RunSpec]
    """Runs that are submitted directly; ``resumed`` is a fork of the whole run's middle
    checkpoint.
    """
    rollout: str
    """Name of the rollout."""
    changes: dict[str, Any]
    """Differences of the stage's run from the rollout's, by dotted path."""
    gates: dict[GateName, Gate] = field(default_factory=dict)
    """By name, including those that are switched off."""
    judge_after: int = 0
    """Step at which the gates of ``train`` are judged."""

    @property
    def train(self) -> RunSpec:
        return self.runs["train"]

    @property
    def roles(self) -> tuple[StageRunRole, ...]:
        """Return the roles of all runs that the stage may need, in order."""
        return tuple(r for r in ROLES if r in self.runs or (r == "resumed" and self.resumes))

    @property
    def resumes(self) -> bool:
        gate = self.gates.get("exact_resume")
        return gate is not None and gate.enabled

    @property
    def whole(self) -> StageRunRole:
        """Return the run that the resumed run must equal."""
        return "whole" if "whole" in self.runs else "train"

    def run_name(self, role: StageRunRole) -> str:
        return run_name(self.rollout, self.name, _ENDINGS[role])

    @property
    def middle(self) -> int:
        return middle(self.runs[self.whole].own.steps)


def middle(steps: int) -> int:
    return max(steps // 2, 1)


def stages(rollout: RolloutSpec) -> list[PlannedStage]:
    """Return the stages of a rollout, in order.

    Raises:
        SpecError: a stage's changes give an invalid run.
    """
    problems, found = _plan(rollout, Origin(YamlDocument(data=None)))
    if problems:
        raise SpecError(problems)
    return found


def stage_problems(rollout: RolloutSpec, origin: Origin) -> list[SpecProblem]:
    return _plan(rollout, origin)[0]


def left_out(rollout: RolloutSpec) -> dict[StageName, str]:
    found: dict[StageName, str] = {}
    for name in STAGES:
        stage = getattr(rollout.stages, name)
        if isinstance(stage, LastStage):
            continue
        if not stage.enabled:
            found[name] = "switched off"
        elif stage.gpus > rollout.run.resources.gpus:
            has = rollout.run.resources.gpus
            found[name] = f"it needs {stage.gpus} GPUs, but the run itself has {has}"
    return found


def _plan(rollout: RolloutSpec, origin: Origin) -> tuple[list[SpecProblem], list[PlannedStage]]:
    if rollout.run.trainer is not None:
        message = "run.trainer: a rollout checks Lehr's trainer in stages; it takes no program."
        hint = "Submit it as a run, or sweep its arguments."
        return [origin.problem("run.trainer", message, hint)], []
    if rollout.run.hypothesis is not None:
        message = "run.hypothesis: a rollout makes no claim, since its stages differ from the run."
        return [origin.problem("run.hypothesis", message, "Submit it as a run.")], []
    if rollout.run.own.steps < 2:
        message = f"run.train.steps is {rollout.run.own.steps}; a rollout needs at least 2."
        return [origin.problem("run.train.steps", message)], []
    out = left_out(rollout)
    problems: list[SpecProblem] = []
    found: list[PlannedStage] = []
    for name in STAGES:
        if name in out:
            continue
        stage: Stage | LastStage = getattr(rollout.stages, name)
        wrong = _path_problems(name, stage, origin) if isinstance(stage, Stage) else []
        problems += wrong
        if wrong:
            continue
        try:
            found.append(_planned(len(found) + 1, name, stage, rollout))
        except ValidationError as error:
            problems += _in_stage(error, name, stage, origin)
        except ValueError as error:
            problems.append(origin.problem(f"stages.{name}.set", f"stages.{name}.set: {error}."))
    return problems, found


def _planned(
    number: int, name: StageName, stage: Stage | LastStage, rollout: RolloutSpec
) -> PlannedStage:
    gates = gates_of(stage.gates)
    run = rollout.run
    if isinstance(stage, LastStage):
        spec = _run(rollout, name, {})
        after = min(stage.judge_after, run.own.steps)
        return PlannedStage(
            number, name, TITLES[name], True, {"train": spec}, rollout.name, {}, gates, after
        )
    changes = _changes(stage, run)
    spec = _run(rollout, name, changes)
    runs: dict[StageRunRole, RunSpec] = {"train": spec}
    gate = gates["exact_resume"]
    assert isinstance(gate, ExactResume)
    if gate.enabled:
        if spec.own.deterministic:
            changes |= _saved_in_the_middle(spec.own.steps)
            runs["train"] = _run(rollout, name, changes)
        else:
            steps = min(gate.steps, spec.own.steps)
            apart = {
                **changes,
                **fewer_steps(spec.own, steps),
                **_saved_in_the_middle(steps),
                "train.deterministic": True,
                "tracking": {},
            }
            runs["whole"] = _run(rollout, name, apart, ending=_ENDINGS["whole"])
    title = TITLES[name] if stage.scale == "run" else f"{TITLES[name]}, tiny model"
    return PlannedStage(
        number, name, title, False, runs, rollout.name, changes, gates, spec.own.steps
    )


def _run(
    rollout: RolloutSpec, name: StageName, changes: dict[str, Any], *, ending: str = ""
) -> RunSpec:
    # As written, without defaults: another member of a union may lack these fields.
    data = with_changes(rollout.run.model_dump(mode="json", exclude_unset=True), changes)
    data["project"] = rollout.project
    data["tags"] = list(dict.fromkeys([*rollout.tags, *rollout.run.tags]))
    data["name"] = run_name(rollout.name, name, ending)
    return RunSpec.model_validate(data)


def run_name(rollout: str, stage: StageName, ending: str = "") -> str:
    """Return e.g. ``llama-1b-one-gpu``; a long name is cut before the ending."""
    tail = f"-{stage.replace('_', '-')}{ending}"
    return f"{rollout[: 100 - len(tail)]}{tail}"


def _first_of(train: TrainConfig) -> dict[str, Any]:
    """Return the changes after which a run consists of the first of its ``train.stages``."""
    if not train.stages:
        return {}
    batch = train.spans[0].batch
    sizes = ("sequences", "sequence_length", "micro_batch")
    changes: dict[str, Any] = {f"train.batch.{name}": getattr(batch, name) for name in sizes}
    left_out = {"name", "tokens", "batch"}
    of_stage = train.stages[0].model_dump(mode="json", exclude=left_out, exclude_unset=True)
    for part, value in of_stage.items():
        if isinstance(value, dict) and part != "schedule":
            changes |= {f"train.{part}.{field}": changed for field, changed in value.items()}
        else:
            changes[f"train.{part}"] = value
    return changes | {"train.stages": []}


def _changes(stage: Stage, run: RunSpec) -> dict[str, Any]:
    train = run.own.course[0].config
    world, own = max(stage.gpus, 1), max(run.resources.gpus, 1)
    steps = min(stage.steps, train.steps)
    changes: dict[str, Any] = {
        "resources.gpus": stage.gpus,
        "resources.nodes": stage.nodes,
        **_first_of(run.own),
        **fewer_steps(train, steps),
    }
    sequences = train.batch.sequences * world // own
    if stage.scale == "run" and sequences != train.batch.sequences:
        changes["train.batch.sequences"] = sequences
    if stage.gpus == 0:
        changes |= {"train.device": "cpu", "train.deterministic": True}
        if run.resources.gpu_type is not None:
            changes["resources.gpu_type"] = None
    if stage.scale == "tiny":
        changes |= _tiny(train, world)
    return {**changes, **stage.set}


def fewer_steps(train: TrainConfig, steps: int) -> dict[str, Any]:
    """Scale what counts in steps: a warmup of 2,000 steps would outlast a short stage."""
    changes: dict[str, Any] = {"train.steps": steps}
    schedule = train.schedule
    if schedule.warmup_steps is not None:
        changes["train.schedule.warmup_steps"] = None
        changes["train.schedule.warmup_ratio"] = schedule.warmup_steps / train.steps
    if schedule.decay_steps is not None:
        changes["train.schedule.decay_steps"] = None
        changes["train.schedule.decay_ratio"] = schedule.decay_steps / train.steps
    if train.average is not None:
        changes["train.average.every"] = max(1, train.average.every * steps // train.steps)
    return changes


def _saved_in_the_middle(steps: int) -> dict[str, Any]:
    return {
        "train.checkpoint.every": middle(steps),
        "train.checkpoint.keep_every": middle(steps),
        "train.checkpoint.save_last": True,
    }


def _tiny(train: TrainConfig, world: int) -> dict[str, Any]:
    model: dict[str, Any] = train.model.model_dump(mode="json")
    heads = {"num_attention_heads": 4}
    if isinstance(train.model, LlamaConfig):
        grouped = train.model.num_key_value_heads < train.model.num_attention_heads
        heads["num_key_value_heads"] = 2 if grouped else 4
        model.pop("head_dim", None)
        if train.model.window is not None:  # Each kind of layer, and a window that is one.
            size = min(train.model.window.size, _TINY_LENGTH // 2)
            model["window"] = {"size": size, "pattern": "SL"}
    model |= {
        "hidden_size": _TINY_WIDTH,
        "intermediate_size": 3 * _TINY_WIDTH,
        "num_hidden_layers": 2,
        **heads,
    }
    changes: dict[str, Any] = {
        "train.model": model,
        "train.batch": {
            "sequences": _TINY_SEQUENCES * -(-world // _TINY_SEQUENCES),
            "sequence_length": min(_TINY_LENGTH, train.batch.sequence_length),
        },
        "train.precision": {"compute": "fp32"},
        "train.compile": {"scope": "none"},
        "train.attention.backend": "auto",
        "train.validation.tokens": min(train.validation.tokens, _TINY_VALIDATION),
    }
    if (
        train.optimizer.lr_scales_with_width
        and train.model.parametrization == "standard"
        and train.model.hidden_size > _TINY_WIDTH
    ):
        # The rate is scaled with the width, so that a rate that is far too high or too low has
        # the same effect on the tiny model.
        scale = train.model.hidden_size / _TINY_WIDTH
        changes["train.optimizer.lr"] = float(f"{train.optimizer.lr * scale:.3g}")
    if not train.loss.runs_on_any_cpu:
        changes["train.loss"] = {}
    return changes


def _path_problems(name: StageName, stage: Stage, origin: Origin) -> list[SpecProblem]:
    problems = []
    for path in stage.set:
        at = f"stages.{name}.set.{path}"
        if path in _NOT_SET:
            message = f"{path} cannot be set here: {_NOT_SET[path]}."
            problems.append(origin.problem(at, message, at_key=True))
        elif place(RunSpec, path) is None and not path.endswith("model.preset"):
            problems.append(unknown_path(path, at, origin, "train or resources"))
    return problems


def _in_stage(
    error: ValidationError, name: StageName, stage: Stage | LastStage, origin: Origin
) -> list[SpecProblem]:
    """Place a problem at the value that caused it, else at the stage."""
    given = list(stage.set) if isinstance(stage, Stage) else []
    found = []
    for problem in translate(error, RunSpec, Origin(YamlDocument(data=None))):
        blamed = the_cause(problem.path, given)
        at = f"stages.{name}" if blamed is None else f"stages.{name}.set.{blamed}"
        found.append(origin.problem(at, f"stage {name}: {problem.message}", problem.hint))
    return list(dict.fromkeys(found))
