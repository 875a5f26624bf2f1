"""PromQL as the panels need it. Every selector is narrowed to the namespace that the reader has chosen.

`$__rate_interval` is Grafana's: four scrapes, or what one pixel stands for, whichever is longer.
"""

from __future__ import annotations

WINDOW = "[$__rate_interval]"
NAMESPACE = 'namespace=~"$namespace"'
MODEL = 'model=~"$model"'
"""For the router's metrics that tell models apart."""


def select(metric: str, *matchers: str) -> str:
    """The series of a metric in the chosen namespace."""
    return f"{metric}{{{', '.join((NAMESPACE, *matchers))}}}"


def rate(metric: str, *matchers: str, by: str = "") -> str:
    """What a counter gains per second, added up over everything but the labels `by`."""
    return _over("sum", by, f"rate({select(metric, *matchers)}{WINDOW})")


def quantile(share: float, metric: str, *matchers: str, by: str = "") -> str:
    """A quantile of a histogram over all its series, apart for each value of the labels `by`."""
    labels = ", ".join(filter(None, ("le", by)))
    return f"histogram_quantile({share:g}, {rate(f'{metric}_bucket', *matchers, by=labels)})"


def mean(metric: str, *matchers: str, by: str = "") -> str:
    """The mean of a histogram."""
    return f"{rate(f'{metric}_sum', *matchers, by=by)} / {rate(f'{metric}_count', *matchers, by=by)}"


def per(upper: str, lower: str, *matchers: str, by: str = "") -> str:
    """What one counter gains for each one that another gains."""
    return f"{rate(upper, *matchers, by=by)} / {rate(lower, *matchers, by=by)}"


def total(metric: str, *matchers: str, by: str = "") -> str:
    """A gauge added up over everything but the labels `by`."""
    return _over("sum", by, select(metric, *matchers))


def largest(metric: str, *matchers: str, by: str = "") -> str:
    """A gauge that every router tells about the same things."""
    return _over("max", by, select(metric, *matchers))


def _over(aggregation: str, by: str, expr: str) -> str:
    return f"{aggregation} by ({by}) ({expr})" if by else f"{aggregation}({expr})"
