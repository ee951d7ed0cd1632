"""Names of other trainers and near misses: each suggests a field."""

import pytest

from lehr.errors import nearest
from lehr.specs import RunSpec, SweepSpec, synonyms
from lehr.specs.synonyms import synonym
from lehr_testing.spec_texts import RUN, SWEEP, message


def test_prefix_matches_only_if_it_is_unique():
    assert nearest("prune", ("run", "runs", "pruning")) == "pruning"
    assert nearest("min", ("minimize", "maximize")) == "minimize"
    assert nearest("seq", ("sequences", "sequence_length")) is None


@pytest.mark.parametrize(
    ("text", "overrides", "meant"),
    [
        (RUN + "batch_size: 8\n", [], "train.batch.sequences"),
        (RUN.replace("  steps: 100", "  steps: 100\n  batch_size: 8"), [], "train.batch.sequences"),
        (
            RUN.replace("  steps: 100", "  steps: 100\n  n_layers: 2"),
            [],
            "train.model.num_hidden_layers",
        ),
        (RUN.replace("  steps: 100", "  max_iters: 100"), [], "train.steps"),
        (RUN, ["train.batch_size=8"], "train.batch.sequences"),
        (RUN, ["train.dtype=bf16"], "train.precision.compute"),
        (RUN, ["n_gpus=8"], "resources.gpus"),
        (
            SWEEP.replace("train.optimizer.lr", "train.n_layers"),
            [],
            "train.model.num_hidden_layers",
        ),
        (SWEEP, ["run_cap=3"], "trials"),
    ],
)
def test_name_of_another_trainer_gives_a_suggestion_but_is_not_accepted(
    tmp_path, text, overrides, meant
):
    assert f"Did you mean {meant}?" in message(tmp_path, text, overrides)


def test_every_synonym_suggests_a_field_and_is_no_field_itself():
    for name, paths in synonyms._BY_NAME.items():
        root = SweepSpec if paths[0] in SweepSpec.model_fields and len(paths) == 1 else RunSpec
        assert synonym(root, name) is not None, name
        assert synonym(SweepSpec, name) is not None, name
