"""Which checkpoints are evaluated beside their training, and which evaluations end with it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from lehr.control.evaluations import Evaluate, EvaluatedRun, Evaluates, EvaluationRun, actions
from lehr.control.lifecycle import Desired, RunState
from lehr.specs.run import RunSpec
from lehr_testing.stores import run_spec

COMMAND = ["python", "eval.py", "{checkpoint}"]
STEPS = (10, 20, 30)


def decided(
    states: dict[int, str], *, steps=STEPS, state="running", desired="run", archived=False
) -> list[object]:
    """Decide on a run whose checkpoints at ``states`` have evaluations in these states."""
    own = [
        EvaluationRun(f"e{n}", Evaluates("r", 1, n, "a"), RunState(one))
        for n, one in states.items()
    ]
    points = [SimpleNamespace(attempt=1, step=n, path=f"p{n}") for n in steps]
    spec = run_spec(evaluations=[{"name": "a", "command": COMMAND}])
    run = EvaluatedRun("r", spec, RunState(state), Desired(desired), archived, points, own)
    return [one.of.step if isinstance(one, Evaluate) else one.run_id for one in actions(run)]


@pytest.mark.parametrize(
    ("states", "more", "expected"),
    [
        ({}, {}, [30]),  # The newest first.
        ({30: "queued"}, {}, []),  # One at a time.
        ({30: "completed"}, {}, [20]),
        ({30: "failed", 20: "completed"}, {}, [10]),
        ({30: "completed"}, {"steps": (30, 40)}, [40]),
        ({30: "completed"}, {"state": "completed"}, [20]),
        ({5: "failed", 6: "failed", 7: "failed"}, {}, []),
        ({5: "failed", 6: "failed", 7: "failed", 8: "completed"}, {}, [30]),
        ({30: "running"}, {"state": "cancelled"}, ["e30"]),
        ({20: "completed", 30: "queued"}, {"state": "pruned"}, ["e30"]),
        ({30: "running"}, {"state": "completed", "archived": True}, ["e30"]),
        ({10: "queued"}, {"steps": (20, 30)}, ["e10"]),  # Retention was faster.
        ({10: "running"}, {"steps": (20, 30)}, []),
        ({}, {"desired": "cancel"}, []),  # Its last attempt is still saving.
    ],
)
def test_newest_checkpoint_is_evaluated_one_at_a_time(states, more, expected):
    assert decided(states, **more) == expected


def test_what_a_run_evaluates_is_one_text_for_each_checkpoint_and_name():
    of = Evaluates("k3f9", 2, 500, "arc")
    assert (str(of), Evaluates.parse(str(of))) == ("k3f9/2/500/arc", of)


@pytest.mark.parametrize(
    ("evaluations", "message"),
    [
        ([{"command": ["python", "eval.py"]}], "neither {checkpoint} nor {export}"),
        ([{"name": "val"}], "the run's own metrics begin with val/, such as val/loss"),
        ([{}, {}], "1.name a is the name of another evaluation"),
        ([{"gpus": 0}], "greater than or equal to 1"),
        ([{"prints": ["acc"]}], "no field"),
    ],
)
def test_evaluation_that_cannot_work_is_refused(evaluations, message):
    given = [{"name": "a", "command": COMMAND, **one} for one in evaluations]
    with pytest.raises(ValidationError) as refused:
        run_spec(evaluations=given)
    [problem] = refused.value.errors()
    assert problem["loc"][0] == "evaluations"
    assert message in problem["msg"]


def test_export_is_refused_for_a_program_and_a_model_that_transformers_lacks():
    given = {"name": "p", "trainer": {"script": "train.py"}}
    given["evaluations"] = [{"name": "a", "command": ["lm_eval", "{export}"]}]
    with pytest.raises(ValidationError, match=r"\{export\} needs Lehr's trainer"):
        RunSpec.model_validate(given)
    train = run_spec().own.model_dump() | {"parts": {"version": 1, "model": "mine:Mine"}}
    given |= {"trainer": None, "train": train, "code": {"include": ["*.py"]}}
    with pytest.raises(ValidationError, match=r"needs Lehr's model, but parts.model is mine:Mine"):
        RunSpec.model_validate(given)
