"""Which routes a token that is limited to projects may use, and how their data is limited.

Each route of the application has an entry; a test compares them with the routes. A route without an
entry does not exist for such a token. The limit itself is the store's: it finds, lists and creates
only rows of the projects of the current request (``lehr.projects``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from lehr_api.pages import PAGES


class Scope(StrEnum):
    """How a route that is open to limited tokens treats projects."""

    OWN = "own"
    """It reads and changes things of projects: those of the token exist, others do not."""
    MASKED = "masked"
    """It shows the whole cluster without names, ids and texts of other projects."""
    SHARED = "shared"
    """It has nothing of a project."""
    WORKER = "worker"
    """The token of an attempt or of a node opens it; attempts belong to one run."""


@dataclass(frozen=True)
class Refused:
    """The route is closed to tokens that are limited to projects."""

    reason: str
    """Begins a sentence of the error."""


_PEOPLE = Refused("tokens and the audit are of the whole server")
_NODES = Refused("nodes are of the whole server")

SCOPES: dict[str, Scope | Refused] = {
    # Runs.
    "/api/v1/runs": Scope.OWN,
    "/api/v1/runs/{ref}": Scope.OWN,
    "/api/v1/runs/{ref}/alerts": Scope.OWN,
    "/api/v1/runs/{ref}/archive": Scope.OWN,
    "/api/v1/runs/{ref}/cancel": Scope.OWN,
    "/api/v1/runs/{ref}/checkpoint": Scope.OWN,
    "/api/v1/runs/{ref}/checkpoints": Scope.OWN,
    "/api/v1/runs/{ref}/checkpoints/{step}": Scope.OWN,
    "/api/v1/runs/{ref}/checkpoints/{step}/deletion": Scope.OWN,
    "/api/v1/runs/{ref}/checkpoints/{step}/files": Scope.OWN,
    "/api/v1/runs/{ref}/checkpoints/{step}/files/{name}": Scope.OWN,
    "/api/v1/runs/{ref}/checkpoints/{step}/verify": Scope.OWN,
    "/api/v1/runs/{ref}/config": Scope.OWN,
    "/api/v1/runs/{ref}/deletion": Scope.OWN,
    "/api/v1/runs/{ref}/events": Scope.OWN,
    "/api/v1/runs/{ref}/export": Scope.OWN,
    "/api/v1/runs/{ref}/fork": Scope.OWN,
    "/api/v1/runs/{ref}/logs": Scope.OWN,
    "/api/v1/runs/{ref}/logs/{name}": Scope.OWN,
    "/api/v1/runs/{ref}/logs/{name}/search": Scope.OWN,
    "/api/v1/runs/{ref}/logs/{name}/text": Scope.OWN,
    "/api/v1/runs/{ref}/metrics": Scope.OWN,
    "/api/v1/runs/{ref}/note": Scope.OWN,
    "/api/v1/runs/{ref}/pause": Scope.OWN,
    "/api/v1/runs/{ref}/priority": Scope.OWN,
    "/api/v1/runs/{ref}/report": Scope.OWN,
    "/api/v1/runs/{ref}/resume": Scope.OWN,
    "/api/v1/runs/{ref}/retry": Scope.OWN,
    "/api/v1/runs/{ref}/samples": Scope.OWN,
    "/api/v1/runs/{ref}/seeds": Scope.OWN,
    "/api/v1/runs/{ref}/series": Scope.OWN,
    "/api/v1/runs/{ref}/system": Scope.OWN,
    "/api/v1/runs/{ref}/tags": Scope.OWN,
    "/api/v1/runs/{ref}/unarchive": Scope.OWN,
    "/api/v1/runs/{ref}/wandb": Scope.OWN,
    "/api/v1/checks": Scope.OWN,
    "/api/v1/compare": Scope.OWN,
    "/api/v1/values": Scope.OWN,
    "/api/v1/metrics": Scope.OWN,
    "/api/v1/series": Scope.OWN,
    "/api/v1/views": Scope.OWN,
    "/api/v1/views/{name}": Scope.OWN,
    # Capsules.
    "/api/v1/code/{digest}": Scope.OWN,
    "/api/v1/code/{ref}": Scope.OWN,
    "/api/v1/code/{ref}/archive": Scope.OWN,
    "/api/v1/code/{ref}/diff": Scope.OWN,
    # Sweeps and rollouts.
    "/api/v1/sweeps": Scope.OWN,
    "/api/v1/sweeps/{ref}": Scope.OWN,
    "/api/v1/sweeps/{ref}/archive": Scope.OWN,
    "/api/v1/sweeps/{ref}/cancel": Scope.OWN,
    "/api/v1/sweeps/{ref}/deletion": Scope.OWN,
    "/api/v1/sweeps/{ref}/extend": Scope.OWN,
    "/api/v1/sweeps/{ref}/figure": Scope.OWN,
    "/api/v1/sweeps/{ref}/note": Scope.OWN,
    "/api/v1/sweeps/{ref}/report": Scope.OWN,
    "/api/v1/sweeps/{ref}/retry": Scope.OWN,
    "/api/v1/sweeps/{ref}/transfer": Scope.OWN,
    "/api/v1/sweeps/{ref}/unarchive": Scope.OWN,
    "/api/v1/rollouts": Scope.OWN,
    "/api/v1/rollouts/{ref}": Scope.OWN,
    "/api/v1/rollouts/{ref}/archive": Scope.OWN,
    "/api/v1/rollouts/{ref}/cancel": Scope.OWN,
    "/api/v1/rollouts/{ref}/note": Scope.OWN,
    "/api/v1/rollouts/{ref}/report": Scope.OWN,
    "/api/v1/rollouts/{ref}/unarchive": Scope.OWN,
    # The cluster.
    "/api/v1/cluster": Scope.MASKED,
    "/api/v1/queue": Scope.MASKED,
    "/api/v1/stream": Scope.MASKED,
    "/api/v1/cluster/nodes/{node}/history": Scope.SHARED,
    "/api/v1/cluster/nodes/{node}/exclude": _NODES,
    "/api/v1/cluster/nodes/{node}/readmit": _NODES,
    "/api/v1/cluster/join": _NODES,
    "/api/v1/cluster/leave": _NODES,
    "/api/v1/quotas": Scope.OWN,
    "/api/v1/quotas/{project}": Refused("quotas are set for the whole server"),
    "/api/v1/maintenance": Scope.SHARED,
    "/api/v1/maintenance/{window}": _NODES,
    "/metrics": Refused("these metrics count the runs of all projects"),
    # People, secrets, webhooks.
    "/api/v1/tokens": _PEOPLE,
    "/api/v1/tokens/{name}": _PEOPLE,
    "/api/v1/tokens/{name}/rotate": _PEOPLE,
    "/api/v1/audit": _PEOPLE,
    "/api/v1/login-links": Scope.SHARED,
    "/api/v1/secrets": Scope.OWN,
    "/api/v1/secrets/{name}": Refused("secrets are set for the whole server"),
    "/api/v1/webhooks": Refused("webhooks are of the whole server"),
    "/api/v1/webhooks/{name}": Refused("webhooks are of the whole server"),
    "/api/v1/webhooks/{name}/test": Refused("webhooks are of the whole server"),
    # The server.
    "/api/v1/health": Scope.SHARED,
    "/api/v1/version": Scope.SHARED,
    "/api/v1/presets": Scope.SHARED,
    "/api/v1/openapi.json": Scope.SHARED,
    # Workers.
    "/api/v1/attempts/{attempt_id}/code": Scope.WORKER,
    "/api/v1/attempts/{attempt_id}/copies": Scope.WORKER,
    "/api/v1/attempts/{attempt_id}/exit": Scope.WORKER,
    "/api/v1/attempts/{attempt_id}/heartbeat": Scope.WORKER,
    "/api/v1/attempts/{attempt_id}/streams": Scope.WORKER,
    "/api/v1/attempts/{attempt_id}/streams/{name}": Scope.WORKER,
    # Pages: they have no data, and read the API with the token of their reader.
    **{page.address: Scope.SHARED for page in PAGES},
    "/login": Scope.SHARED,
    "/logout": Scope.SHARED,
    "/static/{file}": Scope.SHARED,
    "/static/{digest}/{file}": Scope.SHARED,
}
"""By the path of a route, whatever its method."""

_PARAMETER = re.compile(r"\{(\w+)\}")


def _pattern(template: str) -> re.Pattern[str]:
    """Return the expression for the addresses of a route."""
    literal = (re.escape(part) for part in _PARAMETER.split(template)[::2])
    found = "[^/]+".join(literal)
    return re.compile(found.removesuffix("[^/]+") + ".+" if "/static/" in template else found)


_PATTERNS = [(_pattern(template), scope) for template, scope in SCOPES.items()]


def of(path: str) -> Scope | Refused | None:
    """Return the scope of the route at an address; None if none is declared."""
    return next((scope for pattern, scope in _PATTERNS if pattern.fullmatch(path)), None)
