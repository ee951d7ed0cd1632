"""For any input the loader returns a spec or raises SpecError."""

import json

from hypothesis import given
from hypothesis import strategies as st

from lehr.errors import SpecError
from lehr.specs import RunSpec, SweepSpec, dump_yaml, load_spec, read_yaml
from lehr_testing.spec_texts import RUN, SWEEP
from lehr_trainer.configs.fields import leaf_paths

text = st.text(st.characters(exclude_categories=["Cs", "Cc"], include_characters="\n"), max_size=20)
scalars = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | text
)
plain = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=20,
)
names = st.sampled_from(
    sorted({name for path in leaf_paths(SweepSpec) for name in path.split(".")} | {"preset", "x"})
)
specish = st.recursive(
    scalars | st.sampled_from(["tiny", "stdlib", "text", "grid", "adamw", 1, 8, 1e-3]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=5),
    max_leaves=30,
)


def loads(source, overrides=()) -> None:
    problems = None
    try:
        spec = load_spec(source, overrides)
    except SpecError as error:
        problems = error.problems
    if problems is None:
        assert isinstance(spec, RunSpec | SweepSpec)
    else:
        assert problems
        assert all(problem.message.strip() for problem in problems)
        assert all(str(problem).encode() for problem in problems)


@given(plain)
def test_plain_data_written_as_yaml_reads_back(data):
    assert read_yaml(dump_yaml(data)).data == data


@given(st.text(alphabet="{}[]:,-&*!|>'\"#%@`? \n\tabc01.e~<", max_size=60))
def test_yaml_like_text_never_causes_a_traceback(text):
    loads(text + "\n")


@given(specish)
def test_random_data_under_known_names_never_causes_a_traceback(data):
    if isinstance(data, dict):
        loads(data)


@given(st.sampled_from(leaf_paths(RunSpec)), specish)
def test_override_of_a_field_never_causes_a_traceback(path, value):
    loads(RUN, {path: value})


@given(st.sampled_from(leaf_paths(RunSpec)), st.lists(specish, max_size=3))
def test_swept_values_never_cause_a_traceback(path, values):
    loads(SWEEP, {"parameters": {path: {"values": values}}})


@given(
    st.fixed_dictionaries(
        {
            "train.optimizer.lr": st.floats(1e-8, 10, allow_subnormal=False),
            "train.steps": st.integers(1, 2**40),
            "train.seed": st.integers(0, 2**60),
            "notes": text,
            "tags": st.lists(text, max_size=3),
            "train.deterministic": st.booleans(),
        }
    )
)
def test_override_sets_the_same_value_in_every_notation(values):
    spec = load_spec(RUN, values)
    assert isinstance(spec, RunSpec)
    got = {
        "train.optimizer.lr": spec.train.optimizer.lr,
        "train.steps": spec.train.steps,
        "train.seed": spec.train.seed,
        "notes": spec.notes,
        "tags": spec.tags,
        "train.deterministic": spec.train.deterministic,
    }
    assert got == values
    assert load_spec(RUN, [f"{path}={json.dumps(value)}" for path, value in values.items()]) == spec
    # Round trips: as YAML and as JSON, a spec is read as itself.
    dumped = spec.model_dump(mode="json")
    assert load_spec(dumped) == spec
    assert load_spec(dump_yaml(dumped)) == spec
