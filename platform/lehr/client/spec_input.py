"""Specs as the client's callers give them: files, texts, dicts, objects."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from lehr.errors import UserError
from lehr.specs.overrides import Overrides

if TYPE_CHECKING:
    from lehr.specs import Spec


def load(
    spec: Path | str | dict[str, Any] | Spec, overrides: Overrides, *, want: str | None = None
) -> tuple[Spec, Path | None]:
    """Return the validated spec, and the folder of its file if it has one.

    ``want``: the only kind that is accepted.
    """
    from lehr.specs import load_spec

    folder = None
    if isinstance(spec, BaseModel):
        # It is valid as it is; only what is laid over it must be validated with it.
        loaded = load_spec(plain(spec), overrides) if overrides else spec
    else:
        if isinstance(spec, Path) or (isinstance(spec, str) and "\n" not in spec):
            folder = Path(spec).absolute().parent
        loaded = load_spec(spec, overrides)
    if want is not None and loaded.kind != want:
        method = "submit" if loaded.kind == "run" else loaded.kind
        raise UserError(
            f"this is the spec of a {loaded.kind}, not of a {want}.",
            hint=f"Use {method}() for it.",
        )
    return loaded, folder


def plain(spec: Spec) -> dict[str, Any]:
    """Without defaults: those are the server's to fill in, and a sweep's paths need them unset."""
    return {"kind": spec.kind, **spec.model_dump(mode="json", exclude_unset=True)}
