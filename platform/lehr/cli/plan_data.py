"""What a plan shows of a run's data: what an evaluation scores, and what cannot work."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from lehr.cli.output import console, warn

if TYPE_CHECKING:
    from lehr.specs import RunSpec


def print_data(specs: Iterable[RunSpec]) -> None:
    """Print each held-out set that is prepared on this machine, and each problem, once.

    A path may exist where the runs train, so nothing is refused.
    """
    runs = [spec for spec in specs if spec.train is not None]
    for text in dict.fromkeys(filter(None, map(_held_out, runs))):
        console().print(f"  scored   {text}", highlight=False)
    for text in data_problems(runs):
        warn(text)


def _held_out(spec: RunSpec) -> str | None:
    from lehr import home
    from lehr_trainer.errors import TrainerError

    try:
        from lehr_trainer.data.prepared_sample import prepared_sample

        train = spec.own
        sample = prepared_sample(train.data, train.validation, home.data_dir())
    except (ImportError, OSError, TrainerError):
        return None  # Of a trainer that is not installed here, or data that are elsewhere.
    return None if sample is None else sample.describe(train.validation.tokens)


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
