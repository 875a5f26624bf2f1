"""TandemConnector: what vLLM loads by `kv_connector_module_path`. It passes each call on to one of its two halves.

The only file of Tandem that imports vLLM. Signatures are vLLM's (`KVConnectorBase_V1`), and the contract tests hold
them to the installed release.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

# Any: vLLM's own types, which are there only where vLLM is installed.
from typing import Any

import msgspec
from vllm import __version__
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)

from engine_shim.engine.vllm.facts import check_fits, digest_of_model, shape_of
from engine_shim.engine.vllm.line import Line
from engine_shim.engine.vllm.memory import describe
from engine_shim.engine.vllm.messages import (
    IDENTITY,
    SECRET_VARIABLE,
    SOCKET,
    Release,
    SchedulerHello,
    Unfit,
    WorkerHello,
)
from engine_shim.engine.vllm.scheduler_half import SchedulerHalf
from engine_shim.engine.vllm.versions import check_version
from engine_shim.engine.vllm.worker_half import WorkerHalf
from engine_shim.fabric.nixl import NixlFabric
from router.contract.errors import TandemError
from router.contract.instance import KVIdentity


class TandemConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]  # Any where vLLM is not installed
    """One half of the connector: vLLM makes one in its scheduler's process and one in its worker's."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        """The shim is connected. Raises TandemError when this vLLM cannot be served; the shim then says so too."""
        super().__init__(vllm_config, role, kv_cache_config)
        extra = self._kv_transfer_config.kv_connector_extra_config
        self._line = Line(extra[SOCKET])
        self._scheduler_half: SchedulerHalf | None = None
        self._worker_half: WorkerHalf | None = None
        try:
            check_version(__version__)
            check_fits(vllm_config, kv_cache_config)
            if role is KVConnectorRole.SCHEDULER:
                self._open_scheduler_half(vllm_config, extra)
        except TandemError as error:
            self._line.tell(Unfit(error.message))
            raise

    def _open_scheduler_half(self, vllm_config: Any, extra: dict[str, Any]) -> None:
        model = vllm_config.model_config
        names = model.served_model_name
        hello = SchedulerHello(
            names if isinstance(names, str) else ",".join(names),
            model.max_model_len,
            model.get_vocab_size(),
            digest_of_model(vllm_config, __version__),
        )
        identity = msgspec.convert(extra[IDENTITY], KVIdentity)
        self._line.let_go()
        self._line.end_with_it()
        self._line.tell(hello)
        self._scheduler_half = SchedulerHalf(self._line.tell, os.environ[SECRET_VARIABLE], identity)

    @property
    def _scheduler(self) -> SchedulerHalf:
        assert self._scheduler_half is not None, "vLLM calls scheduler methods on the scheduler's connector only"
        return self._scheduler_half

    # Where blocks are given out.

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        """See KVConnectorBase_V1."""
        self._scheduler.bind(gpu_block_pool)

    def on_new_request(self, request: Any) -> None:
        """See KVConnectorBase_V1."""
        self._scheduler.on_new(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """See KVConnectorBase_V1."""
        wanted = self._scheduler.num_wanted(request, num_computed_tokens)
        return wanted, wanted > 0

    def get_loaded_kv_cache_group_ids(self, request: Any) -> tuple[int, ...]:
        """See KVConnectorBase_V1: the one group that there is."""
        return (0,)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """See KVConnectorBase_V1."""
        self._scheduler.on_blocks(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """See KVConnectorBase_V1. Nothing goes this way: the worker half hears everything from the shim."""
        self._scheduler.on_step(scheduler_output.num_scheduled_tokens)
        return KVConnectorMetadata()

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """See SupportsHMA."""
        answer = self._scheduler.on_finished(request, tuple(block_ids[0]))
        return answer is not None, answer

    def take_events(self) -> Iterable[Any]:
        """See KVConnectorBase_V1; vLLM calls it at the end of each step."""
        self._scheduler.on_step_end()
        return ()

    # Where the memory is.

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """See KVConnectorBase_V1."""
        try:
            layout, region, page = describe(kv_caches, shape_of(self._kv_cache_config))
        except TandemError as error:
            self._line.tell(Unfit(error.message))
            raise
        hello = WorkerHello(layout, region, page)
        self._worker_half = WorkerHalf(self._line, hello, lambda name, backend: NixlFabric(name, region, backend))

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """See KVConnectorBase_V1. KV comes by itself."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """See KVConnectorBase_V1. A sequence runs once all of its layers are there."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """See KVConnectorBase_V1. KV is written from vLLM's own blocks, which stay until that is done."""

    def wait_for_save(self) -> None:
        """See KVConnectorBase_V1."""

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """See KVConnectorBase_V1."""
        if self._worker_half is None:
            return KVConnectorTransferResults()
        given = self._worker_half.take()
        failed = given[Release.KV_FAILED]
        return KVConnectorTransferResults(
            finished_sending=given[Release.SENT],
            finished_recving=given[Release.KV_READY] | failed,
            failed_recving=failed,
        )
