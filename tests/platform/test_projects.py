"""The limit of a request to projects."""

import threading

import pytest

from lehr import projects
from lehr.errors import Forbidden


def test_without_a_limit_all_projects_and_secrets_can_be_used():
    assert projects.current() is None
    assert projects.sees("any")
    assert projects.may_name_secret("hf-read")
    projects.require("any")


def test_limit_holds_in_its_block_and_not_in_other_threads():
    seen = []
    with projects.within(frozenset({"a", "b"})):
        assert (projects.sees("a"), projects.sees("c"), projects.sees("")) == (True, False, False)
        with projects.within(None):
            assert projects.sees("c")
        thread = threading.Thread(target=lambda: seen.append(projects.current()))
        thread.start()
        thread.join()
        with pytest.raises(Forbidden) as refused:
            projects.require("c")
    assert refused.value.message == (
        "this token cannot use project 'c'; it is limited to the projects a, b"
    )
    assert seen == [None]
    assert projects.current() is None


def test_secret_belongs_to_a_project_by_the_begin_of_its_name():
    with projects.within(frozenset({"a"})):
        names = ("a.hf", "a", "ab.hf", "b.a.hf", "hf")
        assert [projects.may_name_secret(name) for name in names] == [True, *[False] * 4]
