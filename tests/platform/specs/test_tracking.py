"""Keys of Weights & Biases are rejected in specs, which everyone can read."""

from __future__ import annotations

import pytest

from lehr.errors import SpecError
from lehr.specs import load_spec, read_yaml
from lehr.specs.run import NO_KEY
from lehr_testing.spec_texts import RUN

RUN_DATA = read_yaml(RUN).data
OLD, LOCAL, NEW = "0123456789" * 4, f"local-{'ab' * 20}", f"wandb_v1_{'Ab9_' * 6}"


def refused(field: str, value) -> SpecError:
    with pytest.raises(SpecError) as caught:
        load_spec(RUN_DATA, {f"tracking.wandb.{field}": value})
    return caught.value


@pytest.mark.parametrize("key", [OLD, LOCAL, NEW])
@pytest.mark.parametrize("field", ["project", "entity", "group", "job_type", "tags"])
def test_api_key_in_any_field_is_rejected_and_not_repeated(field, key):
    error = refused(field, [key] if field == "tags" else key)
    assert "this looks like a W&B key" in str(error.problems[0].message)
    assert not any(key in problem.message for problem in error.problems)


@pytest.mark.parametrize("name", ["api_key", "apikey", "key", "token", "password", "secret"])
def test_field_for_an_api_key_is_rejected_with_the_right_place(name):
    assert f"{name}: {NO_KEY}" in str(refused(name, "x"))


@pytest.mark.parametrize("word", ["0123abcd", "wandb_v1_short", "a" * 41, "g" * 40])
def test_word_with_the_prefix_of_a_key_is_accepted(word):
    made = load_spec(RUN_DATA, {"tracking.wandb.group": word})
    assert made.tracking.wandb.group == word
