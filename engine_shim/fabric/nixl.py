"""NIXL as a Fabric: UCX over host memory (shared memory, TCP, InfiniBand) and CUDA memory; LIBFABRIC for EFA.

Wrapped once, here, because of what its Python API does: bad descriptors give None and a log line, matching of tags is
by prefix, and the default agent starts a progress thread that polls a whole core. So: descriptors are built by us as
numpy arrays, tags are read whole by us, and the progress thread stays off; `advance` is our progress.

Facts this file leans on (measured with 1.5.1, see DECISIONS): a dead peer raises nixlRemoteDisconnectError instead of
returning ERR; a stopped one stays PROC for ever; the notification of a WRITE is delivered after its bytes.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from engine_shim.fabric.port import CopyKey, CopyOp, CopyOrder, CopyState, PeerName
from router.contract.errors import DeploymentError, HandshakeFailed, MissingDependency, PeerGone, TransferFailed
from router.contract.kv import Region

Descriptors: TypeAlias = Any
"""NIXL's descriptor list; Any: it has no Python type."""

Offsets = npt.NDArray[np.uint64]

_MEMORY_TYPES = {"cpu": "DRAM", "cuda": "VRAM"}


# Any: NIXL ships no types.
def _load_nixl() -> tuple[Any, Any]:
    """NIXL's Python API and its bindings, whichever CUDA flavour is installed (none is needed for host memory)."""
    for package in ("nixl_cu12", "nixl_cu13"):
        try:
            api = importlib.import_module(f"{package}._api")
            # Its chatter goes to standard output, which is ours for the ready line.
            logging.getLogger("nixl").setLevel(logging.WARNING)
            return api, importlib.import_module(f"{package}._bindings")
        except ImportError:
            continue
    raise MissingDependency(
        "NIXL is not installed, so KV cache cannot be moved: run `pip install nixl-cu12==1.5.1` (after torch), "
        "or start this shim with --fabric none to serve local mode only."
    )


class NixlFabric:
    """One NIXL agent that has registered one Region."""

    def __init__(self, name: str, region: Region, backend: str = "UCX", ring: Region | None = None) -> None:
        """Start the agent and register the Region, and the `ring` if there is one.

        Raises:
            MissingDependency: NIXL or the wanted backend is not there.
            DeploymentError: the backend finds no device, or the memory cannot be registered.
        """
        self._api, self._bind = _load_nixl()
        names = (name for name in dir(self._bind) if name.startswith("nixl") and name.endswith("Error"))
        self._errors: tuple[type[BaseException], ...] = tuple(getattr(self._bind, name) for name in names)
        self._region = region
        config = self._api.nixl_agent_config(enable_prog_thread=False, backends=[backend])
        try:
            self._agent = self._api.nixl_agent(name, config)
        except self._errors as error:
            raise DeploymentError(
                f"NIXL cannot start its backend {backend} here ({type(error).__name__}): no device, or a library is "
                "missing; see 'tandem doctor --preflight'."
            ) from error
        if backend not in self._agent.backends:
            raise MissingDependency(f"NIXL has no backend {backend!r} here; choose one of {self._agent.plugin_list}.")
        self._registered = [self._register(one) for one in (region, ring) if one is not None]
        self._handles: dict[CopyKey, Any] = {}
        self._peers: set[PeerName] = set()

    def metadata(self) -> bytes:
        """See Fabric."""
        return bytes(self._agent.get_agent_metadata())

    def add_peer(self, metadata: bytes) -> PeerName:
        """See Fabric. A peer's name is its EngineId, so it can come twice but never change."""
        try:
            raw = self._agent.add_remote_agent(metadata)
        except self._errors as error:
            raise HandshakeFailed(f"NIXL could not load the peer's metadata ({type(error).__name__}).") from error
        peer = PeerName(raw.decode() if isinstance(raw, bytes) else str(raw))
        self._peers.add(peer)
        return peer

    def drop_peer(self, peer: PeerName) -> None:
        """See Fabric."""
        if peer not in self._peers:
            return
        self._peers.discard(peer)
        try:
            self._agent.remove_remote_agent(peer)
        except self._errors:
            # The agent has forgotten the peer already; that is what was wanted.
            return

    def notify(self, peer: PeerName, notice: bytes) -> None:
        """See Fabric."""
        if peer not in self._peers:
            raise PeerGone(f"No handshake with {peer} has been made.")
        try:
            self._agent.send_notif(peer, notice)
        except self._errors as error:
            raise PeerGone(f"NIXL cannot notify {peer} ({type(error).__name__}).") from error

    def post(self, order: CopyOrder) -> CopyState:
        """See Fabric."""
        if order.peer not in self._peers:
            raise PeerGone(f"No handshake with {order.peer} has been made.")
        ours, theirs = self._descriptors(order)
        try:
            handle = self._agent.initialize_xfer(order.op.value, ours, theirs, order.peer, order.tag)
            self._handles[order.key] = handle
            return self._state(self._agent.transfer(handle))
        except self._bind.nixlRemoteDisconnectError as error:
            self.release(order.key)
            raise PeerGone(f"{order.peer} has gone away.") from error
        except self._errors as error:
            self.release(order.key)
            raise TransferFailed(f"NIXL could not post the {order.op.value} ({type(error).__name__}).") from error

    def poll(self, key: CopyKey) -> CopyState:
        """See Fabric."""
        try:
            return self._state(self._agent.check_xfer_state(self._handles[key]))
        except self._errors:
            return CopyState.FAILED

    def release(self, key: CopyKey) -> None:
        """See Fabric."""
        handle = self._handles.pop(key, None)
        if handle is None:
            return
        try:
            self._agent.release_xfer_handle(handle)
        except self._errors:
            # NIXL keeps a handle that it cannot release yet on a list of its own and tries again at the agent's end.
            return

    def advance(self) -> list[tuple[PeerName, bytes]]:
        """See Fabric."""
        arrived = self._agent.get_new_notifs()
        if not arrived:
            return []
        return [(PeerName(peer), notice) for peer, notices in arrived.items() for notice in notices]

    def close(self) -> None:
        """See Fabric."""
        for key in list(self._handles):
            self.release(key)
        for registered in self._registered:
            try:
                self._agent.deregister_memory(registered)
            except self._errors:
                # The agent goes with the process; its registration goes with the agent.
                continue

    def _register(self, region: Region) -> Descriptors:
        descriptors = [(region.base, region.num_bytes, region.device_id, "")]
        try:
            return self._agent.register_memory(descriptors, _MEMORY_TYPES[region.device])
        except self._errors as error:
            raise DeploymentError(
                f"NIXL cannot register {region.num_bytes >> 20} MiB of {region.device} memory "
                f"({type(error).__name__}): raise the memlock limit or add the capability IPC_LOCK; see 'tandem doctor "
                "--preflight'."
            ) from error

    def _descriptors(self, order: CopyOrder) -> tuple[Descriptors, Descriptors]:
        rows = order.plan.rows.astype(np.uint64)
        src, dst, sizes = rows[:, 0], rows[:, 1], rows[:, 2]
        local, remote = (src, dst) if order.op is CopyOp.WRITE else (dst, src)
        return self._list(local, sizes, order.local or self._region), self._list(remote, sizes, order.remote)

    def _list(self, offsets: Offsets, sizes: Offsets, region: Region) -> Descriptors:
        if int((offsets + sizes).max()) > region.num_bytes:
            raise TransferFailed("A span of the plan lies outside the registered Region.")
        rows = np.empty((len(sizes), 3), dtype=np.uint64)
        rows[:, 0], rows[:, 1], rows[:, 2] = offsets + np.uint64(region.base), sizes, region.device_id
        descriptors = self._agent.get_xfer_descs(rows, _MEMORY_TYPES[region.device])
        if descriptors is None:
            raise TransferFailed("NIXL refused the descriptors.")
        return descriptors

    @staticmethod
    def _state(word: str) -> CopyState:
        return {"DONE": CopyState.DONE, "PROC": CopyState.BUSY}.get(word, CopyState.FAILED)
