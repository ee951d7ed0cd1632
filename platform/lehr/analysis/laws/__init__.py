"""Laws of the final loss over size, tokens and decided values, and what a campaign asks of them."""

from lehr.analysis.laws.law import Law, Observation, fit_law

__all__ = ["Law", "Observation", "fit_law"]
