"""Check whether runs were evaluated on the same held-out set. Pure: digests in, verdict out.

A trainer records a digest of the tokens that an evaluation scores. Metrics under ``val/`` are
comparable only where the digests are equal: values of different sets have neither a difference nor
an order. A run without a digest counts as unknown: its values are compared, with a note.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from lehr.base.formats import listed
from lehr.schemas.comparisons import HeldOutVerdict

_SHOWN = 8
"""Characters of a digest that a sentence shows."""


def is_measured(metric: str) -> bool:
    """Return whether a metric is measured on the held-out set."""
    return metric.startswith("val/")


@dataclass(frozen=True)
class HeldOut:
    """The held-out set of each run that was evaluated."""

    sets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Run ids by digest, both in the order of the runs."""
    unknown: tuple[str, ...] = ()
    """Ids of runs that recorded no digest."""

    @classmethod
    def of(cls, digests: Mapping[str, str | None]) -> HeldOut:
        """Group runs by digest; pass only runs that were evaluated."""
        sets: dict[str, tuple[str, ...]] = {}
        for run_id, digest in digests.items():
            if digest is not None:
                sets[digest] = (*sets.get(digest, ()), run_id)
        unknown = tuple(run_id for run_id, digest in digests.items() if digest is None)
        return cls(sets, unknown)

    @property
    def verdict(self) -> HeldOutVerdict:
        """Return the verdict. A single run is the same as itself, whatever its digest."""
        if len(self.sets) > 1:
            return "different"
        known = sum(len(run_ids) for run_ids in self.sets.values())
        return "unknown" if self.unknown and known + len(self.unknown) > 1 else "same"

    def differ(self, one: str, other: str) -> bool:
        """Return whether two runs are known to have been evaluated on different sets."""
        digests = [self._digest(run_id) for run_id in (one, other)]
        return None not in digests and digests[0] != digests[1]

    def note(self, metric: str, names: Mapping[str, str], what: str = "runs") -> str | None:
        """Return the verdict as a sentence; None where the sets are the same.

        Args:
            metric: the metric to compare.
            names: by run id.
            what: what the names are: runs or trials.
        """
        if self.verdict == "same":
            return None
        if self.verdict == "different":
            sets = "; ".join(
                f"{digest[:_SHOWN]}: {_listed(run_ids, names)}"
                for digest, run_ids in self.sets.items()
            )
            missing = ""
            if self.unknown:
                missing = f" The set is not known for {_listed(self.unknown, names)}."
            return (
                f"{metric} cannot be compared: these {what} were evaluated on {len(self.sets)} "
                f"different held-out sets ({sets}).{missing}"
            )
        who = _listed(self.unknown, names) if self.sets else f"these {what}"
        return (
            f"{metric} may not be comparable: {who} recorded no digest of the held-out set, so it "
            "is not known whether the sets are the same (a script records one by "
            "lehr_log.validation_data)."
        )

    def _digest(self, run_id: str) -> str | None:
        return next((digest for digest, ids in self.sets.items() if run_id in ids), None)


def _listed(run_ids: Collection[str], names: Mapping[str, str]) -> str:
    return listed([names.get(run_id, run_id) for run_id in run_ids])
