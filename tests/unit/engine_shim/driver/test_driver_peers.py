"""Peers and engines that fall silent, die, leave or speak wrongly, and what becomes of the requests between them."""

import asyncio
from dataclasses import replace

import pytest

from engine_shim.core.fates import Call, FateClocks
from engine_shim.core.rendezvous import PrefillClocks
from engine_shim.core.seat_ticket import SeatState
from engine_shim.core.seats import DecodeClocks
from engine_shim.driver.driver import TICK_S
from engine_shim.driver.hand_over import KVFailure
from engine_shim.fabric import writer
from engine_shim.fabric.port import PeerName
from engine_shim.fabric.writer import NoticeCame
from router.contract.errors import EngineDown, KVWaitTimeout, PeerGone, RegistrationTimeout, TransferFailed
from router.contract.ids import EngineId, TransferId
from router.contract.instance import Mode
from router.contract.notices import Cancelled, Left, write_notice
from router.contract.seal import Seal
from router.contract.wire import Waits
from tests.support.couples import Couple, engine_id_of, hand_over_of, open_couple
from tests.support.kitchens import Clocks, Site, decode_handoff, prompt_request, quiet, until

PROMPT = tuple(range(5, 18))


async def test_a_failing_prefill_fails_decode_at_once_and_frees_its_seats(plain: Couple) -> None:
    plain.p.fail_prompts = frozenset({PROMPT[0]})
    reading = asyncio.create_task(plain.decode_leg("f1", PROMPT, Mode.PUSH))
    with pytest.raises(EngineDown):
        await plain.prefill_leg("f1", PROMPT)
    with pytest.raises(TransferFailed):
        await reading
    await plain.wait_quiet()


async def test_a_prefill_leg_that_never_comes_ends_in_kv_wait_timeout() -> None:
    clocks = Clocks(PrefillClocks(seat_wait_for_s=9.0), DecodeClocks(kv_wait_for_s=0.3, resend_after_s=0.1))
    pair = await open_couple(clocks=clocks)
    with pytest.raises(KVWaitTimeout):
        await pair.decode_leg("never", PROMPT, Mode.PUSH)
    await pair.wait_quiet()
    await pair.site.aclose()


@pytest.mark.parametrize("policy", KVFailure)
async def test_decode_without_room_says_so_when_the_leg_has_waited_for_as_long_as_it_may(policy: KVFailure) -> None:
    site = Site(kv_failure=policy)
    pair = await open_couple(site=site)
    room, pair.d.free = pair.d.free, []
    handoff = replace(decode_handoff("full", pair.prefill, Mode.PUSH), waits=Waits(registration_s=0.1))
    stream = await pair.decode.submit(prompt_request(PROMPT, 3), handoff, 30.0)
    with pytest.raises(RegistrationTimeout, match=r"within 0\.1 s"):
        await anext(aiter(stream))
    stream.close()
    pair.d.free = room
    await pair.wait_quiet()
    assert hand_over_of(pair.decode).counts()["recomputed"] == 0
    await site.aclose()


async def test_prefills_lease_frees_kv_that_nobody_fetches_and_tells_the_latecomer() -> None:
    clocks = Clocks(PrefillClocks(lease_for_s=0.2))
    pair = await open_couple(clocks=clocks)
    await pair.prefill_leg("lone", PROMPT)
    assert pair.p.load().held_blocks == 4
    await until(lambda: quiet(pair.prefill, pair.p))
    with pytest.raises(TransferFailed, match="lease_ended"):
        await pair.decode_leg("lone", PROMPT, Mode.PUSH)
    await pair.wait_quiet()
    await pair.site.aclose()


async def test_an_engine_that_breaks_fails_everyone_and_refuses_newcomers(plain: Couple) -> None:
    reading = asyncio.create_task(plain.decode_leg("b1", PROMPT, Mode.PUSH))
    await until(lambda: plain.d.load().held_blocks == 4)
    plain.d.broken = True
    other = await plain.decode.submit(prompt_request(PROMPT), None, 30.0)
    with pytest.raises(EngineDown):
        await reading
    with pytest.raises(EngineDown):
        async for _ in other:
            pass
    with pytest.raises(EngineDown):
        await plain.decode.submit(prompt_request(PROMPT), None, 30.0)
    assert not plain.decode.ready
    assert plain.decode.ended.done(), "the process ends, so that somebody starts it again"


async def test_a_fabric_that_breaks_fails_everyone_and_refuses_newcomers(
    plain: Couple, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "BROKEN_AFTER_S", 0.05)
    reading = asyncio.create_task(plain.decode_leg("b2", PROMPT, Mode.PUSH))
    await until(lambda: plain.d.load().held_blocks == 4)
    monkeypatch.setattr(plain.site.network.agents[PeerName(engine_id_of(plain.decode))], "advance", lambda: 1 // 0)
    with pytest.raises(EngineDown, match=r"fabric does not work any more .ZeroDivisionError.; .* restarted"):
        await reading
    with pytest.raises(EngineDown):
        await plain.decode.submit(prompt_request(PROMPT), None, 30.0)
    assert plain.decode.ended.done()
    assert not plain.prefill.ended.done()


async def test_a_fabric_that_fails_for_a_moment_costs_nobody_anything(
    plain: Couple, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = asyncio.create_task(plain.decode_leg("b3", PROMPT, Mode.PUSH))
    await until(lambda: plain.d.load().held_blocks == 4)
    with monkeypatch.context() as patch:
        patch.setattr(plain.site.network.agents[PeerName(engine_id_of(plain.decode))], "advance", lambda: 1 // 0)
        await asyncio.sleep(0.05)
    await plain.prefill_leg("b3", PROMPT)
    assert len(await reading) == 3
    assert plain.decode.ready


async def test_a_command_that_breaks_the_fabric_leaves_nobody_waiting(
    plain: Couple, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = asyncio.create_task(plain.decode_leg("b4", PROMPT, Mode.PUSH))
    await until(lambda: plain.d.load().held_blocks == 4)
    monkeypatch.setattr(plain.site.network.agents[PeerName(engine_id_of(plain.prefill))], "post", lambda _order: 1 // 0)
    await plain.prefill_leg("b4", PROMPT)
    await asyncio.wait_for(asyncio.shield(plain.prefill.ended), 5.0)
    reading.cancel()


async def test_seats_of_a_request_that_left_wait_for_a_prefill_that_cannot_be_reached(plain: Couple) -> None:
    """Neither time nor a broken connection frees what somebody might still write; an answer does."""
    prefill_id = engine_id_of(plain.prefill)
    stream = await plain.decode.submit(prompt_request(PROMPT), decode_handoff("q1", plain.prefill, Mode.PUSH), 30.0)
    desk = hand_over_of(plain.decode).decode.desk
    await until(lambda: desk.state_of(TransferId("q1")) is SeatState.WAITING)
    plain.site.calls[prefill_id] = Call.SILENT
    hand_over_of(plain.decode).peers.on_lost(prefill_id)
    stream.close()
    await asyncio.sleep(3 * TICK_S)
    assert hand_over_of(plain.decode).num_orphaned_blocks == 4
    assert plain.d.load().held_blocks == 4
    del plain.site.calls[prefill_id]
    await plain.wait_quiet()
    assert hand_over_of(plain.decode).num_orphaned_blocks == 0


async def test_a_waiting_request_outlives_a_broken_connection(plain: Couple) -> None:
    prefill_id = engine_id_of(plain.prefill)
    reading = asyncio.create_task(plain.decode_leg("w1", PROMPT, Mode.PUSH))
    await until(lambda: plain.d.load().held_blocks == 4)
    hand_over_of(plain.decode).peers.on_lost(prefill_id)
    hand_over_of(plain.prefill).peers.on_lost(engine_id_of(plain.decode))
    await until(lambda: hand_over_of(plain.decode).peers.known() == (prefill_id,))
    await plain.prefill_leg("w1", PROMPT)
    assert await reading == [sum(PROMPT) + k for k in range(3)]
    await plain.wait_quiet()


async def test_proof_of_prefills_death_fails_the_request_at_once_and_frees_its_seats_when_settled() -> None:
    clocks = Clocks(fates=FateClocks(settle_for_s=0.6))
    pair = await open_couple(clocks=clocks)
    reading = asyncio.create_task(pair.decode_leg("k1", PROMPT, Mode.PUSH))
    await until(lambda: pair.d.load().held_blocks == 4)
    pair.site.calls[engine_id_of(pair.prefill)] = Call.REFUSED
    hand_over_of(pair.decode).peers.on_lost(engine_id_of(pair.prefill))
    with pytest.raises(PeerGone):
        await reading
    assert pair.d.load().held_blocks == 4, "what lay in buffers may still land"
    await until(lambda: quiet(pair.decode, pair.d))
    await pair.site.aclose()


async def test_by_policy_a_prompt_whose_kv_does_not_come_is_computed_on_decode() -> None:
    clocks = Clocks(PrefillClocks(seat_wait_for_s=9.0), DecodeClocks(kv_wait_for_s=0.3))
    site = Site(kv_failure=KVFailure.RECOMPUTE)
    pair = await open_couple(clocks=clocks, site=site)
    assert await pair.decode_leg("never", PROMPT, Mode.PUSH) == [sum(PROMPT) + k for k in range(3)]
    assert hand_over_of(pair.decode).counts()["recomputed"] == 1
    assert [code for _, code in site.recomputed] == ["kv_wait_timeout"]
    await pair.wait_quiet()
    pair.p.fail_prompts = frozenset({PROMPT[0]})
    reading = asyncio.create_task(pair.decode_leg("failed", PROMPT, Mode.PUSH))
    with pytest.raises(EngineDown):
        await pair.prefill_leg("failed", PROMPT)
    assert await reading == [sum(PROMPT) + k for k in range(3)]
    await pair.wait_quiet()
    await site.aclose()


async def test_an_engine_that_leaves_says_so_and_nobody_waits_for_it(plain: Couple) -> None:
    reading = asyncio.create_task(plain.decode_leg("l1", PROMPT, Mode.PUSH))
    await until(lambda: plain.d.load().held_blocks == 4)
    await plain.prefill.aclose()
    with pytest.raises(PeerGone):
        await reading
    await until(lambda: quiet(plain.decode, plain.d))
    with pytest.raises(PeerGone, match="has ended"):
        await plain.decode_leg("l2", PROMPT, Mode.PUSH)


async def test_what_others_say_wrongly_is_counted_and_harms_nobody(plain: Couple) -> None:
    decode, prefill = hand_over_of(plain.decode), hand_over_of(plain.prefill)
    await plain.run("ok1", PROMPT, Mode.PUSH)
    sender = PeerName(engine_id_of(plain.prefill))
    forged = write_notice(Left(engine_id_of(plain.prefill)), Seal("another key, of 32 characters..."))
    for raw in (b"", b"TN9", forged, b"TNDM" + bytes(53)):
        decode.on_fabric_event(NoticeCame(sender, raw))
    stale = Cancelled(TransferId("t"), EngineId("prefill-0@0"), engine_id_of(plain.decode))
    prefill.on_fabric_event(NoticeCame(PeerName(engine_id_of(plain.decode)), write_notice(stale, Seal())))
    stranger = PeerName("p9@1")
    decode.on_fabric_event(NoticeCame(stranger, write_notice(Left(EngineId(stranger)), Seal())))
    counts = decode.counts()
    assert counts["notice_not_met"] == 1
    assert (counts["notice_unreadable"], counts["notice_forged"]) == (2, 2)
    assert prefill.counts()["notice_stale_epoch"] == 1
    assert await plain.run("ok2", PROMPT, Mode.PUSH) == [sum(PROMPT) + k for k in range(3)]
