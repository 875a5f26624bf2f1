"""KV cache that does not come: by policy the request fails, or decode computes its prompt itself and says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from router.contract.ids import TransferId
from router.contract.wire import REQUEST_ID_HEADER, push_params
from router.store.codec import decode_instance
from tests.support.processes import ProcessSite
from tests.support.tiny_models import write_tiny_llama

pytestmark = [pytest.mark.needs("nixl"), pytest.mark.timeout(240)]


async def orphan_leg(site: ProcessSite, decode: str, transfer_id: str, body: dict[str, Any]) -> Any:
    """A decode leg in push mode whose prefill leg is never sent."""
    prefill = decode_instance((await site.client.get(f"{site.engines['p'].url}/kv/instance")).content)
    assert prefill is not None
    assert prefill.kv is not None
    return await site.client.post(
        f"{site.engines[decode].url}/v1/completions",
        json=body | {"kv_transfer_params": push_params(TransferId(transfer_id), prefill.kv)},
        headers={REQUEST_ID_HEADER: transfer_id},
    )


async def test_a_prompt_whose_kv_does_not_come_fails_or_is_computed_on_decode(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    common = f"--model {tmp_path} --model-name tiny --threads 1 --kv-bytes 2000000 --numerics invariant"
    body = {"model": "tiny", "prompt": list(range(5, 45)), "temperature": 0, "max_tokens": 8, "return_token_ids": True}
    async with ProcessSite(tmp_path) as site:
        await site.open_engines(
            p=f"--role prefill {common}",
            computes=f"--role decode --kv-wait-for-s 1 --kv-failure recompute {common}",
        )
        plain = await site.client.post(f"{site.engines['p'].url}/v1/completions", json=body)
        expected = plain.json()["choices"][0]["token_ids"]
        assert len(set(expected)) > 2, "an answer that could not be anything"
        computed = await orphan_leg(site, "computes", "req-2.1", body)
        assert computed.json()["choices"][0]["token_ids"] == expected
        metrics = (await site.client.get(f"{site.engines['computes'].url}/metrics")).text
        assert 'tandem_shim_facts_total{fact="recomputed",instance_id="computes",role="decode"} 1.0' in metrics
        await site.wait_quiet()
