"""Connections and notices of the simulated network."""

import random

from engine_shim.simulation.network import Connection, Ending, Host, Network, Noise, Server
from engine_shim.simulation.timeline import Process, Timeline


class Echo(Server):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.heard: list[object] = []

    def on_call(self, connection: Connection, message: object) -> None:
        connection.server = self
        self.heard.append(message)
        connection.send(self, ("answer", message))

    def on_message(self, connection: Connection, message: object) -> None:
        self.heard.append(message)

    def on_lost(self, connection: Connection, ending: Ending) -> None:
        self.heard.append(ending)

    def on_notice(self, notice: object) -> None:
        self.heard.append(notice)

    def on_unreachable(self, host: Host) -> None:
        self.heard.append(f"{host.name} is out of reach")


class Setting:
    def __init__(self, noise: Noise | None = None) -> None:
        self.timeline = Timeline(random.Random(1))
        self.network = Network(self.timeline, noise or Noise(), connect_s=2.0)
        self.caller, self.server = Echo("a"), Echo("b")
        self.network.host("a").process = self.caller
        self.network.host("b").process = self.server

    def run(self) -> None:
        self.timeline.run(100.0, lambda: False)


def test_a_call_is_heard_and_answered() -> None:
    setting = Setting()
    setting.network.call(setting.caller, setting.network.host("b"), "hello", setting.caller)
    setting.run()
    assert setting.server.heard == ["hello"]
    assert setting.caller.heard == [("answer", "hello")]


def test_messages_of_a_connection_keep_their_order() -> None:
    setting = Setting(Noise(slow=0.5))
    connection = setting.network.call(setting.caller, setting.network.host("b"), 0, setting.caller)
    for number in range(1, 20):
        connection.send(setting.caller, number)
    setting.run()
    assert setting.server.heard == list(range(20))


def test_an_empty_host_refuses() -> None:
    setting = Setting()
    setting.network.call(setting.caller, setting.network.host("nobody"), "hello", setting.caller)
    setting.run()
    assert setting.caller.heard == [Ending.REFUSED]


def test_a_host_behind_a_parting_is_silent_until_the_time_to_connect_is_over() -> None:
    setting = Setting()
    setting.network.part("a", "b", 10.0)
    setting.network.call(setting.caller, setting.network.host("b"), "hello", setting.caller)
    setting.run()
    assert setting.caller.heard == [Ending.SILENT]
    assert setting.server.heard == []


def test_the_death_of_one_end_is_heard_at_the_other_unless_it_is_silent() -> None:
    heard = []
    for silently in (False, True):
        setting = Setting()
        setting.network.call(setting.caller, setting.network.host("b"), "hello", setting.caller)
        setting.run()
        setting.server.dead = True
        setting.network.on_killed(setting.server, silently=silently)
        setting.run()
        heard.append(setting.caller.heard[1:])
    assert heard == [[Ending.BROKEN], []]


def test_a_half_open_connection_carries_nothing() -> None:
    setting = Setting()
    connection = setting.network.call(setting.caller, setting.network.host("b"), "hello", setting.caller)
    setting.run()
    assert setting.network.cut("a", "b", silently=True) == 1
    connection.send(setting.caller, "more")
    setting.run()
    assert setting.server.heard == ["hello"]


def test_notices_are_lost_and_doubled_as_the_noise_says() -> None:
    counts = []
    for noise in (Noise(), Noise(lost=1.0), Noise(doubled=1.0)):
        setting = Setting(noise)
        for _ in range(10):
            setting.network.notify(setting.caller, setting.network.host("b"), "psst")
        setting.run()
        counts.append(len(setting.server.heard))
    assert counts == [10, 0, 20]


def test_a_notice_finds_the_successor_of_a_dead_process() -> None:
    setting = Setting()
    setting.network.notify(setting.caller, setting.network.host("b"), "psst")
    successor = Echo("b")
    setting.network.host("b").process = successor
    setting.run()
    assert successor.heard == ["psst"]


def test_a_notice_to_an_empty_host_is_a_transport_error_now_and_then() -> None:
    setting = Setting()
    setting.network.host("b").process = None
    for _ in range(20):
        setting.network.notify(setting.caller, setting.network.host("b"), "psst")
    setting.run()
    assert 0 < len(setting.caller.heard) < 20
    assert set(setting.caller.heard) == {"b is out of reach"}


def test_closing_ends_it_for_both() -> None:
    setting = Setting()
    client = Process("c")
    connection = setting.network.call(client, setting.network.host("b"), "hello", setting.caller)
    connection.close(client)
    setting.run()
    assert setting.server.heard == ["hello", Ending.BROKEN]
    assert setting.caller.heard == []
    assert connection.over
