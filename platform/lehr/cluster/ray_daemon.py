"""Run Ray's own ``ray start`` without client server and dashboard. Run with ``python -P -m``.

The client server runs code for anybody who connects, has no option to disable it, and takes a fixed
port by default. Ray starts the dashboard's process even if the dashboard is disabled, and the
raylet only after it, which would add a second to every ``lehr up``.
"""

from __future__ import annotations

from typing import Any

from ray._private.node import Node
from ray.scripts import scripts


def main() -> None:
    scripts.get_ray_client_dependency_error = lambda: "off: Lehr does not use it"
    Node.start_api_server = _without_dashboard
    scripts.cli()


def _without_dashboard(node: Any, **_: Any) -> None:
    node._webui_url = ""  # noqa: SLF001 - all that Ray itself leaves of a dashboard that is off


if __name__ == "__main__":
    main()
