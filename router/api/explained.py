"""Explained: why the last requests were placed as they were."""

from __future__ import annotations

import msgspec
from fastapi import FastAPI, Response

from router.driver.router import Router

MAX_SHOWN = 500


def add_explained(app: FastAPI, router: Router) -> None:
    """The application serves `/admin/placements`."""

    @app.get("/admin/placements")
    async def placements(limit: int = 50) -> Response:
        """The last choices of this process, the newest first, and why; none without `explain_placements`."""
        kept = router.explanations
        shown = kept.newest(max(1, min(limit, MAX_SHOWN))) if kept is not None else []
        told = {"explaining": kept is not None, "placements": shown}
        return Response(msgspec.json.encode(told), media_type="application/json")
