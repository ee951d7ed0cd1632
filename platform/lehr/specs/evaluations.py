"""``evaluations`` of a run: commands that evaluate its checkpoints beside it, as own runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field, field_validator

from lehr.specs.prints import checked
from lehr.specs.program import CHECKPOINT
from lehr_trainer.configs.train import Config

if TYPE_CHECKING:
    from lehr.specs.run import RunSpec

EVALUATE = "lehr_log.evaluate"
"""The module that calls the command."""
EXPORT = "{export}"
OF_TASKS = "task"
"""The evaluation of the tasks with ``where: beside``; their metrics begin with it."""
_OWN = {"train", "val", "memory", "data", "params", "system", "program", OF_TASKS}
"""First parts of names of metrics that trainings log."""


class CheckpointEvaluation(Config):
    name: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,39}$")]
    """Name of the evaluation. Its values are the metrics NAME/... of the run."""
    command: Annotated[list[str], Field(min_length=1, max_length=1000)]
    """Words of the command. {checkpoint} is the checkpoint: the folder of one of Lehr's trainer, or
    what the program saved. {export} is the same as a folder that transformers loads. {results} is a
    folder: the numbers of JSON files in it are logged when the command has ended.
    """
    prints: Annotated[
        list[Annotated[str, Field(max_length=500)]], Field(max_length=20), AfterValidator(checked)
    ] = []
    """Patterns of the lines that it prints, as in trainer.prints."""
    gpus: Annotated[int, Field(ge=1, le=64)] = 1
    """GPUs, of one node."""
    time_limit_s: Annotated[float, Field(gt=0)] | None = None
    """Seconds after which it is stopped."""

    @field_validator("name")
    @classmethod
    def _not_of_training(cls, name: str) -> str:
        if name in _OWN:
            raise ValueError(
                f"the run's own metrics begin with {name}/, such as val/loss; choose another name"
            )
        return name

    @field_validator("command")
    @classmethod
    def _reads_checkpoint(cls, command: list[str]) -> list[str]:
        if not any(place in word for word in command for place in (CHECKPOINT, EXPORT)):
            raise ValueError(
                f"{' '.join(command)[:100]!r} has neither {CHECKPOINT} nor {EXPORT}, so it would "
                "evaluate nothing of the run: e.g. python eval.py {checkpoint}"
            )
        return command


def distinct(evaluations: list[CheckpointEvaluation]) -> list[CheckpointEvaluation]:
    """Return them; raise ValueError if two have the same name."""
    names = [one.name for one in evaluations]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise ValueError(f"{number}.name {name} is the name of another evaluation")
    return evaluations


def evaluations_of(run: RunSpec) -> list[CheckpointEvaluation]:
    """Return those of a run, with that of its tasks beside the training, if it has any."""
    if run.train is None or all(task.where == "training" for task in run.train.evals):
        return run.evaluations
    words = f"python -m lehr_trainer eval {CHECKPOINT} --beside --out {{results}}/tasks.json"
    gpus = min(1, run.resources.gpus)
    own = CheckpointEvaluation.model_construct(name=OF_TASKS, command=words.split(), gpus=gpus)
    return [*run.evaluations, own]


def run_of(run: RunSpec, evaluation: CheckpointEvaluation, step: int) -> RunSpec:
    """Return the spec of the run that evaluates a checkpoint of ``run``, with its code."""
    ending = f"-{evaluation.name}-{step}"
    program = run.trainer.model_dump(include={"data", "data_files"}) if run.trainer else {}
    program |= {"module": EVALUATE, "argv": evaluation.command, "prints": evaluation.prints}
    return run.model_validate(
        {
            "name": f"{run.name[: 100 - len(ending)]}{ending}",
            "trainer": program | {"stop_grace_s": 5.0},
            "resources": {"gpus": evaluation.gpus, "gpu_type": run.resources.gpu_type},
            "retries": run.retries.model_dump() | {"preemption": 2**31},
            "priority": -100,
            "preemptible": True,
            "time_limit_s": evaluation.time_limit_s,
            **run.model_dump(include={"project", "env", "secrets", "code"}),
        }
    )
