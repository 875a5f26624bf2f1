"""Cadence: how a streamed answer came, noted while its bytes go by and counted when they have.

The first event of a chat names the role and says nothing; the first token is the first event with content: text,
reasoning, a refusal or a tool call. Gaps are those between reads that brought something, from that event on.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from itertools import repeat
from operator import sub

GAP_S = (
    *(0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007, 0.008, 0.009, 0.01, 0.0115, 0.013, 0.015),
    *(0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.0),
)
"""Upper bounds of the buckets, seconds. Fine from 5 to 12 ms: 5.6, 7.0 and 10.4 ms are three different qualities."""

SEAM_BYTES = 64
"""A mark of content that is cut between two reads is found in so many bytes of the first one and all of the second."""

_CONTENT = re.compile(
    rb'"(?:content|text|reasoning|reasoning_content|refusal|arguments)": ?"(?!")'
    rb'|"tool_calls": ?\[ ?\{|"function_call": ?\{'
)


def brings_content(body: bytes) -> bool:
    """True when these events of a stream hold something that was generated."""
    return _CONTENT.search(body) is not None


def count_gaps(moments: Sequence[float], counts: list[int]) -> None:
    """The gaps between these moments, seconds in order, are added to `counts`: one per bound of GAP_S, one above."""
    for place in map(bisect_left, repeat(GAP_S), map(sub, moments[1:], moments)):
        counts[place] += 1
