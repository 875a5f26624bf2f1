"""What our connector leans on in vLLM is as it was in the release that was tested; whatever moves is named here."""

import json
import os
import subprocess

import pytest

from engine_shim.engine.vllm.versions import TESTED
from tests.support.vllm_processes import ROOT
from tests.support.vllm_shims import PYTHON, PYTHONPATH

pytestmark = [pytest.mark.needs("vllm"), pytest.mark.timeout(900)]

SELF = ["self"]
OVERRIDDEN = {
    "bind_gpu_block_pool": ["self", "gpu_block_pool"],
    "build_connector_meta": ["self", "scheduler_output"],
    "get_loaded_kv_cache_group_ids": ["self", "request"],
    "get_num_new_matched_tokens": ["self", "request", "num_computed_tokens"],
    "get_transfer_results": ["self", "finished_req_ids"],
    "on_new_request": ["self", "request"],
    "register_kv_caches": ["self", "kv_caches"],
    "request_finished_all_groups": ["self", "request", "block_ids"],
    "save_kv_layer": ["self", "layer_name", "kv_layer", "attn_metadata", "kwargs"],
    "start_load_kv": ["self", "forward_context", "kwargs"],
    "take_events": SELF,
    "update_state_after_alloc": ["self", "request", "blocks", "num_external_tokens"],
    "wait_for_layer_load": ["self", "layer_name"],
    "wait_for_save": SELF,
}
ABSTRACT = [
    "build_connector_meta",
    "get_num_new_matched_tokens",
    "request_finished_all_groups",
    "save_kv_layer",
    "start_load_kv",
    "update_state_after_alloc",
    "wait_for_layer_load",
    "wait_for_save",
]
FACTS: dict[str, object] = {
    "abstract": ABSTRACT,
    "unimplemented": [],
    "overridden": OVERRIDDEN,
    "mismatches": [],
    "base_init": ["self", "vllm_config", "role", "kv_cache_config"],
    "roles": ["SCHEDULER", "WORKER"],
    "transfer_results": ["finished_sending", "finished_recving", "failed_recving"],
    "request_has": ["request_id", "num_prompt_tokens", "kv_transfer_params", "status"],
    "blocks": ["self", "allow_none=", "group_ids="],
    "pool": [True, True],
    "cache_config": ["num_blocks", "kv_cache_groups"],
    "attention_spec": ["block_size", "num_kv_heads", "head_size"],
    "scheduled": True,
    "module_path_wins": True,
    "step_end": True,
    "late_receive_frees": True,
    "keeps_stepping_for_held_blocks": True,
    "uds": True,
}
"""Of every tested release so far; a release that differs gets facts of its own."""
STATUSES = {"FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED", "FINISHED_ABORTED", "FINISHED_ERROR"}


@pytest.fixture(scope="module")
def seen() -> dict[str, object]:
    program, given = ROOT / "tests" / "support" / "vllm_contract.py", os.environ | {"PYTHONPATH": PYTHONPATH}
    told = subprocess.run([PYTHON, program], env=given, capture_output=True, text=True, check=False)
    lines = [line for line in told.stdout.splitlines() if line.startswith("FACTS ")]
    assert lines, f"the connector cannot even be imported beside this vLLM:\n{told.stderr[-3000:]}"
    return json.loads(lines[0].removeprefix("FACTS "))


def test_the_installed_release_is_a_tested_one(seen: dict[str, object]) -> None:
    assert seen["version"] in TESTED


@pytest.mark.parametrize("name", FACTS)
def test_vllm_is_as_our_connector_takes_it_to_be(seen: dict[str, object], name: str) -> None:
    assert seen[name] == FACTS[name]


def test_prefills_end_in_states_that_we_know(seen: dict[str, object]) -> None:
    assert set(seen["statuses"]) >= STATUSES  # type: ignore[call-overload]
