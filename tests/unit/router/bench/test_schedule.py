import itertools
import math

import pytest

from router.bench.schedule import Span, parse_rate, poisson
from router.contract.errors import BadSettings

LENGTHS = (Span(10, 20), Span(5, 5))


def test_the_same_seed_gives_the_same_schedule_and_another_another():
    assert poisson(4, 50, LENGTHS, 1) == poisson(4, 50, LENGTHS, 1)
    assert poisson(4, 50, LENGTHS, 1) != poisson(4, 50, LENGTHS, 2)


def test_gaps_have_the_mean_and_the_shape_of_a_poisson_process():
    due = poisson(8, 20_000, LENGTHS, 3)
    gaps = [b.at_s - a.at_s for a, b in itertools.pairwise(due)]
    assert all(gap > 0 for gap in gaps)
    assert sum(gaps) / len(gaps) == pytest.approx(1 / 8, rel=0.03)
    # exponential: a share of 1/e is longer than the mean
    assert sum(gap > 1 / 8 for gap in gaps) / len(gaps) == pytest.approx(math.exp(-1), abs=0.02)


def test_lengths_stay_in_their_spans_and_do_not_depend_on_the_rate():
    slow, fast = poisson(1, 500, LENGTHS, 7), poisson(100, 500, LENGTHS, 7)
    assert [d.input_tokens for d in slow] == [d.input_tokens for d in fast]
    assert {d.input_tokens for d in slow} == set(range(10, 21))
    assert {d.output_tokens for d in slow} == {5}


def test_an_infinite_rate_sends_all_at_once():
    assert {due.at_s for due in poisson(math.inf, 5, LENGTHS, 0)} == {0.0}


@pytest.mark.parametrize(("text", "span"), [("128", Span(128, 128)), ("1-9", Span(1, 9)), ("4-4", Span(4, 4))])
def test_spans_are_read(text, span):
    assert Span.parse(text) == span


@pytest.mark.parametrize("text", ["", "0", "-5", "9-1", "a", "1-b", "1.5", "1-2-3", "-"])
def test_what_is_no_span_is_refused(text):
    with pytest.raises(BadSettings):
        Span.parse(text)


def test_rates_are_read():
    assert parse_rate("0.5") == 0.5
    assert parse_rate("inf") == math.inf


@pytest.mark.parametrize("text", ["0", "-1", "nan", "x", ""])
def test_what_is_no_rate_is_refused(text):
    with pytest.raises(BadSettings):
        parse_rate(text)
