"""The dashboard: Jinja2 pages, plain ES modules.

``install(app)`` adds everything. The pages contain no data: they fetch it from the public API, so
there is no state per viewer, and no data that only the dashboard can read.
"""

from __future__ import annotations

from fastapi import FastAPI

from lehr_api.dashboard.assets import static_app
from lehr_api.dashboard.pages import PageForBrowsers, login_instead, missing_page, router


def install(app: FastAPI) -> None:
    """Add the pages, their files, and a login page where a browser would get a bare 401.

    Call it after the app's own middleware is added: Starlette puts the last one outermost, and the
    login page must see the answer of the token check.
    """
    app.include_router(router)
    app.mount("/static", static_app(), name="static")
    app.add_middleware(PageForBrowsers, status=404, page=missing_page)
    app.add_middleware(PageForBrowsers, status=401, page=login_instead)
