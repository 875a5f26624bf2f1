from router.workers.respawn import MAX_BACK_OFF_S, YOUNG_DEATHS, YOUNG_S, Respawn


def test_a_worker_that_has_lived_is_replaced_at_once():
    respawn = Respawn()
    assert [respawn.delay_s(0, YOUNG_S) for _ in range(20)] == [0.0] * 20


def test_young_deaths_wait_longer_and_longer_and_end_in_giving_up():
    respawn = Respawn()
    delays = [respawn.delay_s(0, 1.0) for _ in range(YOUNG_DEATHS)]
    assert delays == [0.0, 0.2, 0.4, 0.8, 1.6, None]
    assert all(delay <= MAX_BACK_OFF_S for delay in delays[:-1])


def test_one_slot_and_one_long_life_are_judged_on_their_own():
    respawn = Respawn()
    for _ in range(YOUNG_DEATHS - 1):
        respawn.delay_s(0, 1.0)
    assert respawn.delay_s(1, 1.0) == 0.0
    respawn.delay_s(0, YOUNG_S + 1)
    assert respawn.delay_s(0, 1.0) == 0.0
