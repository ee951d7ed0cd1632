"""Starts Ray's own ``ray start`` without its client server. Run with ``python -P -m``.

The client server runs code for whoever connects, cannot be switched off by an option, and takes a
fixed port by default.
"""

from __future__ import annotations

from ray.scripts import scripts


def main() -> None:
    scripts.get_ray_client_dependency_error = lambda: "off: Lehr does not use it"
    scripts.cli()


if __name__ == "__main__":
    main()
