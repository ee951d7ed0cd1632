"""The table of the dashboard's pages: a row each.

A page has a module of its name in ``dashboard/static/js/pages``. It also has a template of its name
in ``dashboard/templates`` if the common one, ``page.html``, is not enough.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NavigationLink:
    """A link at the top of every page, and its key after ``g``."""

    name: str
    address: str
    key: str


@dataclass(frozen=True)
class DashboardPage:
    """A page without data: its module reads the API with the token of the reader."""

    name: str
    address: str
    """Its parameters are values of the template."""
    section: str
    """Name of the link that is marked while the page is open."""


SECTIONS = (
    NavigationLink("runs", "/", "r"),
    NavigationLink("sweeps", "/sweeps", "s"),
    NavigationLink("rollouts", "/rollouts", "o"),
    NavigationLink("cluster", "/cluster", "c"),
)

PAGES = (
    DashboardPage("runs", "/", "runs"),
    DashboardPage("run", "/runs/{run_id}", "runs"),
    DashboardPage("sweeps", "/sweeps", "sweeps"),
    DashboardPage("sweep", "/sweeps/{sweep_id}", "sweeps"),
    DashboardPage("rollouts", "/rollouts", "rollouts"),
    DashboardPage("rollout", "/rollouts/{rollout_id}", "rollouts"),
    DashboardPage("compare", "/compare", "runs"),
    DashboardPage("cluster", "/cluster", "cluster"),
)
