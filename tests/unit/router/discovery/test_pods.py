import json

import msgspec
import pytest

from router.contract.errors import BadSettings
from router.contract.instance import Role
from router.discovery.entry import Contract
from router.discovery.pods import Pod, entries_of
from tests.support.kube_server import pod


def read(made):
    return entries_of(msgspec.json.decode(json.dumps(made), type=Pod))


def test_a_pod_is_a_server_of_its_own_name_and_uid():
    (entry,) = read(pod("p0", 8000, "prefill", uid="0123456789ab"))
    assert (entry.url, entry.role, entry.name) == ("http://127.0.0.1:8000", Role.PREFILL, "p0/01234567")
    assert read(pod("p0", 8000, "prefill", uid="fedcba98"))[0] != entry


def test_more_ports_are_more_ranks():
    made = pod("p0", 0, "decode", ports="8000, 8001", contract="vllm", aliases="a, b", model="m", compat="c")
    one, two = read(made)
    assert (one.url, two.url) == ("http://127.0.0.1:8000", "http://127.0.0.1:8001")
    assert one.name != two.name
    assert (one.contract, one.aliases, one.model, one.compat) == (Contract.VLLM, ("a", "b"), "m", "c")


@pytest.mark.parametrize(
    ("ports", "port"),
    [
        ([{"containerPort": 9}, {"containerPort": 8, "name": "http"}], 8),
        ([{"containerPort": 9, "name": "x"}, {"containerPort": 8}], 9),
    ],
)
def test_without_a_word_about_ports_the_declared_one_counts(ports, port):
    made = pod("p0", 0, "both")
    made["metadata"]["annotations"] = {}
    made["spec"]["containers"] = [{"name": "a"}, {"name": "b", "ports": ports}]
    assert read(made)[0].url == f"http://127.0.0.1:{port}"


def test_addresses_may_be_ipv6_and_zones_are_noted():
    made = pod("p0", 1, "both")
    made["status"]["podIP"] = "fd00::5"
    made["metadata"]["labels"]["topology.kubernetes.io/zone"] = "z"
    (entry,) = read(made)
    assert (entry.url, entry.zone) == ("http://[fd00::5]:1", "z")


def test_an_annotation_of_ours_beats_the_common_label():
    made = pod("p0", 1, "decode")
    made["metadata"]["annotations"]["tandem/role"] = "prefill"
    assert read(made)[0].role is Role.PREFILL


def test_the_identity_may_be_written_beside_it():
    one = '{"engine_id": "e", "host": "h", "port": 5600}'
    other = one.replace("}", ', "dp_rank": 1}')
    assert read(pod("p0", 1, "prefill", identity=one))[0].identity[0].engine_id == "e"
    assert len(read(pod("p0", 1, "prefill", identity=f"[{one}, {other}]"))[0].identity) == 2


def test_a_pod_that_leaves_is_not_ready_or_has_no_address_serves_nobody():
    leaving, unready, homeless, new = (pod("p0", 1, "both") for _ in range(4))
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    unready["status"]["conditions"][1]["status"] = "False"
    homeless["status"]["podIP"] = ""
    new["status"] = {"phase": "Pending"}
    assert [read(made) for made in (leaving, unready, homeless, new)] == [()] * 4


@pytest.mark.parametrize(
    "wrong",
    [
        {"role": "worker"},
        {"contract": "x"},
        {"ports": "http"},
        {"ports": "99999"},
        {"ports": "-1"},
        {"ports": "0"},
        {"scheme": "ftp"},
        {"identity": "[1]"},
        {"identity": "[" * 100_000},
        {"ports": ""},
    ],
)
def test_a_pod_that_makes_no_sense_is_named(wrong):
    made = pod("p0", 1, "both")
    made["metadata"]["annotations"] |= {f"tandem/{key}": text for key, text in wrong.items()}
    with pytest.raises(BadSettings, match="The pod p0"):
        read(made)


def test_a_pod_may_serve_over_tls():
    assert read(pod("p0", 8443, "decode", scheme="https"))[0].url == "https://127.0.0.1:8443"
