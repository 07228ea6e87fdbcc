"""Processor: one poll at a time, in virtual time and in the test's thread."""

from __future__ import annotations

import threading

import pytest

from spark_kafka_sink.broker.outcome import ChannelAction, ChannelResponse
from spark_kafka_sink.broker.processor import Processor, ReceivedRequest
from spark_kafka_sink.network.channel_builders import build_plaintext_channel
from tests.fake_system import FakeConnection, FakeSystem
from tests.network.peers import FramePeer, frame


class ProcessorHarness:
    """A processor with connected clients, which send frames with `send_frame`."""

    def __init__(self, clients: int, nodes: int = 1) -> None:
        self.system = FakeSystem()
        self.requests: list[ReceivedRequest] = []
        self.failures: list[BaseException] = []
        self.peers: list[FramePeer] = []
        self.connections: list[FakeConnection] = []
        self.processor = Processor(0, self.system, build_plaintext_channel, self.requests.append, self.failures.append)
        for number in range(clients):
            peer = FramePeer(lambda *_: None)
            self.system.listen(f"client{number}", 1, peer)
            address = self.system.resolve(f"client{number}", 1)[0]
            self.system.connect_at_once = True
            sock = self.system.connect(address, -1, -1)
            self.processor.accept(str(number), number % nodes, sock, address)
            self.peers.append(peer)
            self.connections.append(self.system.connections[-1])
        self.run_once()

    def run_once(self) -> None:
        self.processor.run_once()

    def send_frame(self, number: int, payload: bytes) -> ReceivedRequest:
        count = len(self.requests)
        self.connections[number].send(frame(payload))
        while len(self.requests) == count:
            self.processor.run_once()
        return self.requests[-1]

    def send_response(self, request: ReceivedRequest, response: ChannelResponse) -> None:
        self.processor.send_response(request, response)
        for _ in range(3):
            self.run_once()


def test_passes_next_request_only_after_response_was_sent() -> None:
    harness = ProcessorHarness(clients=1)
    harness.connections[0].send(frame(b"one") + frame(b"two"))
    for _ in range(4):
        harness.run_once()
    assert [bytes(request.frame) for request in harness.requests] == [b"one"]
    harness.send_response(harness.requests[0], ChannelResponse(frame=[b"response"]))
    assert [bytes(request.frame) for request in harness.requests] == [b"one", b"two"]
    assert harness.peers[0].frames == [b"response"]


@pytest.mark.parametrize(
    ("response", "reads_next_request", "closed"),
    [
        (ChannelResponse(), True, 0),
        (ChannelResponse(action=ChannelAction.KEEP_MUTED), False, 0),
        (ChannelResponse(action=ChannelAction.CLOSE), False, 1),
    ],
)
def test_response_without_frame_applies_its_channel_action(
    response: ChannelResponse, reads_next_request: bool, closed: int
) -> None:
    harness = ProcessorHarness(clients=1)
    request = harness.send_frame(0, b"one")
    harness.connections[0].send(frame(b"two"))
    harness.send_response(request, response)
    assert (len(harness.requests) == 2, harness.peers[0].closed) == (reads_next_request, closed)
    assert harness.processor.connection_count == 1 - closed


def test_drops_response_to_disconnected_client(caplog: pytest.LogCaptureFixture) -> None:
    harness = ProcessorHarness(clients=2, nodes=2)
    request = harness.send_frame(0, b"one")
    harness.processor.close_connections(0)
    harness.send_response(request, ChannelResponse(frame=[b"response"]))
    second_request = harness.send_frame(1, b"two")
    harness.send_response(second_request, ChannelResponse(frame=[b"response"]))
    assert (harness.peers[0].frames, harness.peers[1].frames) == ([], [b"response"])
    assert caplog.text == ""


def test_does_not_count_connection_closed_by_client() -> None:
    harness = ProcessorHarness(clients=2)
    assert harness.processor.connection_count == 2
    harness.connections[0].close()
    for _ in range(2):
        harness.run_once()
    assert harness.processor.connection_count == 1


def test_closes_connections_of_one_node_only() -> None:
    harness = ProcessorHarness(clients=4, nodes=2)
    done = harness.processor.close_connections(1)
    assert not done.is_set()
    harness.run_once()
    harness.run_once()
    assert done.is_set()
    assert [peer.closed for peer in harness.peers] == [0, 1, 0, 1]
    assert harness.processor.connection_count == 2


def test_failed_close_request_releases_waiting_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = ProcessorHarness(clients=1)

    def fail_to_close(channel_id: str) -> None:
        raise RuntimeError(f"cannot close {channel_id}")

    monkeypatch.setattr(harness.processor, "_close", fail_to_close)
    pending_close = harness.processor.close_connections(0)
    with pytest.raises(RuntimeError, match="cannot close"):
        harness.run_once()
    assert pending_close.is_set()


def test_stop_closes_all_sockets_and_completes_pending_close_requests() -> None:
    threads = set(threading.enumerate())
    harness = ProcessorHarness(clients=2)
    address = harness.system.resolve("client0", 1)[0]
    pending_close = harness.processor.close_connections(0)
    harness.processor.stop()
    harness.processor.start()
    harness.processor.accept("late", 0, harness.system.connect(address, -1, -1), address)
    harness.processor.join()
    assert pending_close.is_set()
    assert not harness.system.open_sockets
    assert harness.failures == []
    assert set(threading.enumerate()) <= threads
