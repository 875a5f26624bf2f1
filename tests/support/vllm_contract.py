"""What Tandem's connector leans on, read from the vLLM that is installed; run by that environment's Python.

Prints one JSON object: facts by name. `tests/real/vllm/test_contract.py` compares it with what each tested release had.
"""

import ast
import dataclasses
import inspect
import json
import textwrap

import vllm
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1 import base
from vllm.entrypoints.launchers.cli_args import FrontendArgs
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig
from vllm.v1.request import Request, RequestStatus

from engine_shim.engine.vllm.connector import TandemConnector


def parameters(function) -> list[str]:
    """Names, and `=` where there is a default."""
    given = inspect.signature(function).parameters.values()
    return [one.name + ("=" if one.default is not inspect.Parameter.empty else "") for one in given]


def overridden() -> dict[str, list[str]]:
    """The methods of vLLM's base classes that ours replaces, with vLLM's own parameters."""
    ours = [name for name in vars(TandemConnector) if callable(getattr(TandemConnector, name)) and name != "__init__"]
    found = {}
    for name in sorted(ours):
        theirs = getattr(base.KVConnectorBase_V1, name, None) or getattr(base.SupportsHMA, name, None)
        if theirs is not None:
            found[name] = parameters(theirs)
    return found


def mismatches() -> list[str]:
    """Methods of ours that vLLM could not call as its own."""
    wrong = []
    for name, theirs in overridden().items():
        ours = parameters(getattr(TandemConnector, name))
        if [one.rstrip("=") for one in ours] != [one.rstrip("=") for one in theirs]:
            wrong.append(f"{name}: ours {ours}, vLLM's {theirs}")
    return wrong


def abstract() -> list[str]:
    """What a connector must have."""
    return sorted(base.KVConnectorBase_V1.__abstractmethods__ | base.SupportsHMA.__abstractmethods__)


def calls_of(function) -> list[str]:
    """Names of what a method calls, in the order of its text."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    return [call.func.attr for call in sorted(calls, key=lambda call: call.lineno)]


def in_order(function, *names: str) -> bool:
    """True when the method calls these, the last time each, in this order."""
    calls = calls_of(function)
    places = [max((at for at, call in enumerate(calls) if call == name), default=-1) for name in names]
    return -1 not in places and places == sorted(places)


def facts() -> dict[str, object]:
    finished = inspect.getsource(Scheduler._update_from_kv_xfer_finished)
    return {
        "version": ".".join(vllm.__version__.split(".")[:2]),
        "abstract": abstract(),
        "unimplemented": sorted(TandemConnector.__abstractmethods__),
        "overridden": overridden(),
        "mismatches": mismatches(),
        "base_init": parameters(base.KVConnectorBase_V1.__init__),
        "roles": [role.name for role in base.KVConnectorRole],
        "transfer_results": [one.name for one in dataclasses.fields(base.KVConnectorTransferResults)],
        "statuses": [one.name for one in RequestStatus],
        "request_has": [
            name
            for name in ("request_id", "num_prompt_tokens", "kv_transfer_params", "status")
            if f"self.{name}" in inspect.getsource(Request)
        ],
        "blocks": parameters(KVCacheBlocks.get_block_ids),
        "pool": [hasattr(BlockPool, "get_num_free_blocks"), "self.num_gpu_blocks" in inspect.getsource(BlockPool)],
        "cache_config": [
            name
            for name in ("num_blocks", "kv_cache_groups")
            if name in {one.name for one in dataclasses.fields(KVCacheConfig)}
        ],
        "attention_spec": [
            name
            for name in ("block_size", "num_kv_heads", "head_size")
            if name in {one.name for one in dataclasses.fields(FullAttentionSpec)}
        ],
        "scheduled": "num_scheduled_tokens" in SchedulerOutput.__dataclass_fields__,
        "module_path_wins": in_order(KVConnectorFactory.get_connector_class, "import_module"),
        "step_end": in_order(
            Scheduler.update_from_output, "_handle_failed_recving", "_update_from_kv_xfer_finished", "take_events"
        ),
        "late_receive_frees": "is_finished(req.status)" in finished and "_free_blocks" in finished,
        "keeps_stepping_for_held_blocks": "len(self.requests)" in inspect.getsource(Scheduler.has_finished_requests),
        "uds": "uds" in FrontendArgs.__annotations__ or hasattr(FrontendArgs, "uds"),
    }


if __name__ == "__main__":
    print("FACTS " + json.dumps(facts()))
