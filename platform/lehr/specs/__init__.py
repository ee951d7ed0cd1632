"""Specs: runs, sweeps and rollouts, written as YAML, JSON or dicts.

``load_spec`` reads one and reports all its problems at once. ``expand`` makes the runs of a sweep,
``stages`` those of a rollout. ``json_schema`` describes the files for editors.
"""

from lehr.specs.load import Spec, load_spec
from lehr.specs.rollout import RolloutSpec
from lehr.specs.run import Resources, Retries, RunSpec
from lehr.specs.schema import json_schema
from lehr.specs.stages import PlannedStage, stages
from lehr.specs.sweep import Metric, SweepSpec, Values
from lehr.specs.sweep_expand import expand
from lehr.specs.yaml12 import dump_yaml, read_yaml

__all__ = [
    "Metric",
    "PlannedStage",
    "Resources",
    "Retries",
    "RolloutSpec",
    "RunSpec",
    "Spec",
    "SweepSpec",
    "Values",
    "dump_yaml",
    "expand",
    "json_schema",
    "load_spec",
    "read_yaml",
    "stages",
]
