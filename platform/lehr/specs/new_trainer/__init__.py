"""Write a small project that replaces one part of Lehr's trainer, ready to train."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Literal

from lehr.errors import UserError
from lehr_trainer.configs.parts import PARTS_VERSION

PartKind = Literal["model", "loss", "optimizer"]

_ENTRIES: dict[PartKind, tuple[str, str]] = {
    # the name in its file, and a learning rate that suits it
    "model": ("MyModel", "3e-3"),
    "loss": ("my_loss", "3e-3"),
    "optimizer": ("my_optimizer", "3e-4"),
}
_STEPS = 60


def write_project(folder: Path, part: PartKind) -> list[str]:
    """Write the project into a new or empty folder; return the names of its files.

    Raises:
        UserError: the folder is not empty, or cannot be written.
    """
    entry, lr = _ENTRIES[part]
    spec = _template("run.yaml").format(
        name=f"my-{part}", version=PARTS_VERSION, part=part, entry=entry, lr=lr, steps=_STEPS
    )
    files = {f"my_{part}.py": _template(f"{part}.py"), "run.yaml": spec}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UserError(f"{folder} is not empty.", hint="Choose a new folder.")
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror}.") from error
    return sorted(files)


def _template(name: str) -> str:
    return resources.files(__name__).joinpath(f"{name}.txt").read_text("utf-8")
