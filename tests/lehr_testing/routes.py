"""Every route of an application, for tests that look at all of them."""

from __future__ import annotations

from starlette.routing import Mount


def walk(routes, prefix=""):
    """Return every (path, method) of an application, including mounts and sockets."""
    return ((path, method) for _, path, method in policies(routes, prefix))


def policies(routes, prefix=""):
    """Return the dependencies of every route, with its path and method."""
    for route in routes:
        if hasattr(route, "effective_route_contexts"):  # A router that FastAPI includes lazily.
            yield from policies(route.effective_route_contexts(), prefix)
            continue
        path = prefix + getattr(route, "path", "")
        if isinstance(route, Mount):
            yield (), f"{path}/anything", "GET"
            yield from policies(route.routes or [], path)
        elif hasattr(route, "routes"):
            yield from policies(route.routes, path)
        else:
            for method in getattr(route, "methods", None) or {"GET"}:
                yield getattr(route, "dependencies", ()), path, method


def concrete(path):
    while "{" in path:
        head, _, rest = path.partition("{")
        path = f"{head}x{rest.partition('}')[2]}"
    return path
