"""preStop of a plain vLLM server: returns once nobody needs it any more, or --drain-s seconds after --settle-s.

Routers see at once that the pod goes, in the worst case with their next list of pods; until --settle-s is over they
may still send. Then the server is done when nothing runs or waits and no block of its KV cache is held: what a prefill
has finished stays held until a decode has it. The pods of one LeaderWorkerSet group compute in lockstep, so each of
them waits for all; one that refuses connections is gone, and one that is late is busy. It needs Python alone.
"""

import argparse
import os
import re
import time
import urllib.request

GAUGES = re.compile(r"^vllm:(?:num_requests_running|num_requests_waiting|kv_cache_usage_perc)(?:\{.*\})? (\S+)$", re.M)
LOOK_S = 1.0
IDLE_LOOKS = 3
"""A server must be idle so many looks in a row: between two legs of one request it may look idle, too."""


def members() -> list[str]:
    """Hosts of the engine's pods: <set>-<group>[-<worker>].<subdomain> in a LeaderWorkerSet, else this one."""
    leader, size = os.environ.get("LWS_LEADER_ADDRESS", ""), int(os.environ.get("LWS_GROUP_SIZE", "1"))
    if not leader or size == 1:
        return [os.environ.get("VLLM_NIXL_SIDE_CHANNEL_HOST", "127.0.0.1")]
    name, _, rest = leader.partition(".")
    return [leader, *(f"{name}-{worker}.{rest}" for worker in range(1, size))]


def busy(url: str) -> bool:
    """Something runs, waits or is held there."""
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    except TimeoutError:
        return True
    except OSError as error:
        return isinstance(getattr(error, "reason", None), TimeoutError)
    return any(float(value) > 0 for value in GAUGES.findall(text))


def main() -> None:
    parser = argparse.ArgumentParser(description="Wait until a plain vLLM server is needed by nobody.")
    parser.add_argument("--ports", required=True, help="of the servers in a pod, separated by commas")
    parser.add_argument("--settle-s", type=float, required=True, help="seconds in which routers may still send")
    parser.add_argument("--drain-s", type=float, required=True, help="seconds after that, at most")
    given = parser.parse_args()
    hosts = [f"[{host}]" if host.count(":") > 1 else host for host in members()]
    urls = [f"http://{host}:{port}" for host in hosts for port in given.ports.split(",")]
    time.sleep(given.settle_s)
    ends, idle = time.monotonic() + given.drain_s, 0
    while idle < IDLE_LOOKS and time.monotonic() < ends:
        idle = 0 if any([busy(url) for url in urls]) else idle + 1
        time.sleep(LOOK_S)


if __name__ == "__main__":
    main()
