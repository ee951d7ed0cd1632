"""Idempotency keys: a submission that is sent twice is recorded once.

The client identifies its request with ``Idempotency-Key``
(draft-ietf-httpapi-idempotency-key-header). The same key with the same request gets the first
answer again; a second request during the first waits for it. The same key with another request is
rejected with 409. A failed request is not stored: nothing was recorded, and it may be retried.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import orjson
from starlette.responses import Response

if TYPE_CHECKING:
    from pydantic import BaseModel

    from lehr.store import Store


class Answers:
    def __init__(self, store: Store) -> None:
        self._store = store

    def once(
        self,
        key: str | None,
        route: str,
        request: dict[str, Any],
        *,
        check: Callable[[], None],
        record: Callable[[], BaseModel],
        status: int = 201,
    ) -> Response:
        """Return 201 (or ``status``) with the result of ``record``, or with its first result.

        ``check`` raises when the request cannot be recorded. It is not called for a request that
        was recorded before, whatever has changed since.
        """
        if key is None:
            check()
            return _answer(_plain(record()), status)
        digest = _digest(route, request)
        before = self._store.idempotency.answer(key, digest)
        if before is None:
            check()
            # Checked again inside, since another thread may have recorded it meanwhile. Key and
            # result are committed together, so a crash cannot separate them.
            with self._store.transaction():
                before = self._store.idempotency.answer(key, digest)
                if before is None:
                    body = _plain(record())
                    self._store.idempotency.remember(key, digest, status, body)
                    return _answer(body, status)
        return _answer(before.body, before.status, replayed=True)


def _plain(view: BaseModel) -> dict[str, Any]:
    return view.model_dump(mode="json")


def _digest(route: str, request: dict[str, Any]) -> str:
    canonical = orjson.dumps([route, request], option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(canonical).hexdigest()


def _answer(body: dict[str, Any], status: int, *, replayed: bool = False) -> Response:
    headers = {"Idempotency-Replayed": "true"} if replayed else {}
    return Response(orjson.dumps(body), status, headers, media_type="application/json")
