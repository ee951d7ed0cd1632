"""Base types of the REST API's answers."""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import ConfigDict, Field

from lehr_trainer.configs.base import Documented

T = TypeVar("T")
NON_FINITE = "NaN and infinities are sent as strings"
Measured = Annotated[float, NON_FINITE]
"""A number that a training produced, so it may be NaN or infinite."""
SameData = Literal["same", "different", "unknown"]
"""Whether runs had the same batches, or the same held-out set; unknown: some recorded no digest."""


class View(Documented):
    model_config = ConfigDict(extra="ignore", ser_json_inf_nan="strings")


class Page(View, Generic[T]):
    items: list[T]
    next_cursor: str | None = None
    """Pass as ``cursor`` for the next page; null on the last."""
    total: int | None = None


class Problem(View):
    """RFC 9457 problem+json."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str
    """Machine-readable: invalid_spec, not_found, conflict, fenced, unauthorized, ..."""
    hint: str | None = None
    problems: list[dict[str, Any]] = Field(default_factory=list)
    """For a spec: each with path, message, hint."""


class Health(View):
    status: Literal["ok"] = "ok"
    version: str
    protocol: int
