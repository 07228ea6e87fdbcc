"""A processor turn by turn, in virtual time: its thread is the test's."""

from __future__ import annotations

import threading

import pytest

from spark_kafka_sink.broker.outcome import ChannelAction, ChannelResponse
from spark_kafka_sink.broker.processor import Processor, ReceivedRequest
from spark_kafka_sink.network.channels import plaintext_channels
from tests.fake_system import FakeConnection, FakeSystem
from tests.network.peers import FramePeer, frame


class Served:
    """A processor and its clients; `ask` lets one of them send a frame."""

    def __init__(self, clients: int, nodes: int = 1) -> None:
        self.system = FakeSystem()
        self.requests: list[ReceivedRequest] = []
        self.failures: list[BaseException] = []
        self.peers: list[FramePeer] = []
        self.ends: list[FakeConnection] = []
        self.processor = Processor(0, self.system, plaintext_channels, self.requests.append, self.failures.append)
        for number in range(clients):
            peer = FramePeer(lambda *_: None)
            self.system.listen(f"client{number}", 1, peer)
            address = self.system.resolve(f"client{number}", 1)[0]
            self.system.connect_at_once = True
            sock = self.system.connect(address, -1, -1)
            self.processor.accept(str(number), number % nodes, sock, address)
            self.peers.append(peer)
            self.ends.append(self.system.connections[-1])
        self.turn()

    def turn(self) -> None:
        self.processor.run_once()

    def ask(self, number: int, payload: bytes) -> ReceivedRequest:
        before = len(self.requests)
        self.ends[number].send(frame(payload))
        while len(self.requests) == before:
            self.processor.run_once()
        return self.requests[-1]

    def answer(self, request: ReceivedRequest, reply: ChannelResponse) -> None:
        self.processor.send_response(request, reply)
        for _ in range(3):
            self.turn()


def test_passes_next_request_only_after_response_was_sent() -> None:
    served = Served(clients=1)
    served.ends[0].send(frame(b"one") + frame(b"two"))
    for _ in range(4):
        served.turn()
    assert [bytes(request.frame) for request in served.requests] == [b"one"]
    served.answer(served.requests[0], ChannelResponse(frame=[b"answer"]))
    assert [bytes(request.frame) for request in served.requests] == [b"one", b"two"]
    assert served.peers[0].frames == [b"answer"]


@pytest.mark.parametrize(
    ("reply", "reads_on", "closed"),
    [
        (ChannelResponse(), True, 0),
        (ChannelResponse(action=ChannelAction.KEEP_MUTED), False, 0),
        (ChannelResponse(action=ChannelAction.CLOSE), False, 1),
    ],
)
def test_response_without_frame_applies_its_channel_action(reply: ChannelResponse, reads_on: bool, closed: int) -> None:
    served = Served(clients=1)
    request = served.ask(0, b"one")
    served.ends[0].send(frame(b"two"))
    served.answer(request, reply)
    assert (len(served.requests) == 2, served.peers[0].closed) == (reads_on, closed)
    assert served.processor.connection_count == 1 - closed


def test_drops_response_to_disconnected_client(caplog: pytest.LogCaptureFixture) -> None:
    served = Served(clients=2, nodes=2)
    request = served.ask(0, b"one")
    served.processor.close_connections(0)
    served.answer(request, ChannelResponse(frame=[b"answer"]))
    other = served.ask(1, b"two")
    served.answer(other, ChannelResponse(frame=[b"answer"]))
    assert (served.peers[0].frames, served.peers[1].frames) == ([], [b"answer"])
    assert caplog.text == ""


def test_does_not_count_connection_closed_by_client() -> None:
    served = Served(clients=2)
    assert served.processor.connection_count == 2
    served.ends[0].close()
    for _ in range(2):
        served.turn()
    assert served.processor.connection_count == 1


def test_closes_connections_of_one_node_only() -> None:
    served = Served(clients=4, nodes=2)
    done = served.processor.close_connections(1)
    assert not done.is_set()
    served.turn()
    served.turn()
    assert done.is_set()
    assert [peer.closed for peer in served.peers] == [0, 1, 0, 1]
    assert served.processor.connection_count == 2


def test_stop_closes_all_sockets_and_completes_pending_close_requests() -> None:
    before = set(threading.enumerate())
    served = Served(clients=2)
    address = served.system.resolve("client0", 1)[0]
    late = served.processor.close_connections(0)
    served.processor.stop()
    served.processor.start()
    served.processor.accept("late", 0, served.system.connect(address, -1, -1), address)
    served.processor.join()
    assert late.is_set()
    assert not served.system.open_sockets
    assert served.failures == []
    assert set(threading.enumerate()) <= before
