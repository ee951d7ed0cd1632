"""The specs that come with Lehr: each is valid, fits, is linked and documented, and has a rehearsal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lehr import examples
from lehr.analysis.plan import plan_run
from lehr.analysis.plan_fit import refuse_if_impossible
from lehr.specs import RolloutSpec, SweepSpec, expand, load_spec, stages
from lehr_testing.paths import ROOT
from lehr_trainer.models import attention, build_architecture
from lehr_trainer.models.module_map import blocks
from lehr_trainer.runtime.compiling import compile_model
from lehr_trainer.runtime.context import RunContext
from lehr_trainer.runtime.distributed import Ranks

FILES = sorted(examples.FOLDER.glob("*.yaml"))
TWINS = [
    (examples.LR_GRID, examples.LR_GRID_SMALL),
    (examples.MUON_LR_GRID, examples.MUON_LR_GRID_SMALL),
    (examples.TECHNIQUES, examples.TECHNIQUES_SMALL),
    (examples.ROLLOUT_LLAMA_1B, examples.ROLLOUT_SMALL),
]


def runs(path: Path) -> list:
    spec = load_spec(path)
    if isinstance(spec, RolloutSpec):
        return [stage.train for stage in stages(spec)]
    assert isinstance(spec, SweepSpec)
    return [run for _, run in expand(spec)]


def sweep(path: Path) -> SweepSpec:
    spec = load_spec(path)
    assert isinstance(spec, SweepSpec)
    return spec


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_run_of_a_shipped_spec_is_valid_and_fits_its_gpu(path: Path) -> None:
    for run in runs(path):
        refuse_if_impossible(run, plan_run(run))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_run_of_a_shipped_spec_compiles_its_blocks_on_a_gpu(path: Path) -> None:
    """The ranks' device stands in for a driver, which would only say that there is a GPU."""
    seen = 0
    for run in runs(path):
        device = torch.device("cpu" if run.train.device == "cpu" else "cuda")
        none: Any = None
        context = RunContext(run.train, none, Ranks(0, 1, device), none, none, none, none)
        config = context.config
        assert config.compile.scope == ("none" if device.type == "cpu" else "block")
        attention.require_backend(config.attention, device)
        model = build_architecture(config, device="meta")
        compile_model(model, config.compile)
        compiled = [block._compiled_call_impl is not None for block in blocks(model)]
        assert compiled == [device.type == "cuda"] * config.model.num_hidden_layers
        assert model._compiled_call_impl is None
        seen += device.type == "cuda"
    assert seen


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_shipped_spec_is_linked_and_has_a_row_in_the_readme(path: Path) -> None:
    link = ROOT / "sweeps" / path.name
    assert link.is_symlink()
    assert link.resolve() == path.resolve()
    assert f"[`{path.name}`]({path.name})" in (ROOT / "sweeps/README.md").read_text()


def test_every_shipped_spec_has_a_small_twin_or_is_one() -> None:
    assert sorted(path for pair in TWINS for path in pair) == FILES


@pytest.mark.parametrize("small", [small for _, small in TWINS], ids=lambda path: path.stem)
def test_rehearsal_needs_no_gpu_and_no_download(small: Path) -> None:
    for run in runs(small):
        assert run.resources.gpu_type is None
        assert run.train.data.corpus.kind == "stdlib"
        assert run.train.data.tokenizer == "byte"
        assert run.train.model.hidden_size == 64


def test_comparison_changes_one_technique_at_a_time_over_1000_steps() -> None:
    spec = sweep(examples.TECHNIQUES)
    found = runs(examples.TECHNIQUES)
    assert {run.train.steps for run in found} == {1000}
    baseline = found[0].train
    assert (baseline.optimizer.name, baseline.precision.fp8.recipe, baseline.loss.name) == (
        "adamw",
        "none",
        "chunked",
    )
    changed = []
    for run in found[:: spec.seed_count]:
        train = run.train
        changed.append(
            (
                train.optimizer.name != "adamw",
                train.precision.fp8.recipe != "none",
                train.loss.name != "chunked",
            )
        )
        assert train.optimizer.lr == baseline.optimizer.lr
        assert train.optimizer.weight_decay == baseline.optimizer.weight_decay
    assert [sum(one) for one in changed] == [0, 1, 1, 1, 1, 1]
    assert [any(one) for one in zip(*changed, strict=True)] == [True, True, True]
    assert spec.seed_count == 2


def test_rehearsal_of_the_comparison_has_its_points_as_far_as_a_cpu_can() -> None:
    large, small = sweep(examples.TECHNIQUES), sweep(examples.TECHNIQUES_SMALL)
    assert large.points is not None
    assert small.points == [
        {**point, "train.loss.name": "standard"} if "train.loss.name" in point else point
        for point in large.points
    ]
    assert all(run.train.precision.fp8.emulate for run in runs(examples.TECHNIQUES_SMALL))


def test_grid_of_muon_differs_from_that_of_adamw_in_the_optimizer_alone() -> None:
    for adamw, muon in (
        (examples.LR_GRID, examples.MUON_LR_GRID),
        (examples.LR_GRID_SMALL, examples.MUON_LR_GRID_SMALL),
    ):
        one, other = sweep(adamw), sweep(muon)
        assert list(other.parameters) == ["train.optimizer.lr"]
        assert other.run.train.optimizer.name == "muon"
        own = {"optimizer", "name", "project"}
        assert one.run.train.model_dump(exclude=own) == other.run.train.model_dump(exclude=own)
        assert one.run.resources == other.run.resources
        assert len(expand(one)) == len(expand(other)) == 8
