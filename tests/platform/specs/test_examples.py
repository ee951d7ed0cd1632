"""The specs that come with Lehr: each is valid, fits, is linked and documented, and has a rehearsal."""

from __future__ import annotations

from pathlib import Path

import pytest

from lehr.analysis.plan import known_runs, plan_run, refuse_if_impossible
from lehr.specs import RolloutSpec, SweepSpec, examples, load_spec, stages
from lehr_testing.paths import ROOT

FILES = sorted(examples.FOLDER.glob("*.yaml"))
TWINS = [
    (examples.FOLDER / "lr_grid.yaml", examples.LR_GRID_SMALL),
    (examples.FOLDER / "muon_lr_grid.yaml", examples.FOLDER / "muon_lr_grid_small.yaml"),
    (examples.FOLDER / "techniques_1000_steps.yaml", examples.FOLDER / "techniques_small.yaml"),
    (examples.FOLDER / "rollout_llama_1b.yaml", examples.ROLLOUT_SMALL),
    (examples.FOLDER / "campaign.yaml", examples.FOLDER / "campaign_small.yaml"),
]


def runs(path: Path) -> list:
    spec = load_spec(path)
    if isinstance(spec, RolloutSpec):
        return [stage.train for stage in stages(spec)]
    assert isinstance(spec, SweepSpec)
    return [run for _, run in known_runs(spec)]


def sweep(path: Path) -> SweepSpec:
    spec = load_spec(path)
    assert isinstance(spec, SweepSpec)
    return spec


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_run_of_a_shipped_spec_is_valid_and_fits_its_gpu(path: Path) -> None:
    for run in runs(path):
        refuse_if_impossible(run, plan_run(run))


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
        assert run.train.model.hidden_size <= 256


def test_comparison_changes_one_technique_at_a_time_over_1000_steps() -> None:
    spec = sweep(examples.FOLDER / "techniques_1000_steps.yaml")
    found = runs(examples.FOLDER / "techniques_1000_steps.yaml")
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
