"""Versions of a program's environment, and which of them changed."""

from __future__ import annotations

from lehr.node.programs.environment import changes, versions


def test_versions_have_python_and_every_distribution() -> None:
    assert {"python", "torch", "lehr", "driver"} <= versions().keys()


def test_version_of_cuda_is_that_of_torch() -> None:
    import torch

    assert versions()["cuda"] == (torch.version.cuda or "none")


def test_changes_list_the_important_versions_first_and_count_the_rest() -> None:
    before = {"a": "1", "torch": "2.12", "cuda": "12.6", "python": "3.11", "gone": "1"}
    now = {"a": "2", "torch": "2.13", "cuda": "12.8", "python": "3.11", "new": "1"}
    first = ["cuda 12.6 -> 12.8", "torch 2.12 -> 2.13"]
    assert changes(before, now) == [*first, "a 1 -> 2", "gone 1 -> none"]
    assert changes({}, now) == []
    many = {f"p{n:02}": "1" for n in range(13)}
    assert changes(many, {})[-2:] == ["p09 1 -> none", "3 more"]
