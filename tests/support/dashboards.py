"""Queries of the dashboards, and what stands in Grafana's place for its variables."""

from __future__ import annotations

from typing import Any

from deploy.dashboards.__main__ import FILES

RATE_INTERVAL = "20s"


def panels(name: str = "tandem.json") -> list[dict[str, Any]]:
    """The panels of a dashboard, headings left out."""
    return [panel for panel in FILES[name]["panels"] if panel["type"] != "row"]


def queries(name: str = "tandem.json") -> list[tuple[str, str]]:
    """(panel and line, expression) of everything that a dashboard asks, its variables included."""
    asked = [(f"{one['title']}: {t['legendFormat']}", t["expr"]) for one in panels(name) for t in one["targets"]]
    variables = FILES[name]["templating"]["list"]
    return asked + [(f"${one['name']}", one["definition"]) for one in variables if one["type"] == "query"]


def filled_in(expr: str) -> str:
    """The expression that Grafana would send with every variable as it is at first."""
    for one in FILES["tandem.json"]["templating"]["list"]:
        value = one.get("allValue") or one.get("current", {}).get("value", "")
        expr = expr.replace(f"${one['name']}", value)
    return expr.replace("$__rate_interval", RATE_INTERVAL)
