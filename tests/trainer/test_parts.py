"""Parts of a project in the place of Lehr's: they train, resume and are counted."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from lehr.specs.new_trainer import PartKind, write_project
from lehr_testing.assembled import begin, recorded
from lehr_testing.optimizers import OPTIMIZERS, settings
from lehr_trainer import parts
from lehr_trainer.checkpointing.optimizer_state import capture
from lehr_trainer.configs.parts import PARTS_VERSION, PartsConfig
from lehr_trainer.contract.orders import LaunchNote
from lehr_trainer.errors import BadCheckpoint, BadConfig
from lehr_trainer.planning.counts import parameter_counts

NAMES: dict[PartKind, str] = {
    "model": "my_model:MyModel",
    "loss": "my_loss:my_loss",
    "optimizer": "my_optimizer:my_optimizer",
}
QUIET = {"validation": {"tokens": 512, "share": 0.1, "every": 0}}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in ("my_model", "my_loss", "my_optimizer", "own"):
        sys.modules.pop(name, None)


def weights(training) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in training.model.parameters()]


def trained(run: Path, corpus: Path, *, until: int, **changes) -> list[torch.Tensor]:
    """Train to a step, save there, and return the weights."""
    training = begin(run, corpus, **changes)
    with training.loader:
        training.wrapped.train()
        training.metrics_logger.start_at(training.progress.step, training.progress.tokens)
        while training.progress.step < until:
            training.take_step()
        training.save("interval", None)
        training.checkpointer.wait()
    training.checkpointer.end()
    return weights(training)


OWN_STATE = """
import torch


class Own(torch.optim.Optimizer):
    \"\"\"Keeps every kind of value that a state may have, and counts in its groups.\"\"\"

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr, "d": 0.25, "k": 0, "seen": None, "last": None})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["k"] += 1
            group["d"] *= 1.1
            group["seen"] = ["a", group["k"]]
            group["last"] = torch.tensor(group["d"])
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(rate=0.5, first=True, none=None, word="a", count=0)
                    state["half"] = torch.zeros_like(p, dtype=torch.bfloat16)
                    state["parts"] = [torch.zeros(3), (torch.zeros(2), None)]
                    state["by_side"] = {0: torch.ones(2), "other": {"x": 1e-3}}
                state["rate"] = state["rate"] * 0.9 + 0.1 / 3
                state["half"].lerp_(p.grad.bfloat16(), 0.5)
                state["parts"][0] += state["rate"]
                state["by_side"]["other"]["x"] += 1 / 3
                state["count"] += 1
                scale = state["rate"] + state["parts"][0][1] + state["by_side"]["other"]["x"]
                p -= group["lr"] * group["d"] * scale * (p.grad + state["half"])


def make(model, config):
    return Own(model.parameters(), lr=config.lr)
"""


@pytest.mark.parametrize("kind", NAMES)
def test_written_project_trains_and_resumes_bitwise(kind, tmp_path, corpus, project):
    write_project(project, kind)
    given = {"parts": {kind: NAMES[kind]}, "steps": 4, **QUIET}
    whole = trained(tmp_path / "whole", corpus, until=4, **given)
    trained(tmp_path / "cut", corpus, until=2, **given)
    resumed = trained(tmp_path / "cut", corpus, until=4, **given)
    assert all(torch.equal(a, b) for a, b in zip(whole, resumed, strict=True))
    own = trained(tmp_path / "own", corpus, until=4, **{**given, "parts": None})
    same = len(own) == len(whole) and all(
        a.shape == b.shape and torch.equal(a, b) for a, b in zip(own, whole, strict=True)
    )
    assert not same, f"the project's {kind} was not used"


def test_parameters_of_a_model_are_counted_by_building_it(tmp_path, corpus, project):
    write_project(project, "model")
    training = begin(tmp_path / "run", corpus, parts={"model": NAMES["model"]}, **QUIET)
    with training.loader:
        built = sum(parameter.numel() for parameter in training.model.parameters())
    [started] = recorded(training, "started")
    assert started["parameters"] == built != parameter_counts(training.config.model).total
    total, looked_up = parts.built_counts(training.config)
    assert total == built
    # The embedding is tied, so the head multiplies with it.
    assert looked_up == 0
    assert training.metrics_logger._flops_per_token(0) == 6 * built


@pytest.mark.parametrize(
    ("text", "given", "words"),
    [
        ("", {"model": "nowhere:Model"}, "nowhere:Model cannot be imported"),
        ("", {"model": "own:Model"}, "has no Model"),
        ("Model = 3", {"model": "own:Model"}, "is a int, not a class or function"),
        ("class Model: pass", {"model": "own:Model"}, "is no subclass of lehr_trainer's Llama"),
        ("def loss(h, w, t): return 1.0", {"loss": "own:loss"}, "must return a scalar tensor"),
        ("def make(m, c): return 1", {"optimizer": "own:make"}, "not a int"),
        (
            "import torch\ndef make(m, c): return torch.optim.SGD([m.norm.weight], lr=1.0)",
            {"optimizer": "own:make"},
            "leaves out 19 trained parameters, the first is embed_tokens.weight",
        ),
    ],
)
def test_unusable_part_is_one_clear_error(text, given, words, tmp_path, corpus, project):
    (project / "own.py").write_text(text)
    with pytest.raises(BadConfig, match=f"parts.{next(iter(given))}.*") as caught:
        trained(tmp_path / "run", corpus, until=1, parts=given, **QUIET)
    assert words in str(caught.value)


WEIGHING = """
from torch.nn import functional as F


def loss(hidden, weight, targets, weights):
    logits = hidden.flatten(0, 1).float() @ weight.float().t()
    each = F.cross_entropy(logits, targets.flatten(), reduction="none")
    if weights is None:
        return each.sum(), each.numel()
    return (each * weights.flatten()).sum(), weights.sum()
"""


def test_a_loss_of_four_arguments_weighs_tokens_and_one_of_three_is_refused(
    tmp_path, corpus, project
):
    where = {"kind": "text", "document": "line", "paths": [str(corpus)]}
    data = {"corpus": where, "tokenizer": "byte"}
    (project / "own.py").write_text(
        WEIGHING + "def mean(h, w, t): return 0 * h.sum()\ndef one(h, w, t, a): return h.sum()\n"
    )
    for mask in ({}, {"loss_mask": "document_starts"}):
        changes = {"data": {**data, **mask}, "steps": 2, **QUIET}
        sides = []
        for part in (None, {"loss": "own:loss"}):
            training = begin(tmp_path / f"{len(sides)}{len(mask)}", corpus, parts=part, **changes)
            with training.loader:
                loss = training.backward(0, training.loader)
            assert (loss.counted is None) == (not mask)
            sides.append([loss.mean, *(p.grad for p in training.model.parameters())])
        for ours, other in zip(*sides, strict=True):
            assert float((ours - other).norm() / ours.norm()) < 1e-5
    for name, words in (("mean", "data.loss_mask leaves out tokens"), ("one", "sum, count")):
        with pytest.raises(BadConfig, match=words):
            trained(tmp_path / name, corpus, until=1, parts={"loss": f"own:{name}"}, **changes)
    for given in ({"loss": {"z_loss": 1e-4}, "parts": {"loss": "own:loss"}},
                  {"loss": {"name": "liger"}, **changes}):  # fmt: skip
        with pytest.raises(ValidationError, match=r"leave one of the two out|cannot leave out"):
            trained(tmp_path / "refused", corpus, until=1, **given)


HEAD = "import torch\nclass Own(torch.optim.SGD):\n    calls = 0\n"
BODY = "    def step(self, closure=None):\n        "
MAKE = "\ndef make(m, c): return Own(m.parameters(), lr=c.lr)\n"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            "self.calls += 1; self.param_groups[0]['lr'] *= self.calls; super().step()",
            "hold all that",
        ),
        ("closure()", "'NoneType' object is not callable"),
        ("self.state['k'] = 1", "an entry of no parameter: 'k'"),
        ("self.param_groups[0]['f'] = {1, 2}", "groups.0/f is a set; state may be None, bools"),
    ],
    ids=["outside of the state", "needs a closure", "of no parameter", "a set"],
)
def test_optimizer_that_a_resume_would_change_is_refused(body, words, tmp_path, corpus, project):
    (project / "own.py").write_text(HEAD + BODY + body + MAKE)
    with pytest.raises(BadConfig, match=r"parts.optimizer: own:make cannot be resumed") as caught:
        begin(tmp_path / "run", corpus, parts={"optimizer": "own:make"}, **QUIET)
    assert words in str(caught.value)


PARTLY_TRAINED = """
import torch
from lehr_trainer.models.llama import Llama


class Model(Llama):
    def __init__(self, config, **options):
        super().__init__(config, **options)
        self.norm.weight.requires_grad_(False)
        self.unused = torch.nn.Parameter(torch.zeros(3))
"""


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_model_with_a_frozen_and_an_unused_parameter_resumes(optimizer, tmp_path, corpus, project):
    (project / "own.py").write_text(PARTLY_TRAINED)
    chosen = {"optimizer": settings(optimizer), "parts": {"model": "own:Model"}}
    given = {**chosen, "steps": 4, **QUIET}
    whole = trained(tmp_path / "whole", corpus, until=4, **given)
    trained(tmp_path / "cut", corpus, until=2, **given)
    resumed = trained(tmp_path / "cut", corpus, until=4, **given)
    assert all(torch.equal(a, b) for a, b in zip(whole, resumed, strict=True))


def fork_of(run: Path) -> LaunchNote:
    [point] = run.glob("attempt-1/checkpoints/step-*")
    return LaunchNote(run_id=run.name, resume="pinned", resume_from=str(point))


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ({"name": "adamw"}, {"name": "muon"}, "adamw, and this run's is muon"),
        ({"name": "muon"}, {"name": "adamw"}, "muon, and this run's is adamw"),
        ({"name": "adamw"}, {"name": "adamw8bit"}, "adamw, and this run's is adamw8bit of bitsand"),
    ],
)
def test_fork_to_another_optimizer_starts_it_without_state(before, after, words, tmp_path, corpus):
    trained(tmp_path / "source", corpus, until=2, steps=6, optimizer=before, **QUIET)
    given = {"steps": 6, "optimizer": after, "note": fork_of(tmp_path / "source"), **QUIET}
    with pytest.raises(BadCheckpoint, match=f"holds the state of the optimizer {words}"):
        begin(tmp_path / "kept", corpus, **given)
    given["optimizer_state"] = "fresh"
    training = begin(tmp_path / "fork", corpus, **given)
    training.loader.close()
    assert training.progress.step == 2
    assert capture(training.model, training.optimizer)[1] == {}
    whole = trained(tmp_path / "whole", corpus, until=6, **given)
    trained(tmp_path / "cut", corpus, until=4, **given)
    resumed = trained(tmp_path / "cut", corpus, until=6, **{**given, "note": None})
    assert all(torch.equal(a, b) for a, b in zip(whole, resumed, strict=True))


def test_parts_of_another_version_are_refused():
    with pytest.raises(ValidationError, match=f"this Lehr has version {PARTS_VERSION}"):
        PartsConfig(version=PARTS_VERSION + 1, model="own:Model")
    with pytest.raises(ValidationError, match="at least one of model, loss and optimizer"):
        PartsConfig()


def test_own_optimizer_keeps_all_that_it_counts(tmp_path, corpus, project):
    (project / "own.py").write_text(OWN_STATE)
    given = {"parts": {"optimizer": "own:make"}, "steps": 4, **QUIET}
    whole = trained(tmp_path / "whole", corpus, until=4, **given)
    trained(tmp_path / "cut", corpus, until=2, **given)
    resumed = trained(tmp_path / "cut", corpus, until=4, **given)
    assert all(torch.equal(a, b) for a, b in zip(whole, resumed, strict=True))
