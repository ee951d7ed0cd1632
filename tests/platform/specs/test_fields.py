"""Dotted paths: their fields, and suggestions for misspelt ones."""

from __future__ import annotations

import pytest

from lehr.specs import RunSpec, SweepSpec
from lehr.specs.synonyms import nearest_path
from lehr_trainer.configs.fields import leaf_paths, place


@pytest.mark.parametrize(
    ("path", "kinds", "owners"),
    [
        ("tags", (list[str],), ["RunSpec"]),
        ("tags.0", (str,), []),
        ("tags.x", None, None),
        ("tags.0.y", None, None),
        ("env.X", (str,), []),
        ("env.X.y", None, None),
        ("train.model.hidden_size", (int, int), ["LlamaConfig", "GPT2Config"]),
        ("train.model.rope_theta", (float,), ["LlamaConfig", "GPT2Config"]),
        ("train.data.corpus.paths.0", (str, str), []),
        ("train.steps.more", None, None),
        ("", None, None),
    ],
)
def test_place_finds_types_and_owners_of_a_path(path, kinds, owners):
    found = place(RunSpec, path)
    assert (found and found.annotations) == kinds
    assert (found and [owner.__name__ for owner in found.owners]) == owners


def test_every_leaf_path_is_found_and_listed_once():
    paths = leaf_paths(SweepSpec)
    assert len(set(paths)) == len(paths)
    assert {"name", "run.train.optimizer.lr", "pruning.min_steps"} <= set(paths)
    assert all(place(SweepSpec, path) is not None for path in paths)


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        # Without its beginning: the shallowest of those that end so.
        ("optimizer.lr", "train.optimizer.lr"),
        ("batch.sequences", "train.batch.sequences"),
        ("steps", "train.steps"),
        # Names of other tools, at any place in the path.
        ("foo.batch_size", "train.batch.sequences"),
        # One name of it misspelt.
        ("resorces", "resources"),
        ("train.optimzer.lr", "train.optimizer.lr"),
        ("train.data.corpus.pathz", "train.data.corpus.paths"),
        ("train.checkpoint.evry", "train.checkpoint.every"),
        ("train.data.corpsu.paths.0", "train.data.corpus.paths.0"),
        # Right up to a misspelt name, and nothing known after it.
        ("train.optimzer.zzz", "train.optimizer"),
        # Its last name, or one like it, elsewhere.
        ("foo.warmup_stepz", "train.schedule.warmup_steps"),
        ("x.y.gpus_", "resources.gpus"),
        ("train.optimizer.lr.x", "train.optimizer.lr"),
        ("qqqqqqq", None),
    ],
)
def test_nearest_path_is_found(path, meant):
    assert nearest_path(RunSpec, path) == meant
