"""When requests are due and how long they are: a pure function of a seed, so that set-ups can meet the same load.

Arrivals are a Poisson process: the gaps between them are independent and exponential with mean 1 / rate. The schedule
is open-loop: nothing in it depends on answers.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from router.contract.errors import BadSettings


@dataclass(frozen=True, slots=True)
class Span:
    """Whole numbers from `low` to `high`, both included, each as likely as the other."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str) -> Span:
        """Read `128` or `100-900`.

        Raises:
            BadSettings: not such a text, or the ends are below 1 or in the wrong order.
        """
        low, _, high = text.partition("-")
        if not (low.isdecimal() and (high or low).isdecimal()):
            raise BadSettings(f"{text!r} is not a length; give a number such as 128 or a range such as 100-900.")
        span = cls(int(low), int(high or low))
        if not 1 <= span.low <= span.high:
            raise BadSettings(f"The range {text} is empty or begins below 1; give LOW-HIGH with 1 <= LOW <= HIGH.")
        return span

    def draw(self, dice: random.Random) -> int:
        """Return one number of the span."""
        return dice.randint(self.low, self.high)


@dataclass(frozen=True, slots=True)
class Due:
    """One request of the schedule."""

    index: int
    at_s: float
    """Seconds after the start of the load."""
    input_tokens: int
    output_tokens: int


def parse_rate(text: str) -> float:
    """Read requests per second: a number above 0, or `inf` for all at once.

    Raises:
        BadSettings: anything else.
    """
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not rate > 0:
        raise BadSettings(f"{text!r} is not a rate; give requests per second above 0, or inf for all at once.")
    return rate


def poisson(rate_per_s: float, num_requests: int, lengths: tuple[Span, Span], seed: int) -> tuple[Due, ...]:
    """Return `num_requests` arrivals in order of time, with (input, output) lengths drawn from `lengths`.

    Times and lengths come from separate streams of the seed: the same seed gives the same lengths at every rate.
    """
    gaps, sizes = random.Random(f"gaps {seed}"), random.Random(f"sizes {seed}")
    schedule = []
    at_s = 0.0
    for index in range(num_requests):
        at_s += 0.0 if math.isinf(rate_per_s) else gaps.expovariate(rate_per_s)
        schedule.append(Due(index, at_s, lengths[0].draw(sizes), lengths[1].draw(sizes)))
    return tuple(schedule)
