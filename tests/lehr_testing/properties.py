"""Number and choice of examples of the property tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

CI = "ci"
NIGHTLY = "nightly"
MORE_AT_NIGHT = 10


def register_profiles() -> None:
    """Load ``ci``: the same examples each time; ``--hypothesis-profile=nightly`` loads the other.

    Before any test module is imported: ``@settings`` fills in what it is not given from here.
    """
    common = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile(CI, derandomize=True, database=None, **common)
    settings.register_profile(
        NIGHTLY, derandomize=False, max_examples=100 * MORE_AT_NIGHT, print_blob=True, **common
    )
    settings.load_profile(CI)


def examples(usual: int) -> int:
    """Return the number of examples of a test that sets its own number."""
    return (
        usual * MORE_AT_NIGHT if settings.get_current_profile_name().startswith(NIGHTLY) else usual
    )
