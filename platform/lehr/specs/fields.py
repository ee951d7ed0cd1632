"""Find the field of a spec that was probably meant: by another tool's name, or a similar one."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from lehr.errors import nearest
from lehr.specs.synonyms import candidates
from lehr_trainer.configs.fields import field_names, join, leaf_paths, models, place, step


def synonym(root: type[BaseModel], name: str) -> str | None:
    """Return the path under ``root`` of the field that other tools call ``name``, if any."""
    return next((path for path in candidates(name) if place(root, path)), None)


def nearest_path(root: type[BaseModel], path: str) -> str | None:
    """Return the path under ``root`` that was probably meant."""
    known = leaf_paths(root)
    # The end is right, the beginning is missing: optimizer.lr, lr.
    ends = [candidate for candidate in known if candidate.endswith(f".{path}")]
    if ends:
        # Of two equally near, the field of Lehr's trainer: few runs train with a program.
        return min(ends, key=lambda found: (found.count("."), found.startswith("trainer.")))
    other = synonym(root, path.rpartition(".")[2])
    if other is not None:
        return other
    # The beginning is right, up to one wrong name.
    annotations: tuple[Any, ...] = (root,)
    done = ""
    names = path.split(".")
    for index, name in enumerate(names):
        further = step(annotations, name)
        if further is None:
            close = nearest(name, field_names(models(annotations)))
            if close is not None:
                guess = ".".join(filter(None, [done, close, *names[index + 1 :]]))
                return guess if place(root, guess) else join(done, close)
            break
        annotations, done = further, join(done, name)
    # The last name, or a similar one, exists elsewhere; prefer the shallowest.
    by_name: dict[str, str] = {}
    for candidate in sorted(known, key=lambda candidate: candidate.count(".")):
        by_name.setdefault(candidate.rpartition(".")[2], candidate)
    close = nearest(names[-1], by_name)
    if close is not None:
        return by_name[close]
    return nearest(path, known)
