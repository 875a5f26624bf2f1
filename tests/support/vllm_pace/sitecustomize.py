"""Loaded by the interpreter of a vLLM process that has this folder in PYTHONPATH: what polls without a pause rests.

NIXL's Python API makes agents whose progress thread polls without a pause, and a vLLM worker whose engine has only
requests that wait for KV cache yields its core and asks again, without a pause too: a whole core each, so that on a
machine of two cores nothing is left to the engines. Here the thread sleeps PAUSE_US microseconds between two polls, and
the worker waits for the next message. The thread must not be switched off: an engine that is idle does not poll, and a
WRITE to it would never complete its first connection. Nothing else of vLLM is touched.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

PAUSE_US = 1000
QUEUE = "vllm.distributed.device_communicators.shm_broadcast"


class _Binding:
    """NIXL's compiled module, but for the agents that it makes."""

    def __init__(self, real: Any) -> None:  # Any: a compiled module without types
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def nixlAgent(self, name: str, config: Any) -> Any:  # noqa: N802 - NIXL's name
        config.pthrDelay = PAUSE_US
        return self._real.nixlAgent(name, config)


def _pace_agents(module: Any) -> None:
    module.nixlBind = _Binding(module.nixlBind)


def _pace_queue(module: Any) -> None:
    own = module.SpinCondition.__init__

    def begin(self: Any, *args: Any, **fields: Any) -> None:
        own(self, *args, **fields)
        self.busy_loop_s = 0

    module.SpinCondition.__init__ = begin


def _pace_of(name: str) -> Callable[[Any], None] | None:
    if name.startswith("nixl") and name.endswith("._api"):  # of nixl_cu12 or nixl_cu13
        return _pace_agents
    return _pace_queue if name == QUEUE else None


class _Paced(Loader):
    def __init__(self, own: Loader, pace: Callable[[Any], None]) -> None:
        self._own = own
        self._pace = pace

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._own.exec_module(module)
        self._pace(module)


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        pace = _pace_of(name)
        if pace is None:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Paced(spec.loader, pace)
        return spec


sys.meta_path.insert(0, _Finder())
