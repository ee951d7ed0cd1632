"""What a plan shows of a run's data: paths, tokenizers and vocabularies that cannot work."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from lehr.cli.output import warn

if TYPE_CHECKING:
    from lehr.specs import RunSpec


def print_data_problems(specs: Iterable[RunSpec]) -> None:
    """Print each problem once. A path may exist where the runs train, so nothing is refused."""
    for text in data_problems(specs):
        warn(text)


def data_problems(specs: Iterable[RunSpec]) -> list[str]:
    from lehr_trainer.data.checks import check_data
    from lehr_trainer.errors import BadData, TrainerError

    found: dict[str, None] = {}
    for spec in specs:
        if spec.train is None:
            continue
        try:
            check_data(spec.own.data, spec.own.model.vocab_size)
        except BadData as error:
            found[f"train.{error} (looked for on this machine)"] = None
        except TrainerError as error:
            found[f"train.{error}"] = None
    return list(found)
