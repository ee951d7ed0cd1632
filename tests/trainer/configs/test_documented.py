"""Descriptions of fields, against those that Pydantic itself reads when a class is made."""

from __future__ import annotations

from typing import Annotated, Any, Generic, TypeVar

import pytest
from pydantic import BaseModel, ConfigDict, Field

from lehr_trainer.configs import base as documented
from lehr_trainer.configs.base import Documented, field_text
from lehr_trainer.configs.train import TrainConfig

T = TypeVar("T")
READ_AT_ONCE = ConfigDict(use_attribute_docstrings=True)


def models(base: type[BaseModel], config: ConfigDict) -> dict[str, type[BaseModel]]:
    """The same models twice: by what is tested, and by Pydantic's own switch."""

    class Part(base):
        """A part."""

        model_config = config

        size: int
        """In bytes.

        On disk.
        """
        plain: int = 1

    class Whole(Part):
        plain: int = 2
        kept: Annotated[int, Field(description="What the field says.")] = 3
        """What stands below."""
        part: Part | None = None
        """A part of it."""
        renamed: int = Field(4, alias="other")
        """By its alias."""

        class Inner(base):
            model_config = config

            deep: int
            """Of a class within."""

        inner: Inner | None = None
        """Not deep."""

    class Again(Whole):
        size: int
        part: Part | None = None

    class Some(base, Generic[T]):
        model_config = config

        items: list[T]
        """Of one kind."""

    return {
        "part": Part,
        "whole": Whole,
        "again": Again,
        "inner": Whole.Inner,
        "some": Some[int],
        "of models": Some[Whole],
    }


@pytest.mark.parametrize("mode", ["validation", "serialization"])
@pytest.mark.parametrize("name", models(Documented, ConfigDict()))
def test_schemas_are_those_of_pydantics_own_switch(name: str, mode: Any) -> None:
    ours = models(Documented, ConfigDict())[name].model_json_schema(mode=mode)
    theirs = models(BaseModel, READ_AT_ONCE)[name].model_json_schema(mode=mode)
    assert ours == theirs
    assert "description" in str(ours)


def test_text_of_a_field_is_its_description_or_else_what_stands_below() -> None:
    for name, model in models(Documented, ConfigDict()).items():
        theirs = models(BaseModel, READ_AT_ONCE)[name]
        for field, info in theirs.model_fields.items():
            assert field_text(model, field) == info.description, (name, field)
    assert field_text(TrainConfig, "no_such_field") is None


def test_source_is_not_read_before_a_text_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> dict[str, dict[str, str]]:
        raise AssertionError("the source was read")

    monkeypatch.setattr(documented, "_module_texts", refuse)
    made = models(Documented, ConfigDict())
    assert made["part"].model_validate({"size": 1}).model_dump() == {"size": 1, "plain": 1}
    with pytest.raises(AssertionError, match="was read"):
        made["part"].model_json_schema()
