"""What a plan shows of a run's data: what an evaluation scores, and what cannot work."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from lehr.cli.output import console, warn
from lehr_trainer.data.checks import check_data, files_read
from lehr_trainer.data.corpus_size import check_size
from lehr_trainer.data.first_file import Looks
from lehr_trainer.errors import BadData, TrainerError

if TYPE_CHECKING:
    from lehr.specs import RunSpec
    from lehr_trainer.configs.train import TrainConfig


def print_data(specs: Iterable[RunSpec]) -> None:
    """Print each held-out set that is prepared on this machine, many passes over a corpus, and each
    problem, once.

    A path may exist where the runs train, so nothing is refused.
    """
    runs = [spec for spec in specs if spec.train is not None]
    trains = {repr((t.data, t.validation, t.total_tokens)): t for t in (r.own for r in runs)}
    with suppress(BadData):  # It is one of the problems.
        read = [files_read(train.data.corpus, Looks()) for train in trains.values()]
        for text in dict.fromkeys(filter(None, read)):
            console().print(f"  files    {text}", highlight=False, markup=False)
    known = [_of_prepared(train) for train in trains.values()]
    for text in dict.fromkeys(scored for scored, _ in known if scored):
        console().print(f"  scored   {text}", highlight=False)
    for text in [*dict.fromkeys(passes for _, passes in known if passes), *data_problems(runs)]:
        warn(text)


def _of_prepared(train: TrainConfig) -> tuple[str | None, str | None]:
    """Return what an evaluation scores, and a warning of many passes, where data are prepared."""
    from lehr import home
    from lehr.analysis.batches import passes_note

    try:
        from lehr_trainer.data.prepared_sample import prepared_sample, prepared_tokens

        given = train.data, train.validation, home.data_dir()
        sample, tokens = prepared_sample(*given), prepared_tokens(*given)
    except (ImportError, OSError, TrainerError):
        return None, None  # Of a trainer that is not installed here, or data that are elsewhere.
    scored = None if sample is None else sample.describe(train.validation.tokens)
    return scored, passes_note(train.total_tokens / tokens if tokens else None)


def data_problems(specs: Iterable[RunSpec]) -> list[str]:
    found: dict[str, None] = {}
    for spec in specs:
        if spec.train is None:
            continue
        try:
            check_data(spec.own.data, spec.own.model.vocab_size)
            check_size(spec.own.data, spec.own.validation, spec.own.batch.sequence_length, Looks())
        except BadData as error:
            found[f"train.{error} (looked for on this machine)"] = None
        except TrainerError as error:
            found[f"train.{error}"] = None
    return list(found)
