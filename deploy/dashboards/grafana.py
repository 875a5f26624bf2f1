"""Rows as the JSON that Grafana reads (schema version 39, Grafana 10.4 and newer)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from deploy.dashboards.panels import Kind, Panel, Row, Unit

Json: TypeAlias = dict[str, Any]  # Any: what Grafana reads has no Python type.

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
HEIGHTS = {Kind.LINES: 8, Kind.NUMBER: 4, Kind.BARS: 12}
COLUMNS = 24


def dashboard(uid: str, title: str, variables: Sequence[Json], rows: Sequence[Row]) -> Json:
    """A whole dashboard."""
    return {
        "uid": uid,
        "title": title,
        "tags": ["tandem"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "templating": {"list": list(variables)},
        "panels": list(_placed(rows)),
    }


def source_variable() -> Json:
    """Which Prometheus is asked."""
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "refresh": 1}


def label_variable(name: str, metric: str) -> Json:
    """The values of a label; All also takes series without it."""
    asked = f"label_values({metric}, {name})"
    return {
        "name": name,
        "type": "query",
        "datasource": SOURCE,
        "definition": asked,
        "query": {"query": asked, "refId": name},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def choice_variable(name: str, label: str, values: Sequence[str], chosen: str) -> Json:
    """One of a few values. Raises ValueError when the chosen one is none of them."""
    values[values.index(chosen)]
    options = [{"text": value, "value": value, "selected": value == chosen} for value in values]
    return {
        "name": name,
        "label": label,
        "type": "custom",
        "query": ",".join(values),
        "options": options,
        "current": {"text": chosen, "value": chosen},
    }


def _placed(rows: Sequence[Row]) -> Iterator[Json]:
    """Headings and panels from left to right and from top to bottom."""
    number, y = 0, 0
    for row in rows:
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1},
            "panels": [],
        }
        y += 1
        x = height = 0
        for panel in row.panels:
            if x + panel.columns > COLUMNS:
                x, y, height = 0, y + height, 0
            number += 1
            height = max(height, HEIGHTS[panel.kind])
            place = {"x": x, "y": y, "w": panel.columns, "h": HEIGHTS[panel.kind]}
            yield {"id": number, "gridPos": place} | _panel(panel)
            x += panel.columns
        y += height


def _panel(panel: Panel) -> Json:
    instant = panel.kind is not Kind.LINES
    return {
        "type": panel.kind.value,
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": SOURCE,
                "expr": query.expr,
                "legendFormat": query.legend,
                "instant": instant,
                "range": not instant,
            }
            for index, query in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _OPTIONS[panel.kind],
    }


def _defaults(panel: Panel) -> Json:
    # The same name has the same colour in every panel.
    color = {"mode": "palette-classic-by-name"}
    defaults: Json = {"unit": panel.unit.value, "min": 0, "noValue": "none", "color": color}
    if panel.unit is Unit.SHARE:
        defaults["max"] = 1
    if panel.kind is Kind.LINES:
        defaults["custom"] = {
            "lineWidth": 1,
            "fillOpacity": 30 if panel.stacked else 0,
            "stacking": {"mode": "normal" if panel.stacked else "none"},
            "showPoints": "never",
            "spanNulls": False,
        }
    return defaults


_LAST = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_OPTIONS: dict[Kind, Json] = {
    Kind.LINES: {
        "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    Kind.NUMBER: {"reduceOptions": _LAST, "colorMode": "none", "graphMode": "none"},
    Kind.BARS: {"reduceOptions": _LAST, "orientation": "horizontal", "displayMode": "basic", "showUnfilled": False},
}
