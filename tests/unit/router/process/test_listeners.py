import socket

import pytest

from router.contract.errors import AddressTaken
from router.process.listeners import listen, listen_together


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_a_free_port_is_found(host):
    with listen(host, 0) as listener:
        assert listener.getsockname()[1] > 0


def test_a_taken_address_and_a_host_that_is_not_ours_are_one_sentence():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(AddressTaken, match="choose another"):
            listen("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(AddressTaken):
        listen("203.0.113.1", 0)


def test_workers_share_a_port_that_nobody_else_has():
    listeners = listen_together("127.0.0.1", 0, 3)
    port = listeners[0].getsockname()[1]
    assert [one.getsockname()[1] for one in listeners] == [port] * 3
    with pytest.raises(AddressTaken, match="choose another"):
        listen_together("127.0.0.1", port, 2)  # it would take a part of the connections that are meant for the first
    for one in listeners:
        one.close()


def test_connections_are_spread_over_all():
    listeners = listen_together("127.0.0.1", 0, 2)
    address = listeners[0].getsockname()
    clients = [socket.create_connection(address) for _ in range(64)]
    accepted = [0, 0]
    for number, one in enumerate(listeners):
        while True:
            try:
                one.accept()[0].close()
            except BlockingIOError:
                break
            accepted[number] += 1
    assert sum(accepted) == 64
    assert min(accepted) > 8  # 64 throws of a coin: less than one in a billion runs gives 8 or fewer heads
    for one in (*listeners, *clients):
        one.close()
