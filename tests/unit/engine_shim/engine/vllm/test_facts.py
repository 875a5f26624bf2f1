"""Set-ups of vLLM that the connector refuses at the start; and the digest that both sides must share."""

from pathlib import Path
from types import SimpleNamespace as Facts
from typing import Any

import pytest

from engine_shim.engine.vllm.facts import check_fits, digest_of_model
from engine_shim.engine.vllm.versions import check_version
from router.contract.errors import MissingDependency, ModelUnusable


class FullAttentionSpec:
    """Named as vLLM's."""


class MambaSpec:
    """Named as vLLM's."""


def config_of(**parallel: int) -> Any:
    sizes = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "data_parallel_size": 1} | parallel
    return Facts(parallel_config=Facts(**sizes), speculative_config=None)


def cache_of(*specs: type) -> Any:
    return Facts(kv_cache_groups=[Facts(kv_cache_spec=spec()) for spec in specs])


def test_one_worker_with_full_attention_fits() -> None:
    check_fits(config_of(), cache_of(FullAttentionSpec))


@pytest.mark.parametrize("name", ["tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"])
def test_several_workers_do_not_fit_yet(name: str) -> None:
    with pytest.raises(ModelUnusable, match=name.replace("_", "-")):
        check_fits(config_of(**{name: 2}), cache_of(FullAttentionSpec))


@pytest.mark.parametrize("specs", [(), (MambaSpec,), (FullAttentionSpec, FullAttentionSpec)], ids=len)
def test_other_caches_do_not_fit_yet(specs: tuple[type, ...]) -> None:
    with pytest.raises(ModelUnusable, match="full attention"):
        check_fits(config_of(), cache_of(*specs))


def test_drafts_do_not_fit_yet() -> None:
    config = config_of()
    config.speculative_config = object()
    with pytest.raises(ModelUnusable, match="speculative"):
        check_fits(config, cache_of(FullAttentionSpec))


@pytest.mark.parametrize("version", ["0.31.2", "0.33.0", "1.0"])
def test_a_release_that_was_not_tested_is_refused(version: str) -> None:
    with pytest.raises(MissingDependency, match=version):
        check_version(version)
    check_version("0.32.0+cpu")


def digest(folder: Path, version: str = "0.32.0", **model: object) -> str:
    facts = {"dtype": "bf16", "quantization": None, "revision": None, "model": str(folder)} | model
    hf_config = Facts(to_json_string=lambda: str(model.get("layers", 2)))
    config = Facts(
        model_config=Facts(hf_config=hf_config, **facts),
        cache_config=Facts(cache_dtype="auto"),
        load_config=Facts(load_format="auto"),
    )
    return digest_of_model(config, version)


def test_the_digest_tells_weights_configurations_and_releases_apart(tmp_path: Path) -> None:
    one, same, other = tmp_path / "one", tmp_path / "same", tmp_path / "other"
    for folder, weights in ((one, b"abc"), (same, b"abc"), (other, b"abd")):
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(weights)
    assert digest(one) == digest(same)
    others = {digest(other), digest(one, "0.32.1"), digest(one, layers=3), digest(one, dtype="fp32"), digest(one)}
    assert len(others) == 5
