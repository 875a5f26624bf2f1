from dataclasses import replace

import pytest

from router.contract.engine_hosts import EngineHosts, read_engine_hosts
from router.driver.screen import Screen
from tests.support.instances import decode, prefill


def at(seen, **changes):
    return replace(seen, instance=replace(seen.instance, **changes))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"url": "http://h:8000/v1"}, "url"),
        ({"url": "http://h:99999"}, "url"),
        ({"url": ""}, "url"),
        ({"url": "http://169.254.169.254"}, "host"),
        ({"instance_id": "p1\r\nx: y"}, "name"),
        ({"instance_id": ""}, "name"),
    ],
)
def test_one_bad_record_is_left_out_and_told_of_once(caplog, changes, reason):
    screen, good = Screen(EngineHosts()), [prefill("p0"), decode("d0")]
    bad = at(prefill("p1"), **changes)
    for _ in range(2):
        assert screen.passing([good[0], bad, good[1]]) == good
    assert screen.left_out == {reason: 1}
    assert len(caplog.records) == 1 and "is left out" in caplog.text
    assert screen.passing(good) == good and not screen.left_out


def test_engines_are_where_the_settings_say():
    screen = Screen(read_engine_hosts(("10.0.0.0/8",)))
    inside, outside = at(prefill("p0"), url="http://10.0.0.1:1"), at(decode("d0"), url="http://192.168.0.1:1")
    assert screen.passing([inside, outside]) == [inside]
