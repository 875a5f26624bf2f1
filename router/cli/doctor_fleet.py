"""`tandem doctor` on routers and engines: does each answer, is it who the fleet says, does every pair move bytes?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import httpx
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from router.cli.admin import Start, ask_fleet
from router.cli.doctor_findings import Pair, PairVerdict, Report
from router.contract.errors import TransferFailed, Unauthorized
from router.contract.instance import Instance
from router.contract.seal import SEAL_HEADER, SELF_TEST, Seal
from router.store.codec import decode_instance

SELF_TEST_PATH = "/kv/self-test"
ANSWER_FOR_S = 3.0
SELF_TEST_FOR_S = 60.0
_ON_EFA = " On EFA look at the security group first: it must allow all traffic from itself and to itself."
BAD_FACTS = {
    "forged": "somebody without the deployment key sends notices; look who can reach the fabric",
    "unreadable": "a peer speaks another version of the protocol; run the same release everywhere",
    "fault": "a peer breaks the protocol; look into this engine's log",
}
"""What to do about a counter of the shim whose name contains the word; all others go up whenever a process ends."""


async def check_router(report: Report, client: httpx.AsyncClient, url: str) -> dict[Start, str] | None:
    """The router has been looked at; returns the URL of each start that it knows, or None when it does not answer."""
    try:
        ready = (await client.get(f"{url}/readyz")).json()
        known = await ask_fleet(client, url)
        is_ready, is_degraded = bool(ready["ready"]), bool(ready["degraded"])
    except httpx.TransportError as error:
        report.fail("router", f"{url} does not answer ({type(error).__name__}); start it or correct --url.")
        return None
    except Unauthorized as error:
        report.fail("router", error.message)
        return None
    except (ValueError, KeyError, TypeError):
        report.fail("router", f"What answers at {url} is no router of ours; correct --url.")
        return None
    if not is_ready:
        report.fail("router", f"{url} is not ready: it knows no prefill and decode engine that fit; start them.")
    elif is_degraded:
        report.warn("router", f"{url} serves from its last snapshot: it cannot reach the store; see its log.")
    else:
        report.good("router", f"{url} is ready and knows {len(known)} instances.")
    return known


def compare_views(report: Report, router: Iterable[Start] | None, store: Iterable[Start] | None) -> None:
    """What router and store know of the fleet has been compared, if both are known."""
    if router is None or store is None:
        return
    seen, registered = set(router), set(store)
    for name, epoch in sorted(registered - seen):
        report.fail("router", f"It does not know {name}@{epoch}, which the store does; does it use the same store?")
    for name, epoch in sorted(seen - registered):
        report.warn("router", f"It knows {name}@{epoch}, which the store does not: a static or a lost instance.")


async def check_instance(report: Report, client: httpx.AsyncClient, start: Start, url: str) -> Instance | None:
    """The engine has been looked at; returns what it says of itself when it is who the fleet says."""
    name, epoch = start
    try:
        said = decode_instance((await client.get(f"{url}/kv/instance")).content)
        ready = (await client.get(f"{url}/readyz")).status_code == httpx.codes.OK
        metrics = (await client.get(f"{url}/metrics")).text
    except httpx.TransportError as error:
        report.fail(name, f"{url} does not answer ({type(error).__name__}); look whether it runs, and at its host.")
        return None
    if said is None:
        report.warn(name, f"{url} is no shim of ours; its pairs cannot be tested.")
        return None
    if (said.instance_id, said.epoch) != start:
        report.fail(
            name,
            f"At {url} answers {said.instance_id}@{said.epoch}, not {name}@{epoch}: it was restarted a moment ago.",
        )
        return None
    if not ready:
        report.fail(name, f"{url} takes no requests (draining, replaced or stopped); see its log.")
    counted = _check_counters(report, name, metrics)
    report.good(name, f"{said.role} at {url}, epoch {epoch}, {said.model}{counted}.")
    return said


def _check_counters(report: Report, name: str, metrics: str) -> str:
    """Counters that ask for something are warnings; returns words about the others, or nothing."""
    try:
        samples = [one for family in text_string_to_metric_families(metrics) for one in family.samples]
    except ValueError:
        report.warn(name, "Its metrics cannot be read; run the same release everywhere.")
        return ""
    others = []
    for fact, count in [(one.labels["fact"], one.value) for one in samples if one.name == "tandem_shim_facts_total"]:
        told = fact.replace("_", " ")
        remedy = next((remedy for word, remedy in BAD_FACTS.items() if word in fact), None)
        if count and remedy is not None:
            report.warn(name, f"It has counted {count:g} {told}: {remedy}.")
        elif count:
            others.append(f"{count:g} {told}")
    num_orphaned = sum(one.value for one in samples if one.name == "tandem_shim_orphaned_blocks")
    if num_orphaned:
        report.warn(
            name,
            f"{num_orphaned:g} blocks wait for a peer that cannot be reached and may still write them: "
            "repair the way to it; if its process has ended for sure, say so: tandem fence INSTANCE_ID.",
        )
    return f"; so far {', '.join(others)}" if others else ""


@dataclass(frozen=True, slots=True)
class PairTrials:
    """How pairs are tried."""

    client: httpx.AsyncClient
    sizes_bytes: Sequence[int]
    seal: Seal
    least_gb_per_s: float = 0.0
    """A pair whose fastest WRITE is slower fails, in gigabytes (10^9 bytes) per second."""


async def check_pairs(report: Report, trials: PairTrials, instances: Sequence[Instance]) -> None:
    """Every pair that can exchange KV cache has done so, one after the other."""
    with_kv = [instance for instance in instances if instance.kv is not None]
    prefills = [instance for instance in with_kv if instance.role.prefills]
    decodes = [instance for instance in with_kv if instance.role.decodes]
    tried = False
    for prefill, decode in product(prefills, decodes):
        assert prefill.kv is not None and decode.kv is not None
        if prefill.instance_id == decode.instance_id or prefill.model != decode.model:
            continue
        tried = True
        subject = f"{prefill.instance_id} -> {decode.instance_id}"
        if prefill.kv.compat_hash != decode.kv.compat_hash:
            report.warn(subject, "They never serve together: weights, dtype or release differ; make them equal.")
            continue
        verdict = await _try(report, trials, (prefill, decode))
        if verdict is not None:
            _judge(report, subject, verdict, trials.least_gb_per_s)
        report.pairs.append(Pair(prefill.instance_id, decode.instance_id, verdict))
    if not tried and instances and not any(instance.role.prefills and instance.role.decodes for instance in instances):
        report.fail("pairs", "There is no prefill and decode engine for one model; start both.")


async def _try(report: Report, trials: PairTrials, pair: tuple[Instance, Instance]) -> PairVerdict | None:
    """What the pair's prefill says; None when it could not be carried out, which is then reported."""
    prefill, decode = pair
    assert decode.kv is not None
    subject = f"{prefill.instance_id} -> {decode.instance_id}"
    host, port = decode.kv.side_channel_host, decode.kv.side_channel_port
    order = {"engine_id": decode.kv.engine_id, "host": host, "port": port, "sizes_bytes": trials.sizes_bytes}
    raw = msgspec.json.encode(order)
    headers = {SEAL_HEADER: trials.seal.header(SELF_TEST + SELF_TEST_PATH.encode(), raw)}
    try:
        url = f"{prefill.url}{SELF_TEST_PATH}"
        reply = await trials.client.post(url, content=raw, headers=headers, timeout=SELF_TEST_FOR_S)
    except httpx.TransportError as error:
        report.fail(subject, f"{prefill.instance_id} does not answer any more ({type(error).__name__}); see its log.")
        return None
    if reply.status_code == httpx.codes.BAD_REQUEST:  # this shim cannot do such a test, which says nothing of the pair
        report.warn(subject, _why(reply))
        return None
    if reply.status_code != httpx.codes.OK:
        report.fail(subject, _why(reply) + (_ON_EFA if reply.status_code == TransferFailed.http_status else ""))
        return None
    return msgspec.json.decode(reply.content, type=PairVerdict)


def _judge(report: Report, subject: str, verdict: PairVerdict, least_gb_per_s: float) -> None:
    told = ", ".join(run.text for run in verdict.runs)
    wrong_bytes = sum(run.wrong_bytes for run in verdict.runs)
    gb_per_s = max((run.num_bytes / run.seconds / 1e9 for run in verdict.runs), default=0.0)
    if wrong_bytes:
        report.fail(subject, f"{wrong_bytes} BYTES ARRIVED WRONG ({told}): drain this pair, then check its fabric.")
    elif gb_per_s < least_gb_per_s:
        report.fail(
            subject,
            f"{gb_per_s:.2f} GB/s at most, less than {least_gb_per_s:g} ({told}): run 'tandem doctor --preflight' on "
            "both nodes; on EFA see that they are in one placement group.",
        )
    else:
        report.good(subject, f"handshake {verdict.handshake_s * 1e3:.1f} ms; {told}; every byte is right.")


def _why(reply: httpx.Response) -> str:
    try:
        return str(reply.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"The self-test ended with status {reply.status_code}; run the same release everywhere."
