"""Rules about which batches a run trained on, by their digests, and about records that are lost."""

from __future__ import annotations

from collections.abc import Iterator

from lehr.analysis.batches import DIGEST, EPOCH, agreement, repetition
from lehr.analysis.diagnosis.signs import LASTS, DiagnosedRun, Sign, rule


@rule("repeated_batches", (EPOCH,), (DIGEST,), points=LASTS + 1)
def repeated_batches(run: DiagnosedRun) -> Iterator[Sign]:
    digests, epochs = run.curves.get(DIGEST), run.curves.get(EPOCH)
    if digests is None or epochs is None:
        return
    found = repetition(digests, epochs, lasts=LASTS)
    if found is not None:
        yield Sign(
            found.step,
            f"step {found.step:,} had the same batch as step {found.earlier:,}, within one pass "
            f"over the corpus; {found.count:,} logged steps repeat a batch",
            "Look for copies in the corpus and for a change of the data order; the run learns "
            "from fewer tokens than it counts",
            "certain",
            "a loader that does not advance, or copies in the corpus",
            "",
        )


@rule("other_data", (DIGEST,))
def other_data(run: DiagnosedRun) -> Iterator[Sign]:
    """Detect an attempt that trained on other batches at steps that an earlier one had taken.

    One step suffices: the digests of equal batches are always equal.
    """
    digests = run.curves.get(DIGEST)
    if digests is None:
        return
    differing = [agreement(digests, earlier).differs_from for earlier in digests.superseded]
    steps = [step for step in differing if step is not None]
    if steps:
        yield Sign(
            min(steps),
            f"since a resume, the batch of step {min(steps):,} is another one than before it",
            "Compare version, seed, batch and data of the attempts. To train on other data on "
            "purpose, fork the run",
            "certain",
            "another seed, corpus, batch size or version of the code",
            "",
        )


@rule("lost_records")
def lost_records(run: DiagnosedRun) -> Iterator[Sign]:
    """Report what the store knows to be lost; curves alone do not show it."""
    for loss in run.losses:
        yield Sign(
            loss.step,
            loss.seen,
            "Weights and later checkpoints are not concerned, but curves and logs lack this, and "
            "earlier checkpoints may be gone, too: `lehr db check` lists them. To have the record, "
            "repeat the run, or fork it from a checkpoint before it",
            "certain",
            "the run's folder was removed or cut while it trained, or the record was restored from "
            "an older backup",
            "",
        )
