import pytest

from router.contract.engine_hosts import EngineHosts, read_engine_hosts
from router.contract.errors import BadSettings

METADATA = ["169.254.169.254", "fe80::1%eth0", "::ffff:169.254.169.254", "fd00:ec2::254", "100.100.100.200"]


@pytest.mark.parametrize("host", [*METADATA, "metadata.google.internal", "METADATA.google.internal.", "metadata"])
def test_without_a_word_no_engine_is_where_clouds_keep_their_secrets(host):
    assert not EngineHosts().admit(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "10.0.0.7", "fd00::5", "gpu-1", "gpu-1.svc.cluster.local"])
def test_without_a_word_it_may_be_anywhere_else(host):
    assert EngineHosts().admit(host)


def test_a_name_may_not_lead_there_either():
    assert not EngineHosts().admit_address("2852039166", "169.254.169.254")
    assert EngineHosts().admit_address("gpu-1", "10.0.0.7")
    assert not EngineHosts().admit_address("gpu-1", "nonsense")


def test_networks_say_where_they_are_and_where_names_may_lead():
    hosts = read_engine_hosts(("10.0.0.0/8", "fd00::/8"))
    assert hosts.admit("10.1.2.3") and hosts.admit("fd00::5") and not hosts.admit("192.168.0.1")
    assert hosts.admit("gpu-1"), "asked again when it is known where that leads"
    assert hosts.admit_address("gpu-1", "10.1.2.3") and not hosts.admit_address("gpu-1", "192.168.0.1")


def test_names_and_suffixes_say_it_as_well():
    hosts = read_engine_hosts(("gpu-1", ".svc.cluster.local"))
    assert [hosts.admit(name) for name in ("gpu-1", "GPU-1.", "a.svc.cluster.local")] == [True] * 3
    assert not any(hosts.admit(name) for name in ("gpu-12", "xsvc.cluster.local", "10.0.0.7"))
    assert hosts.admit_address("gpu-1", "192.168.0.1") and not hosts.admit_address("gpu-1", "169.254.169.254")


@pytest.mark.parametrize("listed", ["10.0.0.1/8", "10.0.0", "http://h", "a b", ".", "", "h\u00fc"])
def test_what_is_neither_is_named(listed):
    with pytest.raises(BadSettings, match="engine_hosts cannot have"):
        read_engine_hosts((listed,))
