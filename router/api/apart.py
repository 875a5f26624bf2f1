"""Apart: operators' paths, which are on a port of their own where the settings name one."""

from __future__ import annotations

from fastapi import Response

from router.api.door import sane_id
from router.api.front import App, Receive, Scope, Send
from router.api.problems import envelope, problem_headers
from router.contract.errors import RouteUnknown

_PATHS = ("/metrics", "/admin", "/ui")


class Apart:
    """`app` as it is on the operators' port; on any other it is without /metrics, /admin and /ui."""

    def __init__(self, app: App, port: int) -> None:
        self._app = app
        self._port = port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Carry one request."""
        if scope["type"] == "http" and (scope.get("server") or (None, 0))[1] != self._port:
            path: str = scope["path"]
            if any(path == one or path.startswith(f"{one}/") for one in _PATHS):
                error = RouteUnknown(f"There is no {path} on this port; /docs lists what there is.")
                headers = {name.decode(): value.decode() for name, value in problem_headers(error)}
                if given := sane_id(dict(scope["headers"]).get(b"x-request-id", b"")):
                    headers["x-request-id"] = given
                await Response(envelope(error), error.http_status, headers)(scope, receive, send)
                return
        await self._app(scope, receive, send)
